"""Instances that share too few cores are reported as CPUBound, without any measured CPU usage.

The native tokenizer reports how long its instances were busy and how much CPU time they got.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bench.simulator.engine import LawInput, Record, Run, World
from bench.simulator.managed import Managed, limits_of
from bench.simulator.scenarios import DIRECT, DIRECT_LAW, TOKENIZER, WORLD
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.samples import PipelineSample, PodHistory
from triton_pipelines.autoscaling.types import ControlLaw, Verdict

MOST = 24
OTHER_CORES = WORLD.other_cores


class WithoutCpu(Managed):
    """The law where neither CPU usage nor a CPU limit is known."""

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        assert isinstance(view.sample, PipelineSample)
        pods = {name: PodHistory(history.scrapes) for name, history in view.sample.pods.items()}
        sample = replace(view.sample, pods=pods)
        decision = decide(self._limits, self.state, sample, view.counts, view.ready, view.now)
        self.state = decision.state
        self.decisions.append((view.now, decision))
        return {item.step: item.count for item in decision.steps}, str(decision.verdict)


def played(
    world: World, cores: float, load: float, *, reports_time: bool
) -> tuple[Record, WithoutCpu]:
    """Return a run whose load rises to ``load`` times what the cores can do."""
    step = replace(TOKENIZER, reports_time=reports_time)
    stations = (step, *world.stations[1:])
    world = replace(world, stations=stations, cores=cores + OTHER_CORES, high=MOST)
    law = DIRECT_LAW if world.scrape == DIRECT.scrape else ControlLaw()
    controller = WithoutCpu(world, limits=replace(limits_of(world, law), cpu_limit=None))
    full = cores / TOKENIZER.alpha
    return Run(
        world, [0.3 * full] * 60 + [load * full] * 200, controller, 1, 1
    ).result(), controller


@pytest.mark.parametrize("world", [DIRECT, WORLD], ids=["read directly", "scraped"])
@pytest.mark.parametrize("load", [1.1, 1.5, 3])
@pytest.mark.parametrize("cores", [0.5, 1, 2])
def test_growth_stops_when_busy_instances_wait_for_a_core(
    cores: float, load: float, world: World
) -> None:
    record, controller = played(world, cores, load, reports_time=True)
    assert record.instances[-1] <= 14
    assert record.verdicts[-1] == Verdict.CPU_BOUND
    (step,) = controller.decisions[-1][1].steps
    assert "busy instances share too few CPU cores" in step.reason


def test_a_step_that_reports_no_cpu_time_grows_to_its_maximum() -> None:
    record, _ = played(WORLD, 2, 1.5, reports_time=False)
    assert (record.instances[-1], record.verdicts[-1]) == (MOST, Verdict.TOKENIZER_BOUND)


def test_enough_cores_do_not_stop_growth() -> None:
    record, _ = played(WORLD, 20, 0.9, reports_time=True)
    assert record.instances[-1] >= 18
    assert Verdict.CPU_BOUND not in record.verdicts
