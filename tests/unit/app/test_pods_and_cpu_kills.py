"""Kill the operator repeatedly while it scales pods and CPU: nothing may fall under load.

Later Prometheus and a pod fail, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import builders
from tests.support.loops import Loop, loop_of
from tests.support.worlds import World
from tests.unit.app.test_pods_and_cpu import FULL, SPEC, flow
from triton_pipelines.api import names
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, MetricsProblem
from triton_pipelines.controllers.pipeline.live_config_map import KEY_MILLIS, KEY_REPLICAS, recorded

RENDERED: dict[str, Any] = {}
IN_PLACE: dict[str, Any] = {
    "tokenizer": {"instances": {"initial": 1, "max": 3}},
    "scaling": {"cpuResize": "InPlace", "pods": {"max": 2}},
}


class Killed(Exception):
    """The operator's process ends here."""


class Life:
    """Operators in sequence, each killed before one of its writes; pods and cluster continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: World, after: Iterator[int]) -> None:
        self.monkeypatch, self.world, self.after, self.deaths = monkeypatch, world, after, 0
        self.take, self.resize = world.take, world.resize
        monkeypatch.setattr(world, "take", lambda item: self.write(self.take, item))
        monkeypatch.setattr(
            world,
            "resize",
            lambda decided: (
                self.write(self.resize, decided) if decided.resize is not None else None
            ),
        )
        self.loop: Loop = loop_of(monkeypatch, world)
        self.left = next(after)
        self.seen: dict[str, int] = {}

    def write(self, what: Any, argument: Any) -> None:
        """A write, or the end."""
        if self.left == 0:
            raise Killed
        self.left -= 1
        what(argument)

    def reborn(self) -> None:
        """Another process, which knows what is recorded and what pods say."""
        self.deaths += 1
        before, self.left = self.loop, next(self.after)
        state = before.scaler._states.get(before.key)
        if state is not None:
            state.cancel_changes()
        self.loop = loop_of(self.monkeypatch, self.world)
        self.loop.tritons.counts |= before.tritons.counts
        self.loop.collector.says = before.collector.says

    async def run(self, seconds: float, **load: Any) -> None:
        """Run under one load and check after every tick; without a load, samples stay as they are.

        A process lives for at least a minute.
        """
        for tick in range(int(seconds / 5)):
            if load:
                flow(
                    self.loop,
                    cores=0.2 + self.loop.counts["tokenizer"] if self.now()["cpu"] else 0.3,
                    **load,
                )
            self.world.control().run_pods()
            try:
                await self.loop.tick(5.0)
                await self.loop.settle()
                if tick % 6 == 5:
                    self.loop.reconcile()  # as each resync does it
            except Killed:
                self.reborn()
            self.look()

    def limits(self) -> dict[str, int]:
        """The CPU limit of each pod, thousandths of a core."""
        found = {
            pod.name: self.world._raw(pod)["spec"]["containers"][0]["resources"]["limits"]["cpu"]
            for pod in self.world.pods
            if not pod.away
        }
        return {
            pod: int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)
            for pod, cpu in found.items()
        }

    def now(self) -> dict[str, int]:
        """All that must not fall: what is recorded, what is asked for, and what pods have."""
        live = self.loop.live
        known, tritons = recorded(live), self.loop.tritons.counts
        numbers = {
            "pods": known.get(KEY_REPLICAS, 0),
            "cpu": known.get(KEY_MILLIS, 0),
            "deployment": self.world.deployment["spec"]["replicas"],
        }
        numbers["count"] = json.loads(live[names.KEY_COUNTS])["tokenizer"]
        pods = {f"cpu of {pod}": cpu for pod, cpu in self.limits().items()}
        return (
            numbers
            | pods
            | {f"count of {pod}": count for pod, count in tritons.items() if pod in self.limits()}
        )

    def look(self) -> None:
        """Nothing is less than it was."""
        found = self.now()
        fallen = {
            key: (before, found[key])
            for key, before in self.seen.items()
            if key in found and found[key] < before
        }
        assert not fallen, f"after {self.deaths} deaths"
        self.seen = found


@pytest.mark.parametrize("after", [(0, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("spec", [SPEC, IN_PLACE], ids=["pods", "CPU and pods"])
async def test_killed_over_and_over_nothing_falls(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], after: tuple[int, ...]
) -> None:
    document = builders.document(**builders.merge(SPEC, spec))
    life = Life(monkeypatch, World(document, rendered=RENDERED).started(), itertools.cycle(after))
    start = life.now()
    await life.run(300, **FULL)
    assert life.deaths > 1
    reached = life.now()
    assert {"pods", "deployment", "count", *(["cpu"] if spec is IN_PLACE else [])} <= {
        key for key in start if reached[key] > start[key]
    }
    # Prometheus goes, and a pod.
    life.loop.collector.says = MetricsFailure(MetricsProblem.MISSING, "gone")
    await life.run(30)
    del life.world.pods[0]
    await life.run(60)
    kept = life.now()
    assert [kept[key] for key in start if " of " not in key] == [
        reached[key] for key in start if " of " not in key
    ]
    assert len(life.world.serving) == kept["deployment"] == kept["pods"]
    assert set(life.limits().values()) == {kept["cpu"]} or spec is SPEC
