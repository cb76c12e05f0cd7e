"""Scenarios: a world, a trace and what goes wrong in it, by name; the laws to compare. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bench.simulator import traces
from bench.simulator.baselines import BusyHpa, CpuHpa, Fixed, Kpa, QueueRatio
from bench.simulator.engine import Controller, Incident, Record, Run, World
from bench.simulator.managed import Managed
from bench.simulator.measures import Measures, measure
from bench.simulator.station import StationSpec
from triton_pipelines.autoscaling.types import ControlLaw

# One instance of the tokenizer takes 10 ms per request. The GPU step takes 4 ms plus 0.8 ms per
# request of a batch (autoscaling.md §6.1).
TOKENIZER = StationSpec("tokenizer", alpha=0.010, spread=0.1, scaled=True)
GPU = StationSpec("model", alpha=0.0008, fixed=0.004, max_batch=64, cpu=False)
WORLD = World((TOKENIZER, GPU))
# Pods are read directly, and instances start fast.
DIRECT = replace(WORLD, scrape=2.0, tick_after=0.1, growth=0.2)
DIRECT_LAW = ControlLaw(fast=6.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A trace in a world.

    ``since`` is the second at which the load steps up. ``service`` holds the changes of the
    tokenizer's service time, as pairs of second and factor.
    """

    name: str
    rates: Callable[[int], traces.Rates]
    world: World = WORLD
    since: int | None = None
    service: tuple[tuple[int, float], ...] = field(default=())
    most: int | None = None

    def oracle(self, seed: int) -> list[int]:
        """Return the oracle's instances for each second."""
        rates = self.rates(seed)
        seconds = [TOKENIZER.alpha] * len(rates)
        for begin, factor in self.service:
            seconds[begin:] = [TOKENIZER.alpha * factor] * (len(rates) - begin)
        return traces.oracle(rates, seconds, pods=self.world.pods, most=self.most)


def _slower(name: str, factor: float) -> Scenario:
    changes = ((500, factor), (1000, 1.0))
    world = replace(
        WORLD,
        happenings=tuple(
            Incident(float(at), "service", value, "tokenizer") for at, value in changes
        ),
    )
    return Scenario(name, traces.flat, world, since=500, service=changes)


CHOSEN: Mapping[str, Scenario] = {
    name: Scenario(name, rates, since=300 if name == "step" else None)
    for name, rates in traces.CHOSEN.items()
}
HELD_OUT: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("shifted", traces.shifted),
        Scenario("pareto", traces.pareto),
        Scenario("double", traces.double),
        _slower("texts x1.5", 1.5),
        _slower("texts x1.8", 1.8),
        Scenario(
            "cap drop",
            traces.ramp,
            replace(WORLD, happenings=(Incident(600.0, "cores", 6.0),)),
            most=9,
        ),
        Scenario(
            "outage", traces.sine, replace(WORLD, happenings=(Incident(620.0, "outage", 300.0),))
        ),
        Scenario(
            "pod restart",
            traces.sine,
            replace(
                WORLD, pods=2, cores=6.0, happenings=(Incident(700.0, "restart", 20.0, pod=1),)
            ),
        ),
        Scenario(
            "GPU-bound",
            traces.step,
            replace(WORLD, stations=(TOKENIZER, replace(GPU, alpha=0.0019))),
        ),
        Scenario("CPU-capped", traces.step, replace(WORLD, cores=6.0), most=5),
    )
}
SCENARIOS: Mapping[str, Scenario] = {**CHOSEN, **HELD_OUT}

LAWS: Mapping[str, Callable[[World], Controller]] = {
    "managed": lambda world: Managed(world),
    "CPU-HPA": CpuHpa,
    "queue:compute": QueueRatio,
    "busy HPA": BusyHpa,
    "KPA-like": Kpa,
    "fixed 7": lambda world: Fixed(world, 7),
    "fixed cap": lambda world: Fixed(world, world.high),
}


def directly(scenario: Scenario) -> Scenario:
    """The same with pods read every 2 s and instances that start in 0.2 s."""
    fast = replace(
        scenario.world, scrape=DIRECT.scrape, tick_after=DIRECT.tick_after, growth=DIRECT.growth
    )
    return replace(scenario, world=fast)


def play(scenario: Scenario, law: str, seed: int) -> tuple[Record, Measures]:
    """Simulate one run.

    ``law`` is one of ``LAWS``, or ``managed direct`` or ``KPA-like direct`` for pods that are read
    directly.
    """
    if law.endswith(" direct"):
        scenario, law = directly(scenario), law.removesuffix(" direct")
    world = scenario.world
    quick = law == "managed" and world.scrape == DIRECT.scrape
    controller = Managed(world, DIRECT_LAW) if quick else LAWS[law](world)
    initial = int(law.split()[1].replace("cap", str(world.high))) if law.startswith("fixed") else 2
    record = Run(world, scenario.rates(seed), controller, seed, initial).result()
    return record, measure(record, scenario.oracle(seed), scenario.since)
