"""Answers as scrapes: nothing absurd, partial or foreign gets through, and never as a 0."""

import contextlib
import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.messages import Messages
from tests.unit.metrics.answers import JSON, series
from triton_pipelines.autoscaling.metrics import queries, query_results
from triton_pipelines.autoscaling.metrics.connection import Connection, SeriesLabels
from triton_pipelines.autoscaling.metrics.query_results import PodSeries, QueryResultError
from triton_pipelines.autoscaling.metrics.samples import ModelCounters, PodUsage

POD = ("default", "a")
WANTED = {POD: frozenset({"tokenizer", "model"})}
INTERVAL = 5.0


def read(result: list[Any], address: str = "") -> PodSeries:
    return query_results.counters(
        "matrix", result, SeriesLabels(), WANTED, {POD: address}, INTERVAL
    ).get(POD, PodSeries())


def whole(**labels: str) -> list[dict[str, Any]]:
    return [
        *series("a", "tokenizer", {100.0: 1, 105.0: 2}, **labels),
        *series("a", "model", {100.0: 3, 105.0: 4}, **labels),
    ]


def test_series_become_scrapes_with_their_own_times() -> None:
    seen = read(whole())
    assert seen.problem == ""
    assert [scrape.at for scrape in seen.scrapes] == [100.0, 105.0]
    assert seen.scrapes[1].models["tokenizer"] == ModelCounters(2, 0, 2, 0, 2, 2, 2, 2, 2, 2, 2, 2)
    assert seen.scrapes[1].models["model"].success == 4


def test_label_sets_of_one_model_are_summed() -> None:
    """Sum over all label sets of a model.

    A GPU model has series with and without gpu_uuid, and possibly several versions. Of the
    failures, only rejected requests are read.
    """
    extra = [
        {
            "metric": {**series("a", "model", {})[0]["metric"], "gpu_uuid": "GPU-1"},
            "values": [[105.0, "10"]],
        },
        {
            "metric": {**series("a", "model", {})[0]["metric"], "version": "2"},
            "values": [[105.0, "100"]],
        },
        {
            "metric": {**series("a", "model", {})[1]["metric"], "reason": "REJECTED"},
            "values": [[105.0, "7"]],
        },
        {
            "metric": {**series("a", "model", {})[1]["metric"], "reason": "BACKEND"},
            "values": [[105.0, "1000"]],
        },
    ]
    newest = read([*whole(), *extra]).scrapes[-1].models["model"]
    assert (newest.success, newest.rejected) == (114, 7)


def test_others_are_passed_over() -> None:
    stranger = [
        *series("b", "model", {105.0: 9}),
        *series("a", "other", {105.0: 9}),
        *series("a", "model", {105.0: 9}, namespace="x"),
    ]
    assert read([*stranger, *whole()]) == read(whole())
    assert read(stranger) == PodSeries()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "", "x", "1e999"])
def test_an_absurd_value_is_a_problem_of_that_pod(value: str, messages: Messages) -> None:
    result = whole()
    result[3]["values"][1][1] = value
    try:
        seen = read(result)
    except QueryResultError:
        assert value in ("", "x")
        return
    messages.check(seen.problem)
    assert seen.scrapes == ()


OPTIONAL = {
    "nv_inference_request_failure",
    "tritonpipe_step_busy_us",
    "tritonpipe_step_cpu_us",
    "tritonpipe_step_passed_requests",
}


def test_a_scrape_that_lacks_series_is_none() -> None:
    for dropped in whole():
        if dropped["metric"]["__name__"] in OPTIONAL:
            continue
        seen = read([one for one in whole() if one["metric"] != dropped["metric"]])
        assert seen.scrapes == ()
        assert dropped["metric"]["__name__"] in seen.problem
        assert dropped["metric"]["model"] in seen.problem


def test_a_partial_newest_scrape_is_left_out_and_said(messages: Messages) -> None:
    result = whole()
    del result[0]["values"][1]
    seen = read(result)
    assert [scrape.at for scrape in seen.scrapes] == [100.0]
    assert "nv_inference_request_success" in seen.problem
    messages.check(seen.problem)


def test_a_model_that_is_not_loaded(messages: Messages) -> None:
    messages.check(read(series("a", "model", {105.0: 1})).problem)


@pytest.mark.parametrize("label", ["job", "prometheus_replica", "endpoint"])
def test_what_is_scraped_twice_counts_once(label: str, messages: Messages) -> None:
    second = [
        *series("a", "tokenizer", {102.0: 1, 107.0: 2}, **{label: "zz"}),
        *series("a", "model", {102.0: 3, 107.0: 4}, **{label: "zz"}),
    ]
    seen = read([*second, *whole()])
    assert [scrape.at for scrape in seen.scrapes] == [100.0, 105.0]
    assert seen.scrapes == read([*whole(), *second]).scrapes
    assert label in seen.note
    messages.check(seen.note)


def test_of_two_replicas_the_one_with_more_series_counts() -> None:
    half = [one for one in whole(replica="a") if one["metric"]["model"] == "model"]
    assert len(read([*half, *whole(replica="b")]).scrapes) == 2


def test_series_of_another_cluster_are_never_mixed_in(messages: Messages) -> None:
    seen = read([*whole(cluster="one"), *whole(cluster="two")])
    assert seen.scrapes == ()
    assert "matchers" in seen.problem
    messages.check(seen.problem)


def test_namesakes_are_told_apart_by_the_pods_address(messages: Messages) -> None:
    foreign = [
        *series("a", "tokenizer", {104.0: 900}, cluster="two", instance="10.9.9.9:8002"),
        *series("a", "model", {104.0: 900}, cluster="two"),
    ]
    for one in foreign:
        one["metric"]["instance"] = "10.9.9.9:8002"
    seen = read([*foreign, *whole(cluster="one", instance="10.1.1.1:8002")], "10.1.1.1:8002")
    assert [scrape.models["model"].success for scrape in seen.scrapes] == [3, 4]
    messages.check(seen.note)
    assert read([*foreign, *whole(cluster="one", instance="10.1.1.1:8002")]).problem


