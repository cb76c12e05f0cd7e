"""Test the collector over real HTTP on loopback.

A fake Prometheus serves results and a clock that the test sets; integration tests use a real one.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.loopback import listening
from tests.support.messages import Messages
from tests.support.web import Request, Response
from tests.unit.metrics.answers import JSON, series
from triton_pipelines.autoscaling.metrics import collector as module
from triton_pipelines.autoscaling.metrics.collector import PrometheusCollector
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.connection_messages import (
    forbidden_connection,
    unknown_connection,
)
from triton_pipelines.autoscaling.metrics.prometheus_response import QueryResult
from triton_pipelines.autoscaling.metrics.queries import FIGURE
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)

KEY = ("default", "sentiment")
MODELS = frozenset({"tokenizer", "model"})
SECRET = "s3cret-t0ken"


class Stand:
    """A fake Prometheus whose clock, series and values the test sets.

    ``before`` returns a response that replaces its own.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.series: list[dict[str, Any]] = []
        self.figures: list[dict[str, Any]] = []
        self.up: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.before: Callable[[Request, str], Response | None] = lambda request, query: None
        self.queries: list[str] = []

    def scrape(self, at: float, value: float, *pods: str, **labels: str) -> None:
        """Every pod has been scraped: all counters stand at ``value``."""
        for pod in pods or ("a",):
            for model in sorted(MODELS):
                for new in series(pod, model, {at: value}, **labels):
                    old = next((one for one in self.series if one["metric"] == new["metric"]), None)
                    if old is None:
                        self.series.append(new)
                    else:
                        old["values"] += new["values"]

    def answer(self, request: Request) -> Response:
        """The API's answer."""
        query = parse_qs(urlsplit(request.path).query)["query"][0]
        self.queries.append(query)
        if (own := self.before(request, query)) is not None:
            return own
        return reply(*self._result(query), warnings=self.warnings)

    def _result(self, query: str) -> tuple[str, list[Any]]:
        if query == "time()":
            return "scalar", [self.now, str(self.now)]
        if query.startswith("{__name__"):
            found = re.search(r"\[(\d+)ms\]$", query)
            assert found is not None
            since = self.now - int(found[1]) / 1000
            cut = [
                {
                    **one,
                    "values": [value for value in one["values"] if since <= value[0] <= self.now],
                }
                for one in self.series
            ]
            return "matrix", [one for one in cut if one["values"]]
        return "vector", self.up if "(up{" in query else self.figures


def reply(kind: str, result: list[Any], **more: Any) -> Response:
    body = {"status": "success", "data": {"resultType": kind, "result": result}, **more}
    return Response(200, {"Content-Type": "application/json"}, json.dumps(body).encode())


def expected(*pods: str, models: frozenset[str] = MODELS) -> dict[tuple[str, str], ExpectedPods]:
    return {
        KEY: ExpectedPods("default", {pod: f"{pod}:8002" for pod in pods or ("a",)}, models, 60.0)
    }


def collector(url: str, stand: Stand, *, ahead: float = 0.0, **more: Any) -> PrometheusCollector:
    """A collector whose clock is ``ahead`` of the stand-in's."""
    connection = Connection.model_validate({"url": url, "timeoutSeconds": 3, **more})
    return PrometheusCollector(
        connection, clock=lambda: stand.now + ahead, monotonic=lambda: stand.now
    )


def sample(said: PipelineSample | MetricsFailure) -> PipelineSample:
    assert isinstance(said, PipelineSample), said
    return said


def failure(said: PipelineSample | MetricsFailure) -> MetricsFailure:
    assert isinstance(said, MetricsFailure), said
    return said


