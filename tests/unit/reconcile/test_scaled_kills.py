"""Kill the operator between any two writes of a scaling reconcile, and again in the next one.

The reconciles change the number of pods, their CPU or the owner of either. Nothing may fall that
was not meant to fall, and the recorded state must match the outcome.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.controllers.handover import ScalingIntent
from triton_pipelines.controllers.pipeline.live_config_map import KEY_MILLIS, KEY_REPLICAS, recorded
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

RENDERED: dict[str, Any] = {}
SPEC: dict[str, Any] = {
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
    "scaling": {"pods": {"min": 1, "max": 6}, "cpuResize": "InPlace"},
    "rollout": {"strategy": "Surge"},
}
# What serves before: pods, the CPU limit of each in thousandths of a core, tokenizers in each.
PODS, CPU, COUNT = 3, 2350, 2


@dataclass
class Scaled(World):
    """A world with what the running process wants; it is gone with it."""

    intent: ScalingIntent | None = field(default=None, kw_only=True)

    def observed(self) -> Snapshot:
        return replace(super().observed(), intent=self.intent)


def served() -> Scaled:
    """A pipeline that has been scaled for a while."""
    made = Scaled(builders.document(**SPEC), rendered=RENDERED)
    made.settle()
    made.intent = ScalingIntent({"tokenizer": COUNT}, "{}", pods=PODS, cpu=CPU)
    made.settle()
    made.intent = None
    return made


@pytest.fixture(scope="module")
def before() -> Scaled:
    return served()


def edited(made: Scaled) -> None:
    """Somebody takes pods away by an edit."""
    made.deployment["spec"]["replicas"] = 1
    entry = {
        "manager": "kubectl-edit",
        "operation": "Update",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
        "time": "2020-01-01T00:00:00Z",
    }
    made.deployment["metadata"]["managedFields"] = [entry]


def wants(counts: int = COUNT, pods: int = PODS, cpu: int = CPU) -> Callable[[Scaled], None]:
    def ask(made: Scaled) -> None:
        made.intent = ScalingIntent({"tokenizer": counts}, '{"steps": {}}', pods=pods, cpu=cpu)

    return ask


def rolling(made: Scaled) -> None:
    """More of everything in the middle of a rollout."""
    made.change(tokenizer={"maxLength": 64}).step()
    made.control().run_pods()
    wants(3, 5, 3350)(made)


def rolled(made: Scaled) -> None:
    """More of everything together with another revision."""
    made.change(tokenizer={"maxLength": 64})
    wants(3, 5, 3350)(made)


def deferred(made: Scaled) -> None:
    """More CPU, for which a node has no room, in the middle of a rollout."""
    rolling(made)
    made.kubelet[made.pods[0].name] = "Deferred"


# Each change, with the minimum from then on of: pods, CPU of a pod that served, and tokenizers.
CHANGES: dict[str, tuple[Callable[[Scaled], object], int, int, int]] = {
    "more pods": (wants(pods=5), PODS, CPU, COUNT),
    "fewer pods": (wants(pods=2), 2, CPU, COUNT),
    "more CPU": (wants(cpu=3350), PODS, CPU, COUNT),
    "less CPU": (wants(cpu=1850), PODS, 1850, COUNT),
    "more of everything": (wants(3, 5, 3350), PODS, CPU, COUNT),
    "less of everything": (wants(1, 1, 1350), 1, 1350, 1),
    "more in a rollout": (rolling, PODS, CPU, COUNT),
    "more with another revision": (rolled, PODS, CPU, COUNT),
    "more in a rollout on a node without room": (deferred, PODS, CPU, COUNT),
    "pods are the spec's again": (
        lambda made: made.change(replicas=4).document["spec"]["scaling"].pop("pods"),
        PODS,
        CPU,
        COUNT,
    ),
    "CPU is fixed again": (
        lambda made: made.change(scaling={"cpuResize": "Disabled"}),
        PODS,
        CPU,
        COUNT,
    ),
    "not active any more": (
        lambda made: made.change(scaling={"mode": "Disabled"}),
        PODS,
        CPU,
        COUNT,
    ),
    "somebody's edit is mended": (edited, 1, CPU, COUNT),
}


def limit_of(made: Scaled, name: str) -> int:
    (pod,) = [pod for pod in made.pods if pod.name == name]
    (limit,) = [
        item["resources"]["limits"]["cpu"]
        for item in made._raw(pod)["spec"]["containers"]
        if item["name"] == names.CONTAINER_SERVER
    ]
    return int(limit.removesuffix("m")) if limit.endswith("m") else 1000 * int(limit)


def check(made: Scaled, old: set[str], pods: int, cpu: int, count: int) -> None:
    """Assert that nothing is below its minimum.

    Checked are the number of pods, the CPU of pods that have served all the time, and the
    tokenizers with which a pod starts.
    """
    assert made.deployment["spec"]["replicas"] >= pods
    assert len(made.serving) >= pods
    for pod in made.pods:
        if pod.name in old and not pod.away:
            assert limit_of(made, pod.name) >= cpu, pod.name
    live = made.children["ConfigMap", names.live_name(made.name)]["data"]
    assert json.loads(live[names.KEY_COUNTS])["tokenizer"] >= count


def goes_on(made: Scaled, old: set[str], least: tuple[int, int, int], rounds: int = 60) -> None:
    """Reconcile until nothing is left to do, with a check after each actor's step.

    A value that has changed must never change back.
    """
    quiet, numbers, limits = 0, list[int](), dict[str, list[int]]()
    for _ in range(rounds):
        made.pass_time(5).control()
        check(made, old, *least)
        made.run_pods()
        decided = made.step()
        check(made, old, *least)
        numbers.append(made.deployment["spec"]["replicas"])
        for pod in made.pods:
            limits.setdefault(pod.name, []).append(limit_of(made, pod.name))
        quiet = quiet + 1 if decided.is_empty else 0
        if quiet > 3:
            for seen in (numbers, *limits.values()):
                assert seen in (sorted(seen), sorted(seen, reverse=True)), "back and forth"
            return
    raise AssertionError(f"no rest after {rounds} rounds: {made.told()}")


def kills(decided: Plan) -> int:
    """Writes of a pass, one of them the resize of a pod."""
    return (
        len(decided.apply)
        + len(decided.clear)
        + len(decided.delete)
        + (decided.resize is not None)
        + (decided.status is not None)
    )


@pytest.mark.parametrize("change", CHANGES)
def test_killed_between_any_two_writes(before: Scaled, change: str) -> None:
    happens, *floor = CHANGES[change]
    pods, cpu, count = floor
    first = 0
    ends = set()
    while True:
        made = copy.deepcopy(before)
        made.rendered = RENDERED
        old = {pod.name for pod in made.serving}
        happens(made)
        decided = made.step(writes=first)
        check(made, old, pods, cpu, count)
        done, wanted = made.deployment["spec"]["replicas"], made.intent
        # The next process knows only what is recorded. It is killed, too, at its second write.
        made.intent = None
        made.control().step(writes=1)
        goes_on(made, old, (pods, cpu, count))
        found = recorded(made.children["ConfigMap", names.live_name(made.name)]["data"])
        if done != PODS and change != "somebody's edit is mended":
            assert made.deployment["spec"]["replicas"] == done, "what was carried out is taken back"
        if KEY_REPLICAS in found:
            assert found[KEY_REPLICAS] == made.deployment["spec"]["replicas"] == len(made.serving)
        if KEY_MILLIS in found and not made.kubelet:
            assert {limit_of(made, pod.name) for pod in made.pods} == {found[KEY_MILLIS]}
        assert made.told()["Ready"] == "True Succeeded"
        ends.add((found.get(KEY_REPLICAS), found.get(KEY_MILLIS)))
        if wanted is not None:
            assert ends <= {(PODS, CPU), (wanted.pods, wanted.cpu)}, (
                "all of what was wanted or nothing"
            )
        first += 1
        if first > kills(decided):
            break
    assert len(ends) == (2 if change.startswith(("more", "less", "fewer")) else 1), ends
