"""Test the SLO guard after a rollout.

It rolls back a revision that violates a p99 SLO which its predecessor met, and no other revision.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import START, World
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.latency_figures import (
    REQUESTS_MIN,
    WINDOW_SECONDS,
    Latencies,
    LatencySample,
    RevisionLatency,
    latency_of,
)
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.policies.slo_guard import WATCH_PERIOD, continue_watch
from triton_pipelines.controllers.pipeline.state import SloGuardState

SLO = {"p99Milliseconds": 100, "networkAndQueueBudgetMilliseconds": 20}
LIMIT = 80.0
KEPT, BROKEN = RevisionLatency(30.0, 40.0, 50.0), RevisionLatency(90.0, 120.0, 55.0)
RENDERED: dict[str, Any] = {}
CHANGE = {"tokenizer": {"maxLength": 64}}


def promised(**spec: Any) -> World:
    """A pipeline with a promise, whose first revision serves and is measured."""
    world = World(builders.document(slo=SLO, **spec), rendered=RENDERED).started()
    world.latencies = Latencies({world.deployed: KEPT})
    return world


def measured(
    world: World, new: RevisionLatency | None = None, missing: Mapping[str, str] | None = None
) -> World:
    """A change is rolled out; what its revision's latency is found to be. One pass later."""
    old = world.deployed
    world.change(**CHANGE).settle()
    figures = {old: KEPT} | ({world.deployed: new} if new is not None else {})
    world.latencies = Latencies(figures, missing or {})
    world.pass_time(15).step()
    return world


def events(world: World) -> list[tuple[str, str]]:
    return [
        (event.reason, event.note)
        for decided in world.log
        for event in (*decided.action_events, *decided.events)
    ]


@pytest.mark.proves("spec.slo.p99Milliseconds", "behaviour")
@pytest.mark.proves("spec.slo.networkAndQueueBudgetMilliseconds", "behaviour")
def test_a_revision_that_breaks_the_promise_is_taken_back_with_both_figures() -> None:
    world = promised()
    old = world.deployed
    measured(world, BROKEN)
    new = world.status["revision"]
    assert world.deployed == old != new
    assert world.reasons()["Ready"] == "False RolledBack"
    assert world.reasons()["Stalled"] == "True RolledBack"
    assert world.reasons()["Available"] == "True Serving"
    said = world.condition("Ready")["message"]
    assert said == (
        f"revision {new} serves, but violates the SLO that revision {old} met, and was "
        "rolled back to it: its p99 in the server was at least 90.0 ms for 75 s at 55 "
        f"requests/s per pod; the p99 of revision {old} was at most 40.0 ms at 50 "
        "requests/s per pod; spec.slo allows 80 ms; change the spec to retry"
    )
    world.settle()
    assert {pod.revision for pod in world.serving} == {old}
    assert world.status["servingRevision"] == old
    assert world.status["observedGeneration"] == 2
    assert world.state.rollout.verified == old
    left = world.think()
    assert left == Plan(requeue_after=left.requeue_after), "nothing more is to be done"


@pytest.mark.parametrize("strategy", ["Auto", "Surge", "NoSurge"])
def test_pods_serve_all_the_way_back(strategy: str) -> None:
    """Roll back like any other rollout, because both revisions serve.

    Auto uses a surge, and goes without one only if there is no room.
    """
    world = promised(rollout={"strategy": strategy}, replicas=2)
    measured(world, BROKEN)
    for _ in range(12):
        world.pass_time(5).control().run_pods()
        assert len(world.serving) >= (1 if strategy == "NoSurge" else 2)
        world.step()
    surge = world.deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    assert surge == (0 if strategy == "NoSurge" else 1)


def test_without_room_the_old_revision_comes_back_as_in_any_rollout() -> None:
    world = World(builders.document(slo=SLO), room=1, rendered=RENDERED).started()
    world.latencies = Latencies({world.deployed: KEPT})
    old = world.deployed
    measured(world, BROKEN).settle()
    assert {pod.revision for pod in world.serving} == {old}
    assert world.reasons()["Ready"] == "False RolledBack"