def test_a_namesake_with_other_versions_is_noticed_as_well() -> None:
    foreign = series("a", "model", {105.0: 900}, version="7", instance="10.9.9.9:8002")
    assert "instance: " in read([*foreign, *whole()]).problem


def test_a_target_that_has_gone_does_not_count() -> None:
    gone = [
        *series("a", "tokenizer", {90.0: 50}, instance="old:8002"),
        *series("a", "model", {90.0: 50}, instance="old:8002"),
    ]
    seen = read([*gone, *whole()])
    assert seen.problem == ""
    assert [scrape.at for scrape in seen.scrapes] == [100.0, 105.0]


def test_the_same_series_twice_is_a_problem(messages: Messages) -> None:
    messages.check(read([*whole(), whole()[0]]).problem)


@given(st.lists(JSON, max_size=4), st.sampled_from(["matrix", "vector", "scalar", "string", ""]))
def test_any_json_is_an_answer_or_an_answer_error(result: list[Any], kind: str) -> None:
    connection = Connection(url="http://a")
    for call in (
        lambda: query_results.counters(kind, result, SeriesLabels(), WANTED, {}, INTERVAL),
        lambda: query_results.figures(kind, result, connection),
        lambda: query_results.targets(kind, result, connection),
    ):
        with contextlib.suppress(QueryResultError):
            assert not call()
    with contextlib.suppress(QueryResultError):
        assert math.isfinite(query_results.clock(kind, result))


PLACES = st.sampled_from(["metric", "values", "time", "value", "label"])
ABSURD = JSON | st.sampled_from(["NaN", "+Inf", "-Inf", "-3", "1e999", "0x1", "", 12, None])


@given(
    st.lists(st.tuples(st.integers(0, 15), PLACES, ABSURD), min_size=1, max_size=6), st.randoms()
)
def test_no_spoilt_answer_gives_a_counter_that_was_not_there(
    spoils: list[tuple[int, str, Any]], random: Any
) -> None:
    """Corrupt a query result in arbitrary places.

    Every value that is read still comes from Prometheus; otherwise there is a problem or an error.
    """
    result = copy.deepcopy(whole())
    for index, place, absurd in spoils:
        item = result[index]
        if place in ("metric", "values"):
            item[place] = absurd
        elif place == "label" and isinstance(item["metric"], dict):
            item["metric"][random.choice(["pod", "model", "__name__", "version", "cluster"])] = (
                absurd
            )
        elif (
            isinstance(item["values"], list)
            and item["values"]
            and isinstance(item["values"][0], list)
        ):
            item["values"][0][1 if place == "value" else 0] = absurd
    random.shuffle(result)
    try:
        seen = read(result)
    except QueryResultError:
        return
    if seen.problem and not seen.scrapes:
        return
    for scrape in seen.scrapes:
        assert set(scrape.models) == {"tokenizer", "model"}
        for counters in scrape.models.values():
            assert all(
                math.isfinite(value) and value >= 0
                for value in (counters.success, counters.execs, counters.pending)
            )
        if scrape.at == 105.0 and not any(
            place in ("value", "time", "label", "values") for _, place, _ in spoils
        ):
            assert scrape.models["tokenizer"].success == 2


def figure(name: str, value: str, **labels: str) -> dict[str, Any]:
    return {"metric": {queries.FIGURE: name, **labels}, "value": [100.0, value]}


def test_usage_of_a_pod() -> None:
    labels = {"namespace": "default", "pod": "a"}
    found = query_results.figures(
        "vector",
        [
            figure("cpu", "1.5", **labels),
            figure("throttled", "2", **labels),
            figure("periods", "10", **labels),
            figure("memory", "1e9", **labels),
            figure("dcgm", "80", **labels),
        ],
        Connection(url="http://a"),
    )
    assert query_results.usages(found, [POD, ("default", "b")], 40.0) == {
        POD: PodUsage(40.0, 1.5, 0.2, 1e9, 0.8)
    }


@pytest.mark.parametrize(
    ("figures", "gpu"),
    [
        (
            [
                figure("gpu", "0.3", namespace="default", pod="a"),
                figure("dcgm", "90", namespace="default", pod="a"),
            ],
            0.3,
        ),
        ([figure("exported-engine", "0.4", exported_namespace="default", exported_pod="a")], 0.4),
        ([figure("exported-dcgm", "100", exported_namespace="default", exported_pod="a")], 1.0),
        ([figure("gpu", "NaN", namespace="default", pod="a")], None),
        ([figure("gpu", "-1", namespace="default", pod="a")], None),
        (
            [
                figure("gpu", "37", namespace="default", pod="a"),
                figure("dcgm", "37", namespace="default", pod="a"),
            ],
            0.37,
        ),
        ([figure("dcgm", "101", namespace="default", pod="exporter")], None),
    ],
)
def test_gpu_figures_in_all_their_forms(figures: list[dict[str, Any]], gpu: float | None) -> None:
    usage = query_results.usages(
        query_results.figures("vector", figures, Connection(url="http://a")), [POD], 0.0
    ).get(POD)
    assert (usage.gpu if usage else None) == gpu


@pytest.mark.parametrize("result", [[1.0, "NaN"], [1.0], [], [1.0, "-5"], ["x", "y"], [1, None]])
def test_a_server_without_a_time(result: list[Any], messages: Messages) -> None:
    with messages.raises(QueryResultError):
        query_results.clock("scalar", result)
