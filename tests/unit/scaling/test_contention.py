"""Instances that share too few cores, told from the cost of a request alone: no CPU usage is measured, and the grant per instance is too small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flows import NOW, TOKENIZER, Flow, counts, limits, names, sample
from triton_pipelines.metrics.samples import PodHistory, Sample
from triton_pipelines.scaling.decide import decide
from triton_pipelines.scaling.types import Decision, Growth, Law, Memory, StepMemory, Verdict
from triton_pipelines.tuning.simulator.engine import Happening, Record, Run, View, World
from triton_pipelines.tuning.simulator.managed import Managed, limits_of
from triton_pipelines.tuning.simulator.scenarios import DIRECT, DIRECT_LAW, WORLD
from triton_pipelines.tuning.simulator.scenarios import TOKENIZER as STATION

ONSET, SECONDS = 60, 240
MOST = 24
SERVICE = STATION.alpha


class Blind(Managed):
    """The law without the pods' CPU usage, and with a CPU limit that says nothing of what the node has left."""

    def wanted(self, view: View) -> tuple[Mapping[str, int], str]:
        assert isinstance(view.sample, Sample)
        unmeasured = {name: PodHistory(history.scrapes) for name, history in view.sample.pods.items()}
        return super().wanted(replace(view, sample=replace(view.sample, pods=unmeasured), cores=2.6))


def played(cores: float, load: float, world: World = WORLD, *happenings: Happening, seconds: int = SECONDS) -> tuple[Record, Blind]:
    """``load``: times what the cores carry, from the onset on."""
    law = DIRECT_LAW if world is DIRECT else Law()
    world = replace(world, cores=cores, other_cores=0.0, high=MOST, happenings=happenings)
    bounds = limits_of(world, law)
    controller = Blind(world, limits=replace(bounds, steps=tuple(replace(step, cores=0.1) for step in bounds.steps)))
    carried = cores / SERVICE
    rates = [0.3 * min(carried, 1 / SERVICE)] * ONSET + [load * carried] * (seconds - ONSET)
    return Run(world, rates, controller, 1, 1).result(), controller


@pytest.mark.parametrize("world", [DIRECT, WORLD], ids=["read directly", "scraped"])
@pytest.mark.parametrize("cores", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("load", [1.1, 1.5, 3.0])
def test_growth_that_makes_requests_dearer_ends_and_is_named(world: World, cores: float, load: float) -> None:
    record, controller = played(cores, load, world)
    first = record.actions[0][2]
    assert max(record.instances) <= first + 2  # all of them cost 10 ms when it was decided
    assert [at for at, _, _ in record.actions if at > ONSET + 60] == []
    assert set(record.verdicts[ONSET + 60 :]) == {"CPUBound"}
    assert controller.memory.steps[STATION.name].doubted


@settings(max_examples=8, deadline=None)
@given(st.floats(0.3, 4.0), st.floats(1.1, 4.0), st.sampled_from([DIRECT, WORLD]))
def test_whatever_the_cores_and_the_load_counts_come_to_rest(cores: float, load: float, world: World) -> None:
    record, _ = played(cores, load, world, seconds=180)
    assert [at for at, _, _ in record.actions if at > ONSET + 90] == []
    assert max(record.instances) < MOST or record.actions[0][2] >= MOST - 3


@pytest.mark.parametrize("factor", [1.8, 3.0])
def test_longer_texts_are_not_taken_for_it(factor: float) -> None:
    world = replace(WORLD, cores=40.0, high=MOST, happenings=(Happening(120.0, "service", factor, STATION.name),))
    record = Run(world, [300.0] * 300, Managed(world), 1, 5).result()
    assert record.instances[200] >= 300 * SERVICE * factor
    assert record.late[-60:] == [0] * 60
    assert "CPUBound" not in record.verdicts


def test_more_cores_let_it_grow_again() -> None:
    """Whoever gives the node its cores back need not tell."""
    record, _ = played(1.0, 3.0, WORLD, Happening(150.0, "cores", 20.0), seconds=400)
    assert max(record.instances[:150]) <= 8
    assert record.late[-30:] == [0] * 30


GREW = Growth(NOW - 60, 2, 4, 200.0, 0.010, cost=0.010)


def judged(cost: float, *, doubted: bool = False, rate: float = 200.0, growth: Growth = GREW) -> Decision:
    seen = sample(Flow(rate=rate, service=cost, pending=3000, growth=40))
    memory = Memory({TOKENIZER: StepMemory(desired=growth.after, service=cost, growth=growth, last_up=growth.at, doubted=doubted)}, actuation=1.0)
    return decide(limits(high=40), memory, seen, counts(growth.after), names(1), NOW)


def test_a_growth_that_bought_less_than_half_is_followed_by_a_single_instance() -> None:
    """Twice the instances, and a request costs twice as much: as many are answered as before, while more and more wait."""
    found = judged(0.020)
    assert (found.steps[0].count, found.memory.steps[TOKENIZER].doubted) == (5, True)
    assert found.verdict is Verdict.TOKENIZER_BOUND
    assert judged(0.012).steps[0].count > 5


def test_a_second_one_that_bought_nothing_either_is_the_last() -> None:
    one = replace(GREW, before=4, after=5, cost=0.020)
    found = judged(0.025, doubted=True, growth=one)
    assert (found.steps[0].count, found.verdict) == (5, Verdict.CPU_BOUND)
    assert "the last growth made requests dearer, not more of them" in found.message
    assert "growth beyond 5 did not raise throughput" in found.limited
    helped = judged(0.020, doubted=True, rate=250.0, growth=one)
    assert helped.steps[0].count > 6
    assert not helped.memory.steps[TOKENIZER].doubted


def test_a_few_requests_prove_nothing() -> None:
    assert judged(0.9, rate=2.0).memory.steps[TOKENIZER].doubted is False
