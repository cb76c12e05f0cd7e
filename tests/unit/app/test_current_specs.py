"""Other parts use the effective spec, too: an invalid spec changes nothing that runs."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from tests.support import builders
from tests.support.loops import Loop, loop_of
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.api.parse import parse
from triton_pipelines.cluster.resources import CONFIG_MAPS
from triton_pipelines.cluster.store import Store
from triton_pipelines.controllers import current_specs
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.policies import last_good_spec

RANGE = {"initial": 1, "min": 1, "max": 8}
RENDERED: dict[str, Any] = {}
# Refused by a rule of the schema, and by a check of the whole.
INVALID: dict[str, dict[str, Any]] = {
    "field": {"model": {"maxBatchSize": -1}},
    "graph": {"postprocess": {"labels": ["a", "b", "c"]}},
}
HOW = pytest.mark.parametrize("how", INVALID)


def scaled(**spec: Any) -> World:
    """With CPU that bounds nothing."""
    free = {"tokenizer": {"instances": RANGE}, "server": {"resources": {"limits": {"cpu": "64"}}}}
    return World(builders.document(**builders.merge(free, spec)), rendered=RENDERED).started()


async def busy(loop: Loop, seconds: float, load: float) -> None:
    """So long under as much load as ``load`` instances carry."""
    for _ in range(int(seconds / 5)):
        loop.flow(100.0 * load, service=0.010)
        await loop.tick(5.0)
        await loop.settle()


def spoil(loop: Loop, how: str, **spec: Any) -> None:
    """Its spec becomes what cannot be acted on, and asks for more than that."""
    loop.world.change(**builders.merge(INVALID[how], spec))
    loop.reconcile()
    assert loop.world.condition("Ready")["reason"] == "InvalidSpec"


@HOW
async def test_an_invalid_spec_lowers_no_count(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(monkeypatch, scaled())
    await busy(loop, 60, load=2.1)
    before = loop.counts["tokenizer"]
    assert before >= 3
    spoil(loop, how, tokenizer={"instances": {"initial": 1, "min": 1, "max": 2}})
    loop.tritons.loads.clear()
    await busy(loop, 60, load=2.1)
    assert (loop.counts["tokenizer"], loop.tritons.loads) == (before, [])


@HOW
async def test_an_invalid_spec_brings_no_other_bounds(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no pass records would be an intent that fails again and again."""
    loop = loop_of(monkeypatch, scaled(tokenizer={"instances": {"max": 2}}))
    await busy(loop, 30, load=1.2)
    spoil(loop, how, tokenizer={"instances": {"initial": 1, "min": 1, "max": 8}})
    await busy(loop, 60, load=5.0)
    assert loop.counts == {"tokenizer": 2}
    assert (view := loop.scaler.handover.view(loop.key)) is not None
    assert view.action_failure == ""


@HOW
async def test_a_pipeline_with_an_invalid_spec_is_scaled_after_a_restart(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(monkeypatch, scaled())
    await busy(loop, 10, load=0.5)
    spoil(loop, how)
    again = loop_of(monkeypatch, loop.world)
    again.tritons.counts = loop.tritons.counts
    await busy(again, 60, load=2.1)
    assert again.counts["tokenizer"] >= 3
    assert set(again.tritons.counts.values()) == {again.counts["tokenizer"]}


def test_the_present_spec_counts_once_a_pass_has_acted_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, specs = loop_of(monkeypatch, scaled()), CurrentSpecs(Handover())
    loop.cache()

    def most() -> int | None:
        pipeline = specs.of(loop.store, loop.world.document)
        assert pipeline is not None
        assert pipeline.spec.tokenizer is not None
        return pipeline.spec.tokenizer.instances.max

    assert most() == 8
    loop.world.change(tokenizer={"instances": {"max": 5}})
    loop.cache()
    assert most() == 8
    loop.reconcile()
    assert most() == 5
    # Deleted by hand: the next pass makes it anew.
    spoil(loop, "graph", tokenizer={"instances": {"max": 3}})
    del loop.world.children["ConfigMap", names.live_name(loop.world.name)]
    loop.cache()
    assert most() == 5


def test_a_spec_that_is_not_recorded_is_the_present_one() -> None:
    """Before the first pass, or too long; never that of a former pipeline of the name."""
    world = scaled()
    key = (world.document["metadata"]["namespace"], world.name)
    live = copy.deepcopy(world.children["ConfigMap", names.live_name(world.name)])
    live["metadata"] |= {"namespace": key[0], "resourceVersion": "1"}
    document = copy.deepcopy(world.document)
    document["spec"]["tokenizer"]["instances"]["max"] = 3

    def most(live: dict[str, Any] | None, document: dict[str, Any]) -> Any:
        store = Store()
        if live is not None:
            store.put(CONFIG_MAPS, live)
        pipeline = CurrentSpecs(Handover()).of(store, document)
        return cast(Any, pipeline).spec.tokenizer.instances.max

    assert most(live, document) == 8
    assert most(None, document) == 3
    assert most(live | {"data": {}}, document) == 3
    assert (
        most(
            live | {"data": {names.KEY_ACCEPTED: '{"spec": {"model": 1}, "digests": {}}'}}, document
        )
        == 3
    )
    other = copy.deepcopy(document)
    other["metadata"]["uid"] = "another"
    assert most(live, other) == 3


def test_a_spec_is_read_once_while_it_is_the_same() -> None:
    world, specs, store = scaled(), CurrentSpecs(Handover()), Store()
    first = specs.of(store, world.document)
    assert first is not None
    assert specs.of(store, copy.deepcopy(world.document)) is first
    specs.keep([])
    assert specs.of(store, world.document) is not first


@pytest.mark.parametrize("changed", [{}, {"suspend": "Enabled"}], ids=["as recorded", "suspended"])
def test_a_recorded_spec_is_parsed_once_after_a_restart(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, store, parsed = scaled(), Store(), list[Any]()
    document = builders.merge(world.document, {"spec": changed})
    live = copy.deepcopy(world.children["ConfigMap", names.live_name(world.name)])
    live["metadata"] |= {"namespace": document["metadata"]["namespace"], "resourceVersion": "1"}
    store.put(CONFIG_MAPS, live)

    def counted(raw: Any) -> Any:
        parsed.append(raw)
        return parse(raw)

    monkeypatch.setattr(current_specs, "parse", counted)
    monkeypatch.setattr(last_good_spec, "parse", counted)
    pipeline = CurrentSpecs(Handover()).of(store, document)
    assert pipeline is not None
    assert pipeline.spec.suspend.value == changed.get("suspend", "Disabled")
    assert len(parsed) == 1


@HOW
async def test_the_status_of_an_invalid_spec_still_shows_counts(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(monkeypatch, scaled())
    await busy(loop, 10, load=0.5)
    spoil(loop, how)
    loop.plans.clear()
    await busy(loop, 60, load=2.1)
    reported, count = loop.status(), loop.counts["tokenizer"]
    assert count >= 3
    assert reported["tokenizer"] == {
        "instances": count,
        "desiredInstances": count,
        "summary": f"{count}/8",
    }
    assert [
        step["desiredInstances"] for step in reported["steps"] if step["name"] == "tokenizer"
    ] == [count]
    assert reported["scaling"]["history"][0]["to"] == count
    assert [event.reason for made in loop.plans for event in made.events] == ["Scaled"]
    assert (
        loop.world.reasons() | {"Stalled": "True InvalidSpec", "ScalingActive": "True Succeeded"}
        == loop.world.reasons()
    )
    loop.reconcile()
    assert loop.reconcile().is_empty
