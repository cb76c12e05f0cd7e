"""Test pods that are recreated because of other content than recorded or a dead model process.

The planner decides on hand-made pods.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import START, World
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadReport, ReportSource, ResolvedSources
from triton_pipelines.controllers.pipeline.pod_problems import problem_of
from triton_pipelines.controllers.pipeline.policies.pod_repair import (
    REPAIR_INTERVAL,
    REPAIR_INTERVAL_MAX,
    PodRepairs,
    choose_repairs,
)
from triton_pipelines.controllers.pipeline.probe_record import (
    DEAD_KEPT,
    DEAD_PROBES,
    DEAD_PROBES_ALONE,
    DEAD_WINDOW,
    HUNG_PROBES,
    HUNG_PROBES_ALONE,
    LOST_PROBES,
    LOST_PROBES_ALONE,
    MISSES_ALLOWED,
    Probe,
)
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.controllers.pipeline.state import PodRepairState

GONE = "Stub process 'tokenizer_0_0' is not healthy."
FULL = "the pod's shared memory (/dev/shm) is full"
REVISION = "0123456789"
RESOLVED = {REVISION: {"model": {"revision": "first"}}}


def pod(
    name: str,
    loaded: str = "first",
    *,
    ready: bool = True,
    age: int = 0,
    leaving: bool = False,
    device: str = "Healthy",
    restarts: int = 0,
) -> Pod:
    """A pod that loaded this, with a GPU of this health."""
    source = ReportSource(step="model", uri="s3://models/model.onnx", resolved_revision=loaded)
    message = LoadReport(ok=True, revision=REVISION, sources=(source,)).to_json()
    metadata = {
        "name": name,
        "uid": name,
        "labels": {names.LABEL_REVISION: REVISION},
        "creationTimestamp": f"2026-01-01T00:00:{30 - age:02}Z",
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return Pod.of(
        {
            "metadata": metadata,
            "status": {
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "containerStatuses": [
                    {
                        "name": names.CONTAINER_SERVER,
                        "restartCount": restarts,
                        "allocatedResourcesStatus": [
                            {
                                "name": "nvidia.com/gpu",
                                "resources": [{"resourceID": "GPU-1", "health": device}],
                            }
                        ],
                    }
                ],
                "initContainerStatuses": [
                    {
                        "name": names.CONTAINER_LOADER,
                        "state": {"terminated": {"exitCode": 0, "message": message}},
                    }
                ],
            },
        }
    )


def healed(
    *pods: Pod,
    probes: dict[str, Probe] | None = None,
    state: PodRepairState | None = None,
    now: dt.datetime = START,
) -> list[str]:
    """Names of the pods that go."""
    return [one.name for one in decide(*pods, probes=probes, state=state, now=now).pods]


def decide(
    *pods: Pod,
    probes: dict[str, Probe] | None = None,
    state: PodRepairState | None = None,
    now: dt.datetime = START,
    probe_age_max: dt.timedelta = dt.timedelta(days=2),
) -> PodRepairs:
    resolved = ResolvedSources.model_validate(RESOLVED).root
    observed = Snapshot({"metadata": {"name": "sentiment"}}, {}, pods, probes or {})
    return choose_repairs(observed, resolved, state or PodRepairState(), now, probe_age_max)


# --- content --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "going"),
    [
        ([pod("a"), pod("b")], []),
        # Found right after its loader ended: nobody was served by it.
        ([pod("a"), pod("b", "second", ready=False)], ["b"]),
        ([pod("a"), pod("b", "second")], ["b"]),
        ([pod("a", ready=False), pod("b", "second", ready=False)], ["b"]),
        # The last one that serves is not taken away for it.
        ([pod("b", "second")], []),
        ([pod("a", ready=False), pod("b", "second")], []),
        ([pod("a", leaving=True), pod("b", "second")], []),
        # But two contents never stand behind one Service.
        ([pod("b", "second", age=2), pod("c", "third", age=1)], ["c"]),
        ([pod("b", "second", age=1), pod("c", "third", age=2)], ["b"]),
        ([pod("b", "second", age=2), pod("c", "second", age=1)], []),
        ([pod("b", "second", leaving=True), pod("a")], []),
    ],
)
def test_what_was_recorded_first_stays(pods: list[Pod], going: list[str]) -> None:
    assert healed(*pods) == going


def test_the_step_and_the_event_say_what_was_loaded(messages: Messages) -> None:
    found = decide(pod("a"), pod("b", "second"))
    assert "revision second" in found.diverged["model"]
    assert (
        "the first pod of this pipeline revision loaded revision first" in found.diverged["model"]
    )
    (event,) = found.events
    assert event.warning
    assert event.reason == "SourceChanged"
    assert "models/model.onnx" in event.note
    messages.check(event.note)


def test_pods_that_start_side_by_side_while_the_source_changes_end_with_one_content() -> None:
    world = World(builders.document(replicas=3))
    world.settle()
    assert len({one.loaded for one in world.serving}) == 1
    assert len(world.serving) == 3
    assert any(deletion.kind == "Pod" for decided in world.log for deletion in decided.delete)
    recorded = json.loads(
        world.children["ConfigMap", names.live_name(world.name)]["data"][names.KEY_RESOLVED]
    )
    assert {one.loaded for one in world.serving} == {recorded[world.deployed]["model"]["revision"]}


# --- dead processes -------------------------------------------------------------------------------


def looks(*said: str, seconds: float = 0.0, ago: float = 0.0) -> Probe:
    """Return the probe result of a pod after several probes.

    Args:
        *said: Outcome of each probe: ``dead``, ``good``, ``late``, ``wrong``, ``full`` (shared
            memory), ``hung`` (late, and no inference completed since the last probe), ``busy``
            (late, but some completed), ``unknown`` (late before the state was read) or ``unready``
            (the pod takes no traffic).
        seconds: Seconds between two probes; by default 15 with a hung one, which takes ten, else 5.
        ago: Seconds since the last probe.
    """
    seconds = seconds or (15.0 if {"hung", "busy"} & set(said) else 5.0)
    known: Probe | None = None
    for index, what in enumerate(said):
        at = START - dt.timedelta(seconds=ago + seconds * (len(said) - 1 - index))
        look = {
            "good": Probe(at, True, inference_error=""),
            "late": Probe(at, True, error="no response before the deadline"),
            "full": Probe(at, True, inference_error=FULL, shared_memory_full=True),
            "hung": Probe(at, True, error="no response before the deadline", completed=7),
            "busy": Probe(at, True, error="no response before the deadline", completed=100 + index),
            "unknown": Probe(at, False, error="no response before the deadline"),
            "unready": Probe(at, True),
            "wrong": Probe(at, True, inference_error="output LABEL is missing"),
            "dead": Probe(at, True, inference_error=GONE, dead=(at,)),
        }[what]
        known = look.merged_with(known)
    assert known is not None
    return known


GOOD = looks("good")
DEAD = looks(*["dead"] * DEAD_PROBES_ALONE)


def check_replacement(
    said: list[str], alone: bool, beside: bool, probed: Pod | None = None
) -> PodRepairs:
    """Check whether a pod with these probe outcomes is replaced.

    Args:
        said: outcomes of the probes.
        alone: whether it is replaced if no other pod serves.
        beside: whether it is replaced if another pod serves.
        probed: pod "a" with other properties than usual.

    Returns:
        The repairs if another pod serves.
    """
    one, broken = probed or pod("a"), looks(*said)
    assert healed(one, probes={"a": broken}) == (["a"] if alone else [])
    found = decide(one, pod("b"), probes={"a": broken, "b": GOOD})
    assert [replaced.name for replaced in found.pods] == (["a"] if beside else [])
    return found


@pytest.mark.parametrize(
    ("said", "alone", "beside"),
    [
        (["dead"] * (DEAD_PROBES - 1), False, False),
        (["dead"] * DEAD_PROBES, False, True),
        (["dead"] * (DEAD_PROBES_ALONE - 1), False, True),
        (["dead"] * DEAD_PROBES_ALONE, True, True),
        # One of several processes: most looks find another one.
        (["dead", "good", "dead", "good", "good", "dead"], False, True),
        (["dead", "good"] * DEAD_PROBES_ALONE + ["dead"], False, True),
        # The last look says that it is well again.
        (["dead"] * DEAD_PROBES_ALONE + ["good"], False, False),
        (["dead", "dead", "late", "dead", "dead", "late", "dead", "dead"], True, True),
        # Wrong answers are no dead process.
        (["wrong"] * 20, False, False),
    ],
)
def test_a_dead_process_costs_the_pod_its_life_sooner_where_another_serves(
    said: list[str], alone: bool, beside: bool
) -> None:
    check_replacement(said, alone, beside)


def test_another_pod_that_is_no_better_is_no_reason() -> None:
    broken = looks(*["dead"] * DEAD_PROBES)
    for other in (looks("wrong"), looks("late"), broken):
        assert healed(pod("a"), pod("b"), probes={"a": broken, "b": other}) == []
    assert healed(pod("a"), pod("b"), probes={"a": broken}) == []
    assert healed(pod("a"), pod("b", leaving=True), probes={"a": broken, "b": GOOD}) == []
    assert healed(pod("a"), pod("b", ready=False), probes={"a": broken, "b": GOOD}) == []


def test_one_pod_at_a_time_and_no_more_often_than_the_interval() -> None:
    broken = looks(*["dead"] * DEAD_PROBES_ALONE)
    first = decide(pod("a"), pod("b"), probes={"a": broken, "b": broken})
    assert [one.name for one in first.pods] == ["a"]
    (event,) = first.events
    assert (event.warning, event.reason) == (True, "BackendProcessDied")
    assert GONE in event.note
    state = PodRepairState.parse(first.state.to_document())
    assert healed(pod("b"), probes={"b": broken}, state=state) == []
    assert (
        healed(
            pod("b"),
            probes={"b": broken},
            state=state,
            now=START + REPAIR_INTERVAL - dt.timedelta(seconds=1),
        )
        == []
    )
    assert healed(pod("b"), probes={"b": broken}, state=state, now=START + REPAIR_INTERVAL) == ["b"]


def test_repairs_in_a_row_are_further_and_further_apart() -> None:
    state, now, gaps = PodRepairState(), START, []
    last = START
    while now < START + dt.timedelta(hours=20):
        found = decide(pod("a"), probes={"a": DEAD}, state=state, now=now)
        if found.pods:
            gaps.append(now - last)
            last = now
        state = PodRepairState.parse(found.state.to_document())
        now += dt.timedelta(minutes=1)
    minutes = [gap.total_seconds() / 60 for gap in gaps]
    assert minutes == [0, 10, 20, 40, 80, 160, 240, 240, 240]
    # Long after the last one, the intervals are short again.
    later = now + 2 * REPAIR_INTERVAL_MAX
    assert decide(pod("a"), probes={"a": DEAD}, state=state, now=later).state.count == 1


def test_an_old_probe_says_nothing_about_its_pod() -> None:
    old = dt.timedelta(minutes=2)
    just = decide(pod("a"), probes={"a": DEAD}, now=START + old, probe_age_max=old)
    assert [one.name for one in just.pods] == ["a"]
    late = START + old + dt.timedelta(seconds=1)
    assert decide(pod("a"), probes={"a": DEAD}, now=late, probe_age_max=old).pods == ()
    # Nor does it say that another pod serves.
    beside = looks(*["dead"] * DEAD_PROBES)
    aged = {"a": beside, "b": looks("good", ago=300)}
    assert decide(pod("a"), pod("b"), probes=aged, probe_age_max=old).pods == ()


def test_a_pod_that_missed_the_last_probe_may_have_the_same_fault() -> None:
    broken = looks(*["dead"] * DEAD_PROBES)
    missed = looks("good", "late")
    assert missed.is_healthy
    assert healed(pod("a"), pod("b"), probes={"a": broken, "b": missed}) == []


def test_a_pod_that_only_the_status_reports_as_healthy_is_no_reason() -> None:
    """It may have got the same fault while no operator was running."""
    broken, reported = looks(*["dead"] * DEAD_PROBES), replace(GOOD, is_reported=True)
    assert healed(pod("a"), pod("b"), probes={"a": broken, "b": reported}) == []
    assert healed(pod("a"), pod("b"), probes={"a": broken, "b": GOOD}) == ["a"]


def test_a_restart_of_the_server_forgets_its_answers() -> None:
    starting = Probe(START, False).merged_with(GOOD)
    assert not starting.has_answered
    assert looks("good", "wrong").has_answered


def test_a_clock_that_is_set_back_does_not_delay_a_repair() -> None:
    broken = looks(*["dead"] * DEAD_PROBES_ALONE)
    later = START + dt.timedelta(days=1)
    state = decide(pod("a"), probes={"a": broken}, now=later).state
    assert healed(pod("b"), probes={"b": broken}, state=state) == ["b"]


def test_looks_that_met_a_dead_process_are_forgotten_in_time_and_kept_in_bounds() -> None:
    old = looks("dead", "dead", ago=DEAD_WINDOW.total_seconds())
    assert Probe(START, True, inference_error=GONE, dead=(START,)).merged_with(old).dead == (START,)
    assert len(looks(*["dead"] * 3 * DEAD_KEPT).dead) == DEAD_KEPT


@pytest.mark.parametrize("text", ["yesterday", "2026-01-01", "12"])
def test_a_time_that_cannot_be_read_is_forgotten(text: str) -> None:
    assert PodRepairState.parse({"repaired": text}) == PodRepairState()


# --- lost devices ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "alone", "beside"),
    [
        (["good"] + ["wrong"] * (LOST_PROBES - 1), False, False),
        (["good"] + ["wrong"] * LOST_PROBES, False, True),
        (["good"] + ["wrong"] * LOST_PROBES_ALONE, True, True),
        # The example never worked: its failure says nothing about the device.
        (["wrong"] * 20, False, False),
        (["good", *["hung"] * HUNG_PROBES], True, True),
        # A device that is reported as unhealthy, and works: there may be no other one.
        (["good"] * 20, False, False),
        (["wrong", "good"], False, False),
    ],
)
def test_a_pod_whose_device_is_unhealthy_is_replaced_once_inferences_fail(
    said: list[str], alone: bool, beside: bool
) -> None:
    found = check_replacement(said, alone, beside, pod("a", device="Unhealthy"))
    assert [event.reason for event in found.events] == (["DeviceUnhealthy"] if beside else [])
    for event in found.events:
        assert "its device nvidia.com/gpu GPU-1 is unhealthy" in event.note


@pytest.mark.parametrize("health", ["Healthy", "Unknown"])
def test_wrong_outputs_of_a_pod_whose_device_is_not_unhealthy_are_no_reason(health: str) -> None:
    probes = {"a": looks(*["wrong"] * 20), "b": GOOD}
    assert healed(pod("a", device=health), pod("b"), probes=probes) == []


@pytest.mark.parametrize("health", ["Healthy", "Unhealthy"])
def test_the_status_names_an_unhealthy_device(health: str) -> None:
    problem = problem_of(pod("a", device=health), looks("wrong"), "nvidia.com/gpu", None)
    assert problem is not None
    assert problem.message.endswith(
        "; the kubelet reports its device nvidia.com/gpu GPU-1 as unhealthy"
    ) is (health == "Unhealthy")


# --- full shared memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "alone", "beside"),
    [
        (["full"] * (DEAD_PROBES - 1), False, False),
        (["full"] * DEAD_PROBES, False, True),
        (["full"] * (DEAD_PROBES_ALONE - 1), False, True),
        (["full"] * DEAD_PROBES_ALONE, True, True),
        (["full"] * DEAD_PROBES_ALONE + ["good"], False, False),
        (["full"] * DEAD_PROBES_ALONE + ["wrong"], False, False),
    ],
)
def test_a_pod_with_full_shared_memory_is_replaced_sooner_where_another_serves(
    said: list[str], alone: bool, beside: bool
) -> None:
    found = check_replacement(said, alone, beside)
    assert [event.reason for event in found.events] == (["SharedMemoryFull"] if beside else [])


@pytest.mark.parametrize(("restarts", "going"), [(0, []), (1, ["a"])])
def test_a_pod_that_does_not_start_again_because_its_shared_memory_is_full_is_replaced(
    restarts: int, going: list[str]
) -> None:
    full = Probe(START, False, shared_memory_full=True)
    assert healed(pod("a", ready=False, restarts=restarts), probes={"a": full}) == going
    other = Probe(START, False)
    assert healed(pod("a", ready=False, restarts=restarts), probes={"a": other}) == []


# --- hung models ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "alone", "beside"),
    [
        (["good"] + ["hung"] * (HUNG_PROBES - 1), False, False),
        (["good"] + ["hung"] * HUNG_PROBES, False, True),
        (["good"] + ["hung"] * (HUNG_PROBES_ALONE - 1), False, True),
        (["good"] + ["hung"] * HUNG_PROBES_ALONE, True, True),
        # Every inference takes longer than a probe waits: slow, or still warming up.
        (["hung"] * 3 * HUNG_PROBES_ALONE, False, False),
        # Clients of a busy pod get responses, though the probe waits behind them.
        (["busy"] * 3 * HUNG_PROBES_ALONE, False, False),
        # One inference completed, and the count begins again.
        (["good"] + ["hung"] * (HUNG_PROBES - 1) + ["busy", "hung"], False, False),
        (["good"] + ["hung"] * HUNG_PROBES_ALONE + ["good"], False, False),
        # Without statistics nothing tells a hung pod from a busy one.
        (["good"] + ["hung"] * (HUNG_PROBES - 1) + ["late"], False, False),
        (["late"] * 3 * HUNG_PROBES_ALONE, False, False),
        # The count since shows that it completed nothing meanwhile either.
        (["good"] + ["hung"] * (HUNG_PROBES - 1) + ["late", "hung"], False, True),
        (["good"] + ["hung"] * (HUNG_PROBES - 1) + ["unknown", "hung"], False, True),
        (["good"] + ["hung"] * (HUNG_PROBES - 1) + ["unready", "hung"], False, True),
        (["good"] + ["hung"] * (HUNG_PROBES - 1) + ["late", "busy", "hung"], False, False),
    ],
)
def test_a_pod_that_completes_no_inference_is_replaced_sooner_where_another_serves(
    said: list[str], alone: bool, beside: bool
) -> None:
    check_replacement(said, alone, beside)


def test_probes_that_a_full_queue_rejects_at_once_count_every_ten_seconds() -> None:
    said = ["good"] + ["hung"] * 9  # every five seconds: five of them count
    for number, is_hung in ((9, False), (10, True)):
        broken = looks(*said[:number], seconds=5)
        assert healed(pod("a"), pod("b"), probes={"a": broken, "b": GOOD}) == (
            ["a"] if is_hung else []
        )


def test_a_restart_of_the_container_forgets_what_was_counted_before() -> None:
    hung = looks("good", *["hung"] * HUNG_PROBES)
    later = START + dt.timedelta(seconds=15)
    again = Probe(later, True, error="no response", completed=7, server_restarts=1)
    found = again.merged_with(hung)
    assert (found.consecutive_hung, found.has_answered) == (1, False)


def test_a_hung_pod_is_named_and_its_repair_says_why() -> None:
    broken = looks("good", *["hung"] * HUNG_PROBES)
    found = decide(pod("a"), pod("b"), probes={"a": broken, "b": GOOD})
    (event,) = found.events
    assert (event.warning, event.reason) == (True, "ModelHung")
    assert f"{HUNG_PROBES} consecutive test inferences received no response" in event.note
    assert found.state.repaired
    assert not broken.is_healthy
    assert broken.inference_error is not None
    assert "a model hangs" in broken.inference_error


def test_a_pod_that_hangs_counts_as_healthy_for_as_long_as_a_busy_one() -> None:
    assert looks("good", *["hung"] * MISSES_ALLOWED).is_healthy
    assert not looks("good", *["hung"] * (MISSES_ALLOWED + 1)).is_healthy


# --- restarts of the operator ---------------------------------------------------------------------

ANSWERED = PodRepairState(answered={"a": 0})


@pytest.mark.parametrize(
    ("said", "alone", "beside"),
    [
        (["hung"] * (HUNG_PROBES - 1), False, False),
        (["hung"] * HUNG_PROBES, False, True),
        (["hung"] * (HUNG_PROBES_ALONE - 1), False, True),
        (["hung"] * HUNG_PROBES_ALONE, True, True),
        (["unknown", *["hung"] * HUNG_PROBES], False, True),
        (["busy"] * 3 * HUNG_PROBES_ALONE, False, False),
        (["late"] * 3 * HUNG_PROBES_ALONE, False, False),
    ],
)
def test_a_model_that_hung_before_the_operator_restarted_is_detected(
    said: list[str], alone: bool, beside: bool
) -> None:
    broken = looks(*said)
    assert not broken.has_answered
    assert healed(pod("a"), probes={"a": broken}, state=ANSWERED) == (["a"] if alone else [])
    probes = {"a": broken, "b": GOOD}
    assert healed(pod("a"), pod("b"), probes=probes, state=ANSWERED) == (["a"] if beside else [])


def test_a_response_is_recorded_and_outlasts_the_operator() -> None:
    written = decide(pod("a"), pod("b"), probes={"a": GOOD, "b": looks("hung")}).state
    assert written == ANSWERED
    state = PodRepairState.parse(json.loads(json.dumps(written.to_document())))
    # Before the first probe of the new process, while it counts, and after a repair.
    for probes in ({}, {"a": looks("hung"), "b": GOOD}, {"a": looks("unknown")}):
        assert "a" in decide(pod("a"), pod("b"), probes=probes, state=state).state.answered
    hung = {"a": looks(*["hung"] * HUNG_PROBES), "b": GOOD}
    after = decide(pod("a"), pod("b"), probes=hung, state=state).state
    assert (after.answered, after.count) == ({"a": 0, "b": 0}, 1)


def test_a_response_of_another_container_or_pod_is_not_recorded() -> None:
    hung = looks(*["hung"] * HUNG_PROBES_ALONE)
    restarted = replace(hung, server_restarts=1)
    found = decide(pod("a", restarts=1), probes={"a": restarted}, state=ANSWERED)
    assert (found.pods, found.state.answered) == ((), {})
    assert decide(pod("a", restarts=1), state=ANSWERED).state.answered == {}
    # The container may have been restarted since the probe.
    assert decide(pod("a", restarts=1), probes={"a": GOOD}).state.answered == {"a": 0}
    assert decide(pod("b"), probes={"b": hung}, state=ANSWERED).state.answered == {}


def test_a_response_counts_until_the_ensemble_is_unloaded() -> None:
    unloaded = decide(pod("a"), probes={"a": Probe(START, False)}, state=ANSWERED)
    assert unloaded.state.answered == {}


def test_entries_that_cannot_be_read_are_forgotten() -> None:
    document = {"answered": {"a": 0, "b": "0", "c": None, "d": True, "e": [1]}, "repaired": "x"}
    assert PodRepairState.parse(document) == ANSWERED
    assert PodRepairState.parse({"answered": ["a"]}) == PodRepairState()


def test_a_restart_of_the_operator_forgets_no_response() -> None:
    world = World(builders.document(replicas=2)).started()
    answered = {f"uid-{one.name}": 0 for one in world.serving}
    assert len(answered) == 2
    assert world.state.pod_repair.answered == answered
    world.forget()
    assert world.step().is_empty
    assert world.state.pod_repair.answered == answered