async def test_new_pods_are_looked_back_at_once_and_then_only_the_newest_is_asked(
    stand: Stand, url: str
) -> None:
    for at in range(930, 1000, 5):
        stand.scrape(float(at), float(at))
    async with collector(url, stand) as made:
        first = sample((await made.collect(expected()))[KEY])
        assert len(first.pods["a"].scrapes) == 14
        assert first.interval == 5.0
        stand.now, queries = 1005.0, len(stand.queries)
        stand.scrape(1000.0, 1000.0)
        stand.scrape(1005.0, 1005.0)
        second = sample((await made.collect(expected()))[KEY])
    assert [scrape.at for scrape in second.pods["a"].scrapes][-3:] == [995.0, 1000.0, 1005.0]
    windows = [
        int(found[1]) for query in stand.queries for found in re.finditer(r"\[(\d+)ms\]$", query)
    ]
    assert windows == [75000, 7500]
    assert (
        len(stand.queries) - queries == 2
    )  # the time and the counters; container figures are asked every 10 s


async def test_after_an_outage_the_gap_is_asked_for(stand: Stand, url: str) -> None:
    stand.scrape(995.0, 1.0)
    stand.scrape(1000.0, 2.0)
    async with collector(url, stand) as made:
        await made.collect(expected())
        for at in range(1005, 1045, 5):
            stand.scrape(float(at), float(at))
        stand.now = 1040.0
        found = sample((await made.collect(expected()))[KEY])
    assert [scrape.at for scrape in found.pods["a"].scrapes] == [
        float(at) for at in range(995, 1045, 5)
    ]


async def test_all_pipelines_with_one_set_of_queries(stand: Stand, url: str) -> None:
    wanted = {}
    for index in range(30):
        wanted["default", f"p{index}"] = ExpectedPods("default", {f"pod-{index}": ""}, MODELS, 60.0)
        stand.scrape(999.0, float(index), f"pod-{index}")
    async with collector(url, stand) as made:
        said = await made.collect(wanted)
    assert [
        sample(said["default", f"p{index}"])
        .pods[f"pod-{index}"]
        .scrapes[-1]
        .models["model"]
        .success
        for index in range(30)
    ] == list(range(30))
    assert len(stand.queries) <= 5


async def test_a_stale_pod_is_left_out_and_named_while_another_is_fresh(
    stand: Stand, url: str, messages: Messages
) -> None:
    for at in (985.0, 990.0, 995.0):
        stand.scrape(at, 1.0, "a", "b")
    async with collector(url, stand) as made:
        assert set(sample((await made.collect(expected("a", "b")))[KEY]).pods) == {"a", "b"}
        stand.now = 1010.0
        stand.scrape(1005.0, 2.0, "a")
        found = sample((await made.collect(expected("a", "b")))[KEY])
        assert set(found.pods) == {"a"}
        messages.check(found.notes[0])
        stand.now = 1020.0
        gone = failure((await made.collect(expected("a", "b")))[KEY])
    assert gone.problem is MetricsProblem.STALE
    assert 'nv_inference_request_success{namespace="default",pod=~"a|b"}' in gone.message


@pytest.mark.parametrize(
    ("up", "checked"),
    [
        ([], "PodMonitor"),
        ([{"metric": {"namespace": "default", "pod": "a"}, "value": [1, "0"]}], "port 8002"),
        ([{"metric": {"namespace": "default", "pod": "a"}, "value": [1, "1"]}], "relabeling"),
    ],
)
async def test_no_series_at_all_gets_a_checklist(
    stand: Stand, url: str, up: list[Any], checked: str, messages: Messages
) -> None:
    stand.up = up
    async with collector(url, stand) as made:
        said = failure((await made.collect(expected()))[KEY])
    assert said.problem is MetricsProblem.MISSING
    messages.check(said.message)
    for part in (
        checked,
        "series arrive",
        'nv_inference_request_success{namespace="default",pod="a"}',
    ):
        assert part in said.message