@pytest.mark.parametrize(
    ("new", "before"),
    [
        (None, KEPT),
        (BROKEN, None),
        (BROKEN, RevisionLatency(70.0, 85.0, 50.0)),
        (RevisionLatency(79.0, 500.0, 50.0), KEPT),
        (RevisionLatency(90.0, 120.0, 76.0), KEPT),
    ],
    ids=[
        "no figure of the new one",
        "none of the old one",
        "the old one broke it too",
        "not all the time",
        "another load",
    ],
)
def test_nothing_is_taken_back_where_in_doubt(
    new: RevisionLatency | None, before: RevisionLatency | None
) -> None:
    world = World(builders.document(slo=SLO), rendered=RENDERED).started()
    old = world.deployed
    world.latencies = Latencies({old: before} if before is not None else {})
    world.change(**CHANGE).settle()
    world.latencies = Latencies({world.deployed: new} if new is not None else {})
    for _ in range(25):
        world.pass_time(15).step()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.deployed == world.status["revision"] != old
    assert world.state.slo_guard == SloGuardState()
    assert [reason for reason, _ in events(world)].count("SLOWatched") == 1


def test_a_first_revision_is_not_watched() -> None:
    world = World(builders.document(slo=SLO), rendered=RENDERED).started()
    world.latencies = Latencies({world.deployed: BROKEN})
    world.pass_time(15).settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.state.slo_guard == SloGuardState()


def test_without_a_promise_nothing_is_watched() -> None:
    world = World(rendered=RENDERED).started()
    world.latencies = Latencies({world.deployed: KEPT})
    measured(world, BROKEN)
    assert world.reasons()["Ready"] == "True Succeeded"
    assert (
        "slo_guard"
        not in world.children["ConfigMap", names.live_name(world.name)]["data"][names.KEY_STATE]
    )


def test_after_five_minutes_it_stays_whatever_comes() -> None:
    world = measured(promised(), RevisionLatency(20.0, 30.0, 50.0))
    new = world.deployed
    world.pass_time(WATCH_PERIOD.total_seconds()).step()
    (ended,) = [note for reason, note in events(world) if reason == "SLOWatched"]
    assert "at most 30.0 ms at 50 requests/s per pod; spec.slo allows 80 ms" in ended
    assert "was 40.0 ms at 50" in ended
    world.latencies = Latencies({new: BROKEN})
    world.pass_time(15).settle()
    assert world.deployed == new
    assert world.reasons()["Ready"] == "True Succeeded"


def test_a_changed_spec_tries_it_again_and_watches_it_again() -> None:
    world = promised()
    old = world.deployed
    measured(world, BROKEN)
    new = world.status["revision"]
    world.settle()
    world.latencies = Latencies({old: KEPT})
    # The promise alone: the same revision, and it is no longer broken.
    world.change(slo={"p99Milliseconds": 200}).settle()
    world.latencies = Latencies({new: BROKEN})
    world.pass_time(15).settle()
    assert world.deployed == new
    assert world.reasons()["Ready"] == "True Succeeded"
    # The promise as it was, while it is still watched.
    world.change(slo=SLO).settle()
    assert world.deployed == old
    assert world.reasons()["Ready"] == "False RolledBack"


def test_once_taken_back_it_is_not_touched_again_for_the_same_spec() -> None:
    world = promised()
    old = world.deployed
    measured(world, BROKEN).settle()
    # What was gone back to is not watched itself, however slow it is now.
    world.latencies = Latencies({old: BROKEN})
    for _ in range(30):
        world.pass_time(15).control().run_pods().step()
    assert world.deployed == old
    assert world.reasons()["Ready"] == "False RolledBack"


def test_a_restarted_operator_continues_to_guard_the_slo() -> None:
    """Continue the guard after a restart, from the live ConfigMap alone.

    The pods of the predecessor are gone, and so is everything in memory.
    """
    world = promised()
    old = world.deployed
    world.change(**CHANGE).settle()
    watch = world.state.slo_guard
    assert (watch.revision, watch.predecessor, watch.before, watch.rate) == (
        world.deployed,
        old,
        40.0,
        50.0,
    )
    world.latencies = None
    world.pass_time(30).step()
    assert world.state.slo_guard == watch
    world.latencies = Latencies({world.deployed: BROKEN})
    world.pass_time(15).step()
    assert world.deployed == old


def test_a_change_during_the_watch_is_compared_with_the_last_good_one() -> None:
    world = promised()
    old = world.deployed
    world.change(**CHANGE).settle()
    middle = world.deployed
    world.change(tokenizer={"maxLength": 32}).settle()
    world.latencies = Latencies({world.deployed: BROKEN})
    world.pass_time(15).step()
    assert world.deployed == old != middle
    # Going back by hand is no rollout to watch.
    world.change(tokenizer={"maxLength": None}).settle()
    assert world.reasons()["Ready"] == "True Succeeded"
    assert world.state.slo_guard == SloGuardState()


