"""Test that Auto applies what a tuning run has verified.

It does so for exactly the spec that was measured, and never goes back and forth.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.measuredworld import (
    BOTH,
    BROKEN_FIGURE,
    BUCKETED,
    FIGURES,
    KEPT_FIGURE,
    PADDING,
    PLAN,
    SLO,
    broken,
    choices,
    config,
    padding,
    result,
    run,
    taken_and_broken,
    world_of,
)
from tests.support.messages import Messages
from tests.support.tuningworld import Tuning
from tests.support.worlds import BAD, STIFF
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.latency_figures import Latencies
from triton_pipelines.controllers.pipeline.padding_choices import (
    KEPT_PADDINGS,
    VerifiedPadding,
    updated,
)

LATER = "2030-01-01T00:00:00Z"


def test_padding_alone_is_rolled_out_for_the_spec_that_was_measured_and_the_patch_names_none(
    messages: Messages,
) -> None:
    world = world_of()
    first, generation = world.deployed, world.document["metadata"]["generation"]
    run(world, PADDING)
    tuning = world.status["tuning"]
    assert "patch" not in tuning
    assert tuning["gainPercent"] == 31
    assert "128" in tuning["message"]
    messages.check(tuning["message"])
    world.settle()
    assert world.deployed != first
    assert world.reasons()["Ready"] == "True Succeeded"
    assert '"tritonpipe.buckets"' in config(world).replace("'", '"')
    chosen, reason = padding(world)
    assert chosen == "Bucketed"
    assert reason == (
        "measured: Bucketed 32, 128 sustains 1.31 times the load of Fixed within 80 ms (tuning "
        f"run 'monday'; {FIGURES})"
    )
    assert world.document["metadata"]["generation"] == generation + 1, (
        "the request; the spec is the user's"
    )
    assert not [
        item for item in world.status.get("warnings", []) if "TuningStale" in item["message"]
    ]
    left = world.think()
    assert left.is_empty


def test_the_same_revision_as_the_padding_written_out() -> None:
    world = run(world_of(), PADDING).settle()
    written = world_of(tokenizer=BUCKETED)
    assert world.deployed == written.deployed


def test_other_knobs_of_the_patch_are_the_users_and_padding_waits_for_them(
    messages: Messages,
) -> None:
    world = world_of()
    first = world.deployed
    run(world, BOTH).settle()
    tuning = world.status["tuning"]
    assert yaml.safe_load(tuning["patch"]) == {"spec": {"model": {"maxBatchSize": 16}}}
    messages.check(tuning["message"])
    assert world.deployed == first
    assert padding(world)[1].endswith(
        "; tuning run 'monday' measured Bucketed 32, 128 to be better together with the patch "
        "in status.tuning; Auto uses it once the patch is applied"
    )
    world.change(**yaml.safe_load(tuning["patch"])["spec"]).settle()
    assert padding(world)[0] == "Bucketed"
    assert (
        "Bucketed 32, 128 with the settings of the patch sustains 1.31 times the load of Fixed "
        "with the previous settings within 80 ms"
    ) in padding(world)[1]
    assert not [
        item for item in world.status.get("warnings", []) if "TuningStale" in item["message"]
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"maxBatchSize": 8}},
        {"model": {"dynamicBatching": {"maxQueueDelayMicroseconds": 500}}},
        {"model": {"source": {"uri": "s3://models/sentiment/other.plan"}}},
        {"model": {"instances": {"count": 2}}},
        {"tokenizer": {"maxLength": 64}},
        {"tokenizer": {"instances": {"max": 3}}},
        {"server": {"gpu": {"count": 2}}},
        {"server": {"resources": {"limits": {"cpu": "7"}}}},
    ],
)
def test_another_spec_uses_the_rule_and_names_the_measurement(change: dict[str, Any]) -> None:
    world = run(world_of(), PADDING).settle()
    taken = world.deployed
    world.change(**change).settle()
    assert padding(world)[0] == "Fixed"
    assert padding(world)[1].endswith(
        "tuning run 'monday' measured Bucketed 32, 128 to be better, but with other settings; "
        "change spec.tuning.request to measure the current ones"
    )
    back = {part: dict.fromkeys(fields) for part, fields in change.items()}
    back.setdefault("model", {}).update(
        {key: builders.SENTIMENT["spec"]["model"].get(key) for key in change.get("model", {})}
    )
    back.setdefault("tokenizer", {}).update(
        {
            key: builders.SENTIMENT["spec"]["tokenizer"].get(key)
            for key in change.get("tokenizer", {})
        }
    )
    world.change(**back).settle()
    assert world.deployed == taken, "the former spec has its own choice again"


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 2},
        {"slo": {"p99Milliseconds": 200}},
        {"rollout": {"drainSeconds": 7}},
        {"server": {"priorityClassName": "high", "service": {"annotations": {"a": "b"}}}},
        {"scaling": {"mode": "Disabled"}},
        {"health": {"periodSeconds": 60}},
        {"tuning": None},
    ],
)
def test_what_no_cost_depends_on_leaves_the_choice_in_force(change: dict[str, Any]) -> None:
    world = run(world_of(), PADDING).settle()
    world.change(**change).settle()
    assert padding(world)[0] == "Bucketed"


def test_a_padding_that_is_written_wins_and_keeps_its_patch() -> None:
    world = run(world_of(), PADDING).settle()
    world.change(tokenizer={"padding": "Longest"}).settle()
    assert padding(world)[0] == "Longest"
    run(world, PADDING, "tuesday").settle()
    assert yaml.safe_load(world.status["tuning"]["patch"]) == PADDING
    assert padding(world)[0] == "Longest"
    assert [item["request"] for item in choices(world).values()] == ["monday"]


def test_what_the_loader_refused_goes_before_what_was_measured() -> None:
    world = Tuning(
        builders.document(
            model={
                "platform": "python",
                "source": None,
                "python": {"code": {"inline": "class TritonPythonModel: pass"}},
            },
            slo=SLO,
        )
    )
    world.settle()
    assert padding(world)[0] == "Ragged"
    # Ragged, proven by hand for the file of an ONNX step, and refused since.
    onnx = Tuning(builders.document(slo=SLO)).settle()
    key = names.KEY_MEASURED_PADDING
    run(onnx, {"spec": {"tokenizer": {"padding": "Longest"}}})
    (fingerprint,) = choices(onnx)
    onnx.children["ConfigMap", names.live_name(onnx.name)]["data"][key] = json.dumps(
        {fingerprint: {"mode": "Ragged", "figures": "measured: Ragged", "at": LATER}}
    )
    onnx.step()
    assert padding(onnx) == ("Ragged", "measured: Ragged")
    onnx.verdicts[onnx.deployed] = STIFF
    onnx.pods = []
    onnx.settle()
    assert padding(onnx)[0] == "Fixed"
    assert "axis 1 of input_ids is 128" in padding(onnx)[1]
    assert onnx.reasons()["Ready"] == "True Succeeded"


def test_a_revision_that_breaks_the_promise_bars_its_choice_and_the_rule_serves_again() -> None:
    world = world_of()
    first = world.deployed
    world.latencies = Latencies({first: KEPT_FIGURE})
    run(world, PADDING)
    world.settle()
    taken = world.deployed
    assert taken != first
    broken(world, first)
    assert world.deployed == first
    world.settle()
    assert world.reasons()["Ready"] == "True Succeeded", (
        "nobody has to change the spec for what Auto did"
    )
    chosen, reason = padding(world)
    assert chosen == "Fixed"
    assert (
        "; Bucketed 32, 128, which tuning run 'monday' measured, was reverted: its p99 in "
        "the server was at least 90.0 ms"
    ) in reason
    for change in ({"replicas": 2}, {"rollout": {"drainSeconds": 9}}, {"tuning": None}):
        world.change(**change).settle()
        assert padding(world)[0] == "Fixed", change
    for _ in range(30):
        world.pass_time(60).control().run_pods().step()
        assert world.deployed != taken


def test_a_patch_that_breaks_the_promise_stays_taken_back_until_the_spec_changes() -> None:
    world = world_of()
    first = world.deployed
    world.latencies = Latencies({first: KEPT_FIGURE})
    run(world, BOTH)
    world.change(model={"maxBatchSize": 16}).settle()
    assert padding(world)[0] == "Bucketed"
    broken(world, first)
    deployed = set()
    for _ in range(30):
        world.pass_time(15).control().run_pods().step()
        deployed.add(world.deployed)
    assert deployed == {first}, "no third revision that nobody has measured"
    assert world.reasons()["Ready"] == "False RolledBack"
    assert (
        "; Bucketed 32, 128, which tuning run 'monday' measured, was reverted: its p99"
        in padding(world)[1]
    )
    world.change(rollout={"drainSeconds": 9}).settle()
    assert (padding(world)[0], world.reasons()["Ready"]) == ("Fixed", "True Succeeded"), (
        "another spec, and its padding by rule"
    )


def test_another_run_may_prove_what_was_taken_back() -> None:
    world = world_of()
    _, taken = taken_and_broken(world)
    run(world, PADDING, "tuesday").settle()
    assert world.deployed == taken
    assert "'tuesday'" in padding(world)[1]


def test_without_room_a_failed_rollout_of_a_choice_is_gone_back_from() -> None:
    world = world_of(rollout={"strategy": "NoSurge"})
    first = world.deployed
    run(world, PADDING).step()
    world.step()
    taken = world.status["revision"]
    assert taken != first
    world.verdicts[taken] = BAD
    world.settle()
    assert (world.deployed, world.reasons()["Ready"]) == (first, "True Succeeded")
    assert "was reverted" in padding(world)[1]


def test_a_lost_live_config_map_loses_nothing_of_what_is_deployed() -> None:
    world = run(world_of(), PADDING).settle()
    taken, known = world.deployed, choices(world)
    del world.children["ConfigMap", names.live_name(world.name)]
    world.settle()
    assert world.deployed == taken
    assert choices(world) == known
    assert padding(world)[0] == "Bucketed"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"FINGERPRINT": 3}',
        '{"FINGERPRINT": {"mode": "Auto"}}',
        '{"FINGERPRINT": {"mode": "Fixed", "buckets": [true]}}',
    ],
)
def test_an_invalid_record_is_restored_from_the_status_or_dropped(
    text: str,
) -> None:
    world = run(world_of(), PADDING)
    known = choices(world)
    (fingerprint,) = known
    data = world.children["ConfigMap", names.live_name(world.name)]["data"]
    data[names.KEY_MEASURED_PADDING] = text.replace("FINGERPRINT", fingerprint)
    world.step()
    assert choices(world) == known
    (reported,) = world.status["padding"]["measured"]
    data = world.children["ConfigMap", names.live_name(world.name)]["data"]
    data[names.KEY_MEASURED_PADDING] = text.replace("FINGERPRINT", fingerprint)
    world.document["status"]["padding"]["measured"] = [
        {**reported, "padding": "Auto"},
        {"padding": "Fixed"},
        "nonsense",
    ]
    for (kind, name), item in list(world.children.items()):
        if kind == "ConfigMap" and name != names.live_name(world.name):
            item["data"].pop(names.KEY_MEASURED_PADDING, None)
    world.settle()
    assert (padding(world)[0], world.reasons()["Ready"]) == ("Fixed", "True Succeeded")


def test_a_record_that_the_pipeline_cannot_have_is_not_taken() -> None:
    profiles = [{"min": 1, "max": 512, "maxBatchSize": 64}]
    world = run(world_of(model=PLAN | {"lengths": {"profiles": profiles}}), PADDING)
    (fingerprint,) = choices(world)
    data = {fingerprint: {"mode": "Ragged", "figures": "by hand", "at": LATER}}
    world.children["ConfigMap", names.live_name(world.name)]["data"][names.KEY_MEASURED_PADDING] = (
        json.dumps(data)
    )
    world.settle()
    assert (padding(world)[0], world.reasons()["Ready"]) == ("Fixed", "True Succeeded")


def test_the_next_run_measures_with_the_choice_in_force_and_keeps_it_with_other_knobs() -> None:
    world = run(world_of(), PADDING).settle()
    taken = world.deployed
    world.pass_time(400).settle()
    world.change(tuning={"request": "tuesday"})
    world.step()
    (reported,) = world.ours("ConfigMap")
    tokenizer = json.loads(reported["data"]["pipeline.json"])["spec"]["tokenizer"]
    assert (tokenizer["padding"], tokenizer["buckets"]) == ("Bucketed", [32, 128, 512])
    world.canary_ready().job_ends(json.dumps(result({"spec": {"model": {"maxBatchSize": 16}}}, 7)))
    world.run_pods_raw = []
    world.settle()
    assert world.deployed == taken
    world.change(model={"maxBatchSize": 16}).settle()
    chosen, reason = padding(world)
    assert chosen == "Bucketed"
    assert reason.startswith(
        "measured: Bucketed 32, 128, 512 stays; with the settings of the patch it sustains 1.07 "
        "times its previous load within 80 ms"
    )


def test_without_a_proven_gain_nothing_is_taken() -> None:
    world = world_of()
    first = world.deployed
    run(world, PADDING, gain=0).settle()
    assert (world.deployed, choices(world)) == (first, {})
    assert yaml.safe_load(world.status["tuning"]["patch"]) == PADDING


@pytest.mark.parametrize("spec", [{}, {"model": PLAN}, {"tokenizer": BUCKETED, "model": PLAN}])
def test_without_a_choice_nothing_is_written_for_it(spec: dict[str, Any]) -> None:
    world = Tuning(builders.document(**spec)).settle()
    maps = [item["data"] for (kind, _), item in world.children.items() if kind == "ConfigMap"]
    assert all(names.KEY_MEASURED_PADDING not in data for data in maps)
    built = builders.built(**spec)
    assert world.deployed == built.render().name
    assert (
        world.children["ConfigMap", names.revision_name(world.name, world.deployed)]["data"]
        == built.render().data
    )


ACTIONS = [
    "padding",
    "both",
    "patch",
    "unpatch",
    "other",
    "same",
    "write",
    "auto",
    "break",
    "bad",
    "lose",
    "late",
    "kill",
]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=8))
def test_whatever_happens_it_comes_to_rest(steps: list[str]) -> None:
    """Settling is a fixpoint: no history makes revisions alternate."""
    world = world_of(rollout={"strategy": "Surge"})
    for number, step in enumerate(steps):
        if step in ("padding", "both") and world.reasons().get("Ready") == "True Succeeded":
            world.latencies = None
            world.change(tuning={"request": f"run {number}"})
            world.settle()
            if world.ours("Deployment"):
                world.canary_ready().job_ends(
                    json.dumps(result(PADDING if step == "padding" else BOTH))
                )
            world.run_pods_raw = []
        elif step in ("patch", "unpatch"):
            world.change(model={"maxBatchSize": 16 if step == "patch" else None})
        elif step in ("other", "same"):
            world.change(tokenizer={"maxLength": 64 if step == "other" else None})
        elif step in ("write", "auto"):
            world.change(tokenizer={"padding": "Fixed" if step == "write" else None})
        elif step == "break":
            before = world.state.slo_guard.predecessor or None
            world.latencies = (
                Latencies({before: KEPT_FIGURE, world.deployed: BROKEN_FIGURE}) if before else None
            )
        elif step == "bad":
            world.verdicts[world.deployed] = BAD
        elif step == "lose":
            world.children.pop(("ConfigMap", names.live_name(world.name)), None)
        elif step == "late":
            world.pass_time(400)
        else:
            world.step(2)
        world.settle()
    world.change(tuning=None).settle()
    deployed = world.deployed
    for _ in range(5):
        world.pass_time(120).control().run_pods().step()
    assert world.deployed == deployed
    assert len(choices(world)) <= KEPT_PADDINGS


@given(
    st.dictionaries(
        st.sampled_from(["mode", "buckets", "figures", "request", "at", "revert_reason"]),
        st.none() | st.text() | st.lists(st.integers() | st.booleans()),
    )
)
def test_a_choice_is_read_as_it_was_written_or_not_at_all(document: dict[str, Any]) -> None:
    read = VerifiedPadding.parse(document)
    if read is not None:
        assert VerifiedPadding.parse(read.to_document()) == read


@given(st.integers(0, 20), st.integers(0, 19))
def test_the_newest_are_remembered_and_the_one_in_force(count: int, current: int) -> None:
    known = {
        f"{number:016x}": VerifiedPadding.parse(
            {"mode": "Fixed", "at": f"2026-01-01T00:{number:02}:00Z"}
        )
        for number in range(count)
    }
    left = updated(
        {key: choice for key, choice in known.items() if choice is not None},
        {},
        f"{current:016x}",
        "",
    )
    assert len(left) == min(count, KEPT_PADDINGS)
    assert (f"{current:016x}" in left) is (current < count)
    newest = sorted(known, reverse=True)[: KEPT_PADDINGS - 1]
    assert set(newest) <= set(left)