async def test_another_clock_is_allowed_for_and_said(stand: Stand, url: str) -> None:
    stand.scrape(995.0, 1.0)
    stand.scrape(1000.0, 2.0)
    async with collector(url, stand, ahead=-300.0) as made:
        found = sample((await made.collect(expected()))[KEY])
    assert [scrape.at for scrape in found.pods["a"].scrapes] == [695.0, 700.0]
    assert found.notes == (
        "the clock of Prometheus is more than 1 s ahead of the operator's; the operator "
        "compensates for the difference",
    )


async def test_a_clock_that_was_set_back_starts_over(stand: Stand, url: str) -> None:
    stand.scrape(995.0, 10.0)
    stand.scrape(1000.0, 20.0)
    async with collector(url, stand) as made:
        sample((await made.collect(expected()))[KEY])
        stand.series.clear()
        stand.now = 500.0
        stand.scrape(495.0, 30.0)
        stand.scrape(500.0, 40.0)
        found = sample((await made.collect(expected()))[KEY])
    assert [scrape.at for scrape in found.pods["a"].scrapes][-1] == 500.0
    assert max(scrape.at for scrape in found.pods["a"].scrapes) == 500.0


async def test_a_scrape_of_the_future_is_not_believed(
    stand: Stand, url: str, messages: Messages
) -> None:
    stand.scrape(995.0, 1.0)
    stand.scrape(1000.0, 1.0)
    async with collector(url, stand) as made:
        await made.collect(expected())
        stand.before = lambda request, query: (
            reply(
                "matrix", series("a", "model", {1100.0: 5}) + series("a", "tokenizer", {1100.0: 5})
            )
            if query[0] == "{"
            else None
        )
        said = failure((await made.collect(expected()))[KEY])
    assert said.problem is MetricsProblem.STALE
    messages.check(said.message)


async def test_figures_of_containers_and_gpus(stand: Stand, url: str) -> None:
    place = {"namespace": "default", "pod": "a"}
    stand.scrape(999.0, 1.0)
    stand.figures = [
        {"metric": {FIGURE: "cpu", **place}, "value": [1, "1.5"]},
        {"metric": {FIGURE: "dcgm", **place}, "value": [1, "50"]},
    ]
    async with collector(url, stand) as made:
        found = sample((await made.collect(expected()))[KEY])
        usage = found.pods["a"].usage
        assert usage is not None
        assert (usage.cpu_cores, usage.gpu, usage.throttled, usage.at) == (1.5, 0.5, None, 940.0)
        stand.now = 1400.0
        stand.figures.clear()
        stand.scrape(1400.0, 2.0)
        later = sample((await made.collect(expected()))[KEY])
    assert later.pods["a"].usage is None


async def test_a_longer_window_where_containers_are_scraped_seldom(stand: Stand, url: str) -> None:
    stand.scrape(999.0, 1.0)
    stand.figures = [
        {"metric": {FIGURE: "memory", "namespace": "default", "pod": "a"}, "value": [1, "1e9"]}
    ]
    async with collector(url, stand) as made:
        await made.collect(expected())
        await made.collect(expected())
    assert [
        set(re.findall(r"_total\{[^}]*\}\[(\d+s)\]", query))
        for query in stand.queries
        if "container_" in query
    ] == [{"60s"}, {"150s"}]


async def test_figures_that_fail_are_no_reason_to_fail(
    stand: Stand, url: str, messages: Messages
) -> None:
    stand.scrape(999.0, 1.0)
    stand.before = lambda request, query: (
        Response(422, {}, b'{"status":"error","errorType":"execution","error":"too many"}')
        if "container_" in query
        else None
    )
    async with collector(url, stand) as made:
        found = sample((await made.collect(expected()))[KEY])
    (note,) = found.notes
    messages.check(note)