def test_a_change_on_its_way_keeps_what_the_serving_revision_had() -> None:
    """Keep the predecessor's measured p99 when another change arrives.

    The predecessor's pods may be gone by then, as without room for a surge, but its p99 is still
    needed.
    """
    before = continue_watch(
        SloGuardState(), "b", "a", LIMIT, False, Latencies({"a": KEPT}), START
    ).watch
    assert (before.predecessor, before.before, before.rate) == ("a", KEPT.high, KEPT.rate)
    after = continue_watch(before, "c", "a", LIMIT, False, Latencies(), START).watch
    assert after == SloGuardState("c", "a", KEPT.high, KEPT.rate)


def test_an_autoscaler_of_the_pipeline_does_not_bring_a_broken_revision_back() -> None:
    """Do not retry a failed revision because an autoscaler changed spec.replicas.

    An HPA writes it through the scale subresource every few minutes, which is no request to try
    again.
    """
    world = promised()
    old = world.deployed
    measured(world, BROKEN).settle()
    for number in (2, 3, 2):
        world.change(replicas=number).settle()
        assert (world.deployed, world.reasons()["Ready"]) == (old, "False RolledBack")
        assert len(world.serving) == number, "the number itself is followed"
    world.change(rollout={"progressDeadlineSeconds": 901})
    world.step()
    assert world.deployed != old


def test_the_predecessor_is_kept_while_it_may_be_needed() -> None:
    world = promised(rollout={"revisionHistoryLimit": 1})
    old = world.deployed
    world.change(**CHANGE).settle().pass_time(15)
    world.change(tokenizer={"maxLength": 32}).settle()
    assert ("ConfigMap", names.revision_name(world.name, old)) in world.children
    world.pass_time(WATCH_PERIOD.total_seconds()).settle()
    assert ("ConfigMap", names.revision_name(world.name, old)) not in world.children


def test_an_unknown_p99_is_said_and_stays_said_until_pods_are_looked_at(messages: Messages) -> None:
    world = promised()
    world.latencies = Latencies({}, {world.deployed: "their metrics pages cannot be read"})
    world.step()
    (warning,) = [
        item for item in world.status["warnings"] if item["path"] == "spec.slo.p99Milliseconds"
    ]
    assert "SLO" in warning["message"]
    messages.check(warning["message"])
    world.latencies = None
    assert world.think().is_empty
    world.latencies = Latencies({world.deployed: KEPT})
    world.step()
    assert not [
        item for item in world.status["warnings"] if item["path"] == "spec.slo.p99Milliseconds"
    ]


# --- figures --------------------------------------------------------------------------------------


def looks(*p99: float | None, rate: float = 10.0, every: float = 15.0) -> list[LatencySample]:
    return [
        LatencySample(1000.0 + index * every, value, index * every * rate)
        for index, value in enumerate(p99)
    ]


def test_a_figure_needs_time_and_requests() -> None:
    assert latency_of([]) is None
    assert latency_of([looks(50, 50, 50, 50, 50)]) is None, "60 s are not 75"
    assert latency_of([looks(50, 60, 50, 50, 50, 50)]) == RevisionLatency(50, 60, 10.0)
    assert (
        latency_of([looks(50, 50, 50, 50, 50, 50, rate=(REQUESTS_MIN - 1) / WINDOW_SECONDS)])
        is None
    )
    assert latency_of([looks(50, 50, None, 50, 50, 50)]) is None, (
        "a pod that had a minute without requests"
    )
    begun_anew = [
        *looks(50, 50, 50),
        *(LatencySample(look.at + 45, look.p99, look.requests) for look in looks(50, 50, 50)),
    ]
    assert latency_of([begun_anew]) is None


def test_the_worst_pod_counts_and_one_with_little_load_does_not() -> None:
    slow, fast, idle = (
        looks(90, 90, 90, 90, 90, 95),
        looks(50, 50, 50, 50, 50, 50),
        looks(*[900.0] * 6, rate=1.0),
    )
    assert latency_of([fast, slow, idle]) == RevisionLatency(90, 95, 10.0)


def test_the_same_load_on_fewer_pods_is_no_fault_of_the_revision() -> None:
    """Do not blame the revision when the same load reaches fewer pods.

    Lowering spec.replicas with the same change, or scaling.pods meanwhile, gives each pod more
    work.
    """
    before, after = (
        latency_of([looks(*[50.0] * 6)] * 4),
        latency_of([looks(*[95.0] * 6, rate=40.0)]),
    )
    assert before is not None
    watch = SloGuardState("b", "a", before.high, before.rate, "2026-01-01T12:00:00Z")
    assert after is not None
    assert not continue_watch(
        watch, "b", "b", LIMIT, True, Latencies({"b": after}), START
    ).violation
    same = latency_of([looks(*[95.0] * 6)] * 4)
    assert same is not None
    assert continue_watch(watch, "b", "b", LIMIT, True, Latencies({"b": same}), START).violation


