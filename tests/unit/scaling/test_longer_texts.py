"""Test texts that become longer while the load rises.

Each request costs more, and more instances are the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bench.simulator.engine import Incident, LawInput, Run, World
from bench.simulator.managed import Managed
from bench.simulator.scenarios import DIRECT, DIRECT_LAW, TOKENIZER, WORLD
from bench.simulator.station import StationSpec
from triton_pipelines.autoscaling.metrics.samples import PipelineSample, PodHistory
from triton_pipelines.autoscaling.types import ControlLaw

ONSET, SECONDS = 60, 200
BEFORE, LOAD = 50.0, 150.0  # requests/s
LONGEST = 5.0


NATIVE = replace(TOKENIZER, reports_time=True)


class Unmeasured(Managed):
    """The law without the pods' CPU usage, as where pods are read directly."""

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        assert isinstance(view.sample, PipelineSample)
        pods = {name: PodHistory(history.scrapes) for name, history in view.sample.pods.items()}
        return super().wanted(replace(view, sample=replace(view.sample, pods=pods)))


@pytest.mark.parametrize(
    "controller", [Managed, Unmeasured], ids=["CPU measured", "CPU not measured"]
)
@pytest.mark.parametrize("step", [TOKENIZER, NATIVE], ids=["Python", "native"])
@pytest.mark.parametrize("world", [DIRECT, WORLD], ids=["read directly", "scraped"])
@pytest.mark.parametrize(("every", "factor"), [(3, 1.15), (5, 1.3), (10, 1.5)])
def test_growth_follows_them(
    every: int, factor: float, world: World, step: StationSpec, controller: type[Managed]
) -> None:
    longer = [min(LONGEST, factor**number) for number in range(1, 60 // every + 1)]
    happenings = tuple(
        Incident(ONSET + 2.0 + every * number, "service", each, TOKENIZER.name)
        for number, each in enumerate(longer)
    )
    stations = (step, *world.stations[1:])
    world = replace(world, stations=stations, cores=60.0, high=40, happenings=happenings)
    law = DIRECT_LAW if world.scrape == DIRECT.scrape else ControlLaw()
    record = Run(
        world, [BEFORE] * ONSET + [LOAD] * (SECONDS - ONSET), controller(world, law), 1, 1
    ).result()
    assert record.instances[-1] > LOAD * TOKENIZER.alpha * LONGEST  # what the load needs in the end
    assert "CPUBound" not in record.verdicts