async def test_warnings_are_passed_on(stand: Stand, url: str) -> None:
    stand.scrape(999.0, 1.0)
    stand.warnings = ["store-2 did not answer"]
    async with collector(url, stand) as made:
        assert sample((await made.collect(expected()))[KEY]).notes == (
            "Prometheus warns: store-2 did not answer",
        )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Response(503, {}, b"<html>busy</html>"), "HTTP"),
        (
            Response(
                503, {}, b'{"status":"error","errorType":"timeout","error":"query timed out"}'
            ),
            "HTTP",
        ),
        (Response(401, {}, b"no"), "HTTP"),
        (Response(404, {}, b""), "path prefix"),
        (
            Response(302, {"Location": "https://login/"}, b""),
            "https://login/",
        ),
        (
            Response(200, {}, b'{"status":"error","errorType":"bad_data","error":"no"}'),
            "bad_data",
        ),
        (Response(200, {}, b"<html>"), "JSON"),
        (Response(200, {}, b"[1]"), "JSON"),
        (Response(200, {}, b'{"status":"success"}'), "no result"),
        (
            Response(200, {}, b'{"status":"success","data":{"resultType":"matrix","result":{}}}'),
            "no result",
        ),
        (Response(200, {}, b"[" * 100_000), "JSON"),
        (Response(200, {}, b'{"status":"success"', cut=5), "ended early"),
        (Response(200, {"Content-Encoding": "gzip"}, b"no gzip"), "compressed"),
    ],
)
async def test_every_bad_answer_is_a_failure_in_words(
    stand: Stand, url: str, answer: Response, words: str, messages: Messages
) -> None:
    stand.before = lambda request, query: answer
    async with collector(url, stand) as made:
        said = failure((await made.collect(expected()))[KEY])
    assert said.problem is MetricsProblem.ERROR
    assert words in said.message
    assert str(url) in said.message
    messages.check(said.message)
    assert len(stand.queries) == 1, "it was tried again"


async def test_an_unreachable_server_is_reported(messages: Messages) -> None:
    async with PrometheusCollector(Connection(url="http://127.0.0.1:1")) as made:
        messages.check(failure((await made.collect(expected()))[KEY]).message)
    async with PrometheusCollector(Connection(url="http://prometheus.invalid:9090")) as made:
        messages.check(failure((await made.collect(expected()))[KEY]).message)