def test_the_first_slow_answers_are_forgotten() -> None:
    """Ignore the slow first responses of a new process.

    They stay in Triton's window for a minute; the probe after that no longer includes them.
    """
    found = latency_of([looks(500, 500, 500, 500, 40, 40)])
    assert found == RevisionLatency(40, 500, 10.0)


FIGURES = st.builds(
    lambda low, more, rate: RevisionLatency(low, low + more, rate),
    st.floats(0.1, 200),
    st.floats(0, 50),
    st.floats(10, 20),
)


@settings(max_examples=500)
@given(
    before=st.none() | FIGURES | FIGURES | FIGURES,
    after=st.none() | FIGURES | FIGURES | FIGURES,
    limit=st.none() | st.floats(50, 150) | st.floats(1, 200),
    waits=st.lists(st.floats(0, 120), max_size=8),
    proven=st.sampled_from(["a", "a", "a", "", "b"]),
)
def test_never_without_both_figures(
    before: RevisionLatency | None,
    after: RevisionLatency | None,
    limit: float | None,
    waits: list[float],
    proven: str,
) -> None:
    now, watch, broken = START, SloGuardState(), []
    known = Latencies(
        {name: figure for name, figure in (("a", before), ("b", after)) if figure is not None}
    )
    for index, wait in enumerate([0.0, 0.0, *waits]):
        now += dt.timedelta(seconds=wait)
        said = continue_watch(watch, "b", proven, limit, index > 0, known, now)
        # What is remembered is all that there is: a restart in between changes nothing.
        watch = SloGuardState.parse(said.watch.to_document())
        assert watch == said.watch
        broken += [said.violation] if said.violation else []
        proven = "b" if index > 0 else proven
    for text in broken:
        assert limit is not None
        assert before is not None
        assert after is not None
        assert before.high <= limit + 0.001
        assert limit < after.low
        assert f"{after.low:.1f} ms" in text
        assert f"{before.high:.1f} ms" in text


WRITTEN = (
    st.none() | st.text() | st.floats() | st.booleans() | st.just(10**400)
)  # which is JSON, but no float


@given(
    st.dictionaries(
        st.sampled_from(["revision", "predecessor", "before", "rate", "since"]), WRITTEN
    )
)
def test_an_edited_state_of_the_guard_has_no_effect(document: dict[str, Any]) -> None:
    watch = SloGuardState.parse(document)
    assert SloGuardState.parse(watch.to_document()) == (
        watch if watch.revision else SloGuardState()
    )
    continue_watch(watch, "b", "a", 100.0, True, None, START)


# --- suspended ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "on"),
    [({"suspend": "Enabled"}, {"suspend": "Disabled"}), ({"replicas": 0}, {"replicas": 1})],
)
def test_the_guard_pauses_without_desired_pods_and_starts_over_with_them(
    off: dict[str, Any], on: dict[str, Any]
) -> None:
    world = promised()
    old = world.deployed
    world.change(**CHANGE).settle()
    new = world.deployed
    world.pass_time(60).step()
    world.change(**off).settle()
    for _ in range(5):
        assert world.pass_time(WATCH_PERIOD.total_seconds()).step().requeue_after is None, (
            "there is nothing to look at"
        )
    assert [note for reason, note in events(world) if reason == "SLOWatched"] == [], (
        "it is not over"
    )
    assert world.state.slo_guard == SloGuardState(new, old, 40.0, 50.0)
    assert ("ConfigMap", names.revision_name(world.name, old)) in world.children, (
        "what is gone back to is kept"
    )
    world.latencies = None
    world.change(**on).settle()
    since = world.state.slo_guard.since
    assert since > world.deployment["metadata"]["creationTimestamp"]
    world.latencies = Latencies({new: BROKEN})
    world.pass_time(WATCH_PERIOD.total_seconds() - 30).step()
    assert world.deployed == old
    assert world.reasons()["Ready"] == "False RolledBack"


def test_suspension_does_not_try_a_revision_again_that_was_taken_back() -> None:
    """What it would be compared with may be forgotten by then, and it would serve unjudged."""
    world = measured(promised(), BROKEN).settle()
    old = world.deployed
    assert world.reasons()["Ready"] == "False RolledBack"
    world.latencies = None
    world.change(suspend="Enabled").settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "True Suspended")
    world.change(suspend="Disabled").settle()
    assert (world.deployed, world.reasons()["Ready"]) == (old, "False RolledBack")
