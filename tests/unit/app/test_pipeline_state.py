"""When scaling has something to say of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.api import names
from triton_pipelines.api.parse import parse
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.autoscaling.types import (
    CountChange,
    InstanceGrowth,
    ScalingDecision,
    ScalingState,
    StepState,
    Verdict,
)
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph import build
from triton_pipelines.controllers.autoscaler import pipeline_state
from triton_pipelines.controllers.autoscaler.pipeline_state import (
    PipelineScalingState,
    PodCounts,
    ReportedStatus,
    change_key,
    is_settling,
)
from triton_pipelines.controllers.autoscaler.scaling_state import with_reverted_growth
from triton_pipelines.controllers.autoscaler.stored_objects import configs_of_pod
from triton_pipelines.controllers.handover import ScalingIntent, ScalingView
from triton_pipelines.controllers.pipeline.snapshot import Pod

START = 1_000.0


def watched(said: str = "", slow: int = 60) -> PipelineScalingState:
    pipeline, findings = parse(builders.document(scaling={"windows": {"slowSeconds": slow}}))
    assert pipeline is not None, findings
    return PipelineScalingState(
        pipeline, build(pipeline, builders.options()), START, ReportedStatus.of(status(said))
    )


def status(bottleneck: str, instances: int = 1) -> dict[str, Any]:
    return (
        {
            "scaling": {"bottleneck": bottleneck},
            "steps": [{"name": "tokenizer", "instances": instances}],
        }
        if bottleneck
        else {}
    )


def seen(found: PipelineScalingState, instances: int) -> PipelineScalingState:
    """With one pod that has reported so many tokenizers."""
    found.pods = (Pod.of({"metadata": {"name": "p", "uid": "u"}, "status": {}}),)
    found.pod_counts = {"u": PodCounts(START, "", {"tokenizer": instances})}
    return found


def view(
    verdict: Verdict = Verdict.BALANCED,
    *,
    history: tuple[CountChange, ...] = (),
    mode: ScalingMode = ScalingMode.ACTIVE,
    message: str = "",
) -> ScalingView:
    return ScalingView(
        ScalingDecision((), verdict, ScalingState(history=history), notes=(message,)), mode
    )


@pytest.mark.parametrize("verdict", [Verdict.IDLE, Verdict.UNKNOWN, Verdict.OVERPROVISIONED])
def test_a_process_that_has_just_started_says_nothing_calm_against_its_predecessor(
    verdict: Verdict,
) -> None:
    assert is_settling(watched("Balanced"), verdict, START + 89)
    assert not is_settling(watched("Balanced"), verdict, START + 90)
    assert not is_settling(watched(verdict.value), verdict, START)


def test_what_is_not_calm_is_said_at_once_and_so_is_a_change() -> None:
    assert not is_settling(watched("Balanced"), Verdict.TOKENIZER_BOUND, START)
    acted = watched("Balanced")
    acted.output.intent = ScalingIntent({"tokenizer": 2}, "")
    assert not is_settling(acted, Verdict.IDLE, START)
    reported_now = watched("Balanced")
    reported_now.output.view = view()
    assert not is_settling(reported_now, Verdict.IDLE, START)


def test_counts_that_the_status_does_not_tell_of_are_said_at_once() -> None:
    assert is_settling(seen(watched("Balanced"), 1), Verdict.IDLE, START)
    assert not is_settling(seen(watched("Balanced"), 2), Verdict.IDLE, START)


def test_that_what_was_not_calm_is_over_is_said_at_once() -> None:
    assert not is_settling(watched("TokenizerBound"), Verdict.BALANCED, START)
    assert is_settling(watched("TokenizerBound"), Verdict.UNKNOWN, START)


def test_of_a_new_pipeline_everything_is_said_but_that_nothing_is_known_yet() -> None:
    assert not is_settling(watched(), Verdict.IDLE, START)
    assert is_settling(watched(), Verdict.UNKNOWN, START + 29)
    assert not is_settling(watched(), Verdict.UNKNOWN, START + 30)


ASKED = 'Prometheus connection "default"'


def metrics_said(reason: str, message: str) -> dict[str, Any]:
    """The status of a pipeline with a calm or unknown verdict, and this condition."""
    truth = "True" if reason == "Succeeded" else "False"
    said = {"type": "MetricsAvailable", "status": truth, "reason": reason, "message": message}
    return {**status("Balanced" if truth == "True" else "Unknown"), "conditions": [said]}


def started(reported_now: dict[str, Any], source: str = "") -> PipelineScalingState:
    """By a process that has just started, with this status and recorded source of metrics."""
    found = watched()
    found.reported = ReportedStatus.of(reported_now, source)
    return found


def test_a_new_trouble_with_the_same_metrics_is_held_back_for_the_first_looks_alone() -> None:
    found = started(metrics_said("Succeeded", "metrics of every ready pod are read"), ASKED)
    assert is_settling(found, Verdict.UNKNOWN, START + 29, "PrometheusError", ASKED)
    assert not is_settling(found, Verdict.UNKNOWN, START + 30, "PrometheusError", ASKED)
    assert is_settling(found, Verdict.UNKNOWN, START + 89, "", ASKED), (
        "without trouble there are only few looks"
    )


def test_a_reported_trouble_keeps_its_words_until_the_pods_have_been_read() -> None:
    """A slow page makes it "no complete response yet" for a moment, which would cost two writes."""
    found = started(metrics_said("MetricsMissing", "the metrics page returned HTTP 404"))
    assert is_settling(found, Verdict.UNKNOWN, START + 29, "MetricsMissing")
    assert not is_settling(found, Verdict.UNKNOWN, START + 30, "MetricsMissing")


def test_a_changed_metrics_source_is_reported_at_once() -> None:
    """What is said is of a source that nobody asks any longer."""
    found = started(
        metrics_said("Succeeded", "metrics of every ready pod are read"), "the pods themselves"
    )
    assert not is_settling(found, Verdict.UNKNOWN, START, "PrometheusError", ASKED)
    assert not is_settling(found, Verdict.IDLE, START, "", ASKED)
    assert is_settling(found, Verdict.IDLE, START, "", "the pods themselves")
    assert is_settling(found, Verdict.UNKNOWN, START, "MetricsMissing", ""), (
        "who was asked is not known"
    )


def test_a_problem_that_has_ended_is_reported_at_once() -> None:
    """The status would name an address that may be another one now."""
    found = started(
        metrics_said("PrometheusError", f"{ASKED} (http://10.99.0.1:1234): refuses the connection")
    )
    assert not is_settling(found, Verdict.BALANCED, START, "", "the pods themselves")
    assert not is_settling(found, Verdict.BALANCED, START, "", ASKED)
    assert is_settling(found, Verdict.BALANCED, START, "MetricsPartial", ASKED), (
        "another trouble waits for a second look"
    )


def test_digits_are_no_news_and_a_mode_a_verdict_or_an_action_is() -> None:
    before = change_key(view(message="0.4 requests/s"))
    assert change_key(view(message="0.5 requests/s")) == before
    assert change_key(view(mode=ScalingMode.ADVISORY)) != before
    assert change_key(view(Verdict.IDLE)) != before
    assert change_key(view(history=(CountChange(START, "tokenizer", 1, 2, "why"),))) != before


@pytest.mark.parametrize(
    ("before", "after", "judged"),
    [(2, 4, False), (1, 2, True)],
    ids=["the one taken back", "an earlier one"],
)
def test_an_increase_that_reached_no_pod_is_not_evaluated(
    before: int, after: int, *, judged: bool
) -> None:
    """Else it counts as diminishing returns, and growth is held for a quarter of an hour."""
    growth = InstanceGrowth(START, before, after, 200.0, 0.010)
    state = ScalingState({"tokenizer": StepState(desired=4, growth=growth)})
    found = with_reverted_growth(state, "tokenizer", 2, START + 5, "no space left").steps[
        "tokenizer"
    ]
    assert found.desired == 2
    assert found.growth == (growth if judged else None)


def test_the_config_map_of_a_revision_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each pod and tick."""
    parsed: list[Object | None] = []
    monkeypatch.setattr(pipeline_state, "configs_of", parsed.append)
    state, store = watched(), Store()
    namespace = state.pipeline.namespace

    def write(revision: str, version: int) -> None:
        metadata = {
            "name": names.revision_name(state.pipeline.name, revision),
            "namespace": namespace,
            "uid": revision,
            "resourceVersion": str(version),
        }
        store.put(CONFIG_MAPS, {"metadata": metadata, "data": {"version": str(version)}})

    def tick(*revisions: str) -> None:
        state.all_pods = tuple(
            Pod.of({"metadata": {"name": one, "uid": one, "labels": {names.LABEL_REVISION: one}}})
            for one in revisions
        )
        for pod in state.all_pods:
            configs_of_pod(store, state, pod)

    write("first", 1)
    for _ in range(3):
        tick("first", "first", "missing")
    assert len(parsed) == 2
    write("first", 2)
    tick("first", "first")
    assert [(item or {}).get("data") for item in parsed[2:]] == [{"version": "2"}]
    write("second", 3)
    tick("second")
    assert set(state.configs) == {"second"}