async def test_an_answer_without_end_is_given_up_and_nothing_else_is_asked_meanwhile(
    stand: Stand, url: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr("triton_pipelines.autoscaling.metrics.collector._GRACE_SECONDS", -0.3)
    released = threading.Event()
    stand.before = lambda request, query: Response(
        200, {}, b'{"status": "success"}', hold=(5, released)
    )
    connection = Connection.model_validate({"url": url, "timeoutSeconds": 0.5})
    async with PrometheusCollector(connection) as made:
        messages.check(failure((await made.collect(expected()))[KEY]).message)
        assert len(stand.queries) == 1
        released.set()
        stand.before = lambda request, query: None
        stand.scrape(999.0, 1.0)
        async with asyncio.timeout(10):
            running = made._running
            assert running is not None
            await running
        found = sample((await made.collect(expected()))[KEY])
        assert [scrape.models["model"].success for scrape in found.pods["a"].scrapes] == [1.0]


@pytest.mark.parametrize("stops", [True, False], ids=["stops", "drips"])
async def test_the_thread_gives_up_a_body_that_does_not_end(
    stops: bool, messages: Messages
) -> None:
    """Each byte comes within the time limit of a read; the whole of them would take a minute."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1200\r\n\r\n")
        while not stops:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)
        await reader.read()

    async with (
        listening(answer) as address,
        PrometheusCollector(
            Connection.model_validate({"url": f"http://{address}", "timeoutSeconds": 0.5})
        ) as made,
    ):
        said = failure((await made.collect(expected()))[KEY])
        messages.check(said.message)
        running = made._running
        assert running is not None
        async with asyncio.timeout(5):
            await running


async def test_a_token_rotates_and_is_never_said(
    stand: Stand, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, messages: Messages
) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    good = ["other"]

    def guarded(request: Request, query: str) -> Response | None:
        if request.headers.get("authorization") == f"Bearer {good[0]}":
            return None
        return Response(401, {}, f"bad token {request.headers.get('authorization')}".encode())

    stand.before = guarded
    stand.scrape(999.0, 1.0)
    caplog.set_level("DEBUG")
    async with collector(url, stand, bearerTokenFile=token, security="Insecure") as made:
        refused = failure((await made.collect(expected()))[KEY])
        assert "were rejected" in refused.message
        messages.check(refused.message)
        token.write_text("other\n")
        sample((await made.collect(expected()))[KEY])
        good[0] = "third"
        assert isinstance((await made.collect(expected()))[KEY], MetricsFailure)
        token.unlink()
        assert str(token) in failure((await made.collect(expected()))[KEY]).message
        messages.check(failure((await made.collect(expected()))[KEY]).message)
    assert SECRET not in caplog.text + repr(made.connection) + refused.message


async def test_tenant_and_prefix(stand: Stand, url: str) -> None:
    seen: list[Request] = []
    stand.before = lambda request, query: seen.append(request)
    stand.scrape(999.0, 1.0)
    async with collector(f"{url}/a/b/", stand, tenant={"value": "team-a"}) as made:
        sample((await made.collect(expected()))[KEY])
    assert {request.headers["x-scope-orgid"] for request in seen} == {"team-a"}
    assert all(request.path.startswith("/a/b/api/v1/query?") for request in seen)


async def test_the_environment_does_not_speak_for_a_connection(
    stand: Stand, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a proxy for downloads nor a .netrc with other credentials is used."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login wrong password wrong\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    seen: list[Request] = []
    stand.before = lambda request, query: seen.append(request)
    stand.scrape(999.0, 1.0)
    async with collector(url, stand) as made:
        sample((await made.collect(expected()))[KEY])
    assert all("authorization" not in request.headers for request in seen)


async def test_one_group_fails_and_others_do_not(
    stand: Stand, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triton_pipelines.autoscaling.metrics.queries.VALUE_CHARACTERS", 8)
    stand.scrape(999.0, 1.0, "a", namespace="one")
    stand.scrape(999.0, 1.0, "b", namespace="two")
    stand.before = lambda request, query: (
        Response(422, {}, b"{}") if query[0] == "{" and '"two"' in query else None
    )
    wanted = {
        ("one", "p"): ExpectedPods("one", {"a": ""}, MODELS, 60.0),
        ("two", "q"): ExpectedPods("two", {"b": ""}, MODELS, 60.0),
    }
    async with collector(url, stand) as made:
        said = await made.collect(wanted)
    sample(said["one", "p"])
    assert "HTTP 422" in failure(said["two", "q"]).message


async def test_without_pods_nothing_is_asked(stand: Stand, url: str, messages: Messages) -> None:
    async with collector(url, stand) as made:
        said = await made.collect({KEY: ExpectedPods("default", {}, MODELS, 60.0)})
    messages.check(failure(said[KEY]).message)
    assert stand.queries == []


class Absurd:
    """A stand-in of the client, whose answers are whatever a test draws."""

    def __init__(self, answers: list[QueryResult]) -> None:
        self.answers = answers

    def query(self, text: str, deadline: float) -> QueryResult:
        return self.answers.pop() if self.answers else QueryResult("scalar", [1000.0, "1000"])

    def close(self) -> None:
        """Nothing is open."""


METRIC = st.fixed_dictionaries(
    {},
    optional={
        "__name__": st.sampled_from(
            ["nv_inference_request_success", "nv_inference_exec_count", "up"]
        )
        | JSON,
        "namespace": st.just("default") | JSON,
        "pod": st.just("a") | JSON,
        "model": st.just("model") | JSON,
        FIGURE: st.sampled_from(["cpu", "memory", "gpu", "dcgm"]) | JSON,
    },
)
POINT = st.tuples(
    st.floats(990, 1000) | JSON, st.sampled_from(["1", "NaN", "-1", "+Inf", ""]) | JSON
).map(list)
ITEM = st.fixed_dictionaries(
    {"metric": METRIC | JSON},
    optional={"values": st.lists(POINT, max_size=3) | JSON, "value": POINT | JSON},
)
ANSWER = st.builds(
    QueryResult,
    st.sampled_from(["matrix", "vector", "scalar", "string"]),
    st.lists(ITEM | JSON, max_size=4),
)


@given(st.lists(ANSWER, max_size=6))
def test_whatever_is_answered_is_a_failure_and_never_an_exception(drawn: list[QueryResult]) -> None:
    async def collected() -> PipelineSample | MetricsFailure:
        clock = QueryResult("scalar", [1000.0, "1000"])
        async with PrometheusCollector(
            Connection(url="http://a"), clock=lambda: 1000.0, monotonic=lambda: 1000.0
        ) as made:
            made._client = Absurd([*drawn, clock])  # type: ignore[assignment]
            return (await made.collect(expected()))[KEY]

    # No drawn answer has every series of both models, so nothing may come of it.
    assert isinstance(asyncio.run(collected()), MetricsFailure)


def test_an_unknown_connection_is_said_with_the_known_ones(messages: Messages) -> None:
    messages.check(unknown_connection("x", ["b", "a"]).message)
    messages.check(unknown_connection("x", []).message)


def test_a_connection_of_other_namespaces_is_said_with_the_permitted_ones(
    messages: Messages,
) -> None:
    messages.check(forbidden_connection("x", "team-a", ["b", "a"]).message)
    messages.check(forbidden_connection("x", "team-a", []).message)


def many(number: int) -> dict[tuple[str, str], ExpectedPods]:
    return {
        ("default", f"p{index}"): ExpectedPods("default", {f"pod-{index}": ""}, MODELS, 60.0)
        for index in range(number)
    }


@pytest.mark.parametrize(
    ("pods", "scrapes_apart", "collections"),
    # Of eleven calls, 2 s apart: all of them, every second, and one per scrape interval.
    [(10, 10, 11), (20, 10, 6), (100, 10, 3), (100, 5, 6)],
)
async def test_many_pods_are_collected_less_often_but_once_per_scrape_interval(
    stand: Stand,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    pods: int,
    scrapes_apart: int,
    collections: int,
) -> None:
    monkeypatch.setattr(module, "_PODS_PER_SECOND", 5.0)
    wanted = many(pods)
    names = [f"pod-{index}" for index in range(pods)]
    for at in range(1000 - 2 * scrapes_apart, 1001, scrapes_apart):
        stand.scrape(float(at), float(at), *names)
    async with collector(url, stand) as made:
        for _ in range(11):
            found = await made.collect(wanted)
            assert all(isinstance(one, PipelineSample) for one in found.values())
            stand.now += 2.0
            if stand.now % scrapes_apart < 2.0:
                stand.scrape(stand.now - stand.now % scrapes_apart, stand.now, *names)
    assert stand.queries.count("time()") == collections


async def test_samples_between_two_collections_are_those_of_the_last(
    stand: Stand, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PODS_PER_SECOND", 5.0)
    wanted = many(50)
    names = [f"pod-{index}" for index in range(51)]
    for at in (990.0, 1000.0):
        stand.scrape(at, at, *names)
    async with collector(url, stand) as made:
        first = await made.collect(wanted)
        stand.now += 2.0
        again = await made.collect(wanted)
        assert all(again[key] is first[key] for key in wanted)
        # Another pod is collected at once, and so is everything after an error.
        more = await made.collect(many(51))
        assert isinstance(more["default", "p50"], PipelineSample)
        stand.before = lambda request, query: Response(500, {}, b"")
        stand.now += 10.0
        assert isinstance((await made.collect(many(51)))["default", "p0"], MetricsFailure)
        stand.before = lambda request, query: None
        stand.now += 2.0
        assert isinstance((await made.collect(many(51)))["default", "p0"], PipelineSample)
