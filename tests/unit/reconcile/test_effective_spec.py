"""Check that compiled specs are cached, and always equal to a fresh compilation."""

from __future__ import annotations

import copy
import datetime as dt
import gc
import json
import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.reconcilers import KEY, AcceptingClient, reconciler_of, stored
from tests.support.worlds import STIFF, World
from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.controllers.pipeline import effective_spec as module
from triton_pipelines.controllers.pipeline.compiled_pipeline import (
    CompiledPipeline,
    LazyRevision,
    compile_parsed,
    resolve,
)
from triton_pipelines.controllers.pipeline.effective_spec import KEPT, Resolver
from triton_pipelines.controllers.pipeline.padding_choices import VerifiedPadding, data
from triton_pipelines.controllers.pipeline.planner import Context, plan
from triton_pipelines.controllers.pipeline.policies.last_good_spec import effective_spec
from triton_pipelines.controllers.pipeline.snapshot import Object, Pod, Snapshot
from triton_pipelines.controllers.pipeline.state import (
    PipelineState,
    RevisionState,
    RolloutState,
)


@pytest.fixture(autouse=True, scope="module")
def compiled_once() -> None:
    """Compile every time: results of the cache are compared with fresh ones."""


OPTIONS = builders.options()
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PLAN = {"platform": "tensorrt_plan"}
SPECS: dict[str, dict[str, Any]] = {
    "adapted": {},
    "plan": {"model": PLAN},
    "explicit": {"tokenizer": {"padding": "Ragged"}},
    "own image": {"model": PLAN, "server": {"image": "registry.example/own:24.10-py3"}},
    "field": {"model": {"maxBatchSize": -1}},
    "graph": {"postprocess": {"labels": ["a", "b", "c"]}},
    "patched 1": {"model": {"configPatch": {"dynamic_batching": {"preserve_ordering": 1}}}},
    "patched true": {"model": {"configPatch": {"dynamic_batching": {"preserve_ordering": True}}}},
}
CHOICES = {
    "none": None,
    "good": VerifiedPadding(Padding.BUCKETED, (32, 128), "the measured mode is faster."),
    "reverted": VerifiedPadding(Padding.BUCKETED, (64,), "it was", revert_reason="slow"),
}
MEASURED = st.sampled_from(list(CHOICES))


def content(made: CompiledPipeline | list[Finding]) -> Any:
    """All of it, to be compared."""
    if not isinstance(made, CompiledPipeline):
        return made
    return made.pipeline, made.graph, made.revision.name, made.revision.template, made.revision.data


def fingerprint(spec: str, digests: dict[str, str]) -> str:
    try:
        return cost_fingerprint(builders.pipeline(**SPECS[spec]), OPTIONS, digests)
    except ValueError:
        return ""


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Draw a pipeline with everything that can affect its compiled spec.

    There are few values of each, so that histories return to earlier states.
    """
    spec = draw(st.sampled_from(list(SPECS)))
    document = builders.document(**SPECS[spec])
    document["metadata"] |= {
        "generation": draw(st.sampled_from([1, 2])),
        "resourceVersion": draw(st.sampled_from("12")),
    }
    if draw(st.booleans()):
        document["metadata"]["annotations"] = {"a": "b"}
    digests = draw(st.sampled_from([{}, {"model": "one"}, {"model": "two"}]))
    observed = Snapshot(document, digests=digests)
    made = resolve(observed, OPTIONS)
    name = made.revision.name if isinstance(made, CompiledPipeline) else "0123456789"
    failed = draw(st.sampled_from(["", name, "fedcba9876"]))
    state = PipelineState(
        revision=RevisionState(generation=draw(st.sampled_from([1, 2])), desired=name),
        rollout=RolloutState(
            failed_revision=failed,
            failed_spec=draw(st.sampled_from([observed.spec_hash, "another"])),
            restored=draw(st.sampled_from(["", name])),
        ),
    )
    live = {names.KEY_STATE: state.to_json()}
    choice, by_hand = CHOICES[draw(MEASURED)], draw(st.sampled_from(["", "not JSON", '{"x": 1}']))
    if choice is not None:
        live |= data({fingerprint(spec, digests): choice})
    if by_hand:
        live[names.KEY_MEASURED_PADDING] = by_hand
    if draw(st.booleans()):
        live[names.KEY_PADDING] = json.dumps(dict.fromkeys(_refusals(), "axis 1 is 128"))
    image = draw(
        st.sampled_from([None, OPTIONS.server_image, "registry.example/earlier:24.08-py3"])
    )
    children: dict[tuple[str, str], Object] = {
        ("ConfigMap", names.live_name("sentiment")): {"data": live}
    }
    if image is not None:
        record = {"template": {}, "serverImage": image}
        children["ConfigMap", names.revision_name("sentiment", name)] = {
            "data": {names.KEY_TEMPLATE: json.dumps(record)}
        }
    return replace(
        observed,
        children=children,
        pods=draw(st.sampled_from([(), _pods(name), _pods("fedcba9876")])),
    )


@cache
def _refusals() -> list[str]:
    """Keys under which a refusal of the model's file is remembered."""
    world = World(builders.document())
    world.step()
    world.verdicts[world.deployed] = STIFF
    world.settle()
    return list(
        json.loads(
            world.children["ConfigMap", names.live_name(world.name)]["data"][names.KEY_PADDING]
        )
    )


def _pods(revision: str) -> tuple[Pod, ...]:
    """A pod whose file takes no ragged batches."""
    message = json.dumps(
        {
            "ok": False,
            "revision": revision,
            "findings": [
                {"step": "model", "reason": "RaggedUnsupported", "message": "axis 1 is 128"}
            ],
        }
    )
    loader = {
        "name": names.CONTAINER_LOADER,
        "state": {"terminated": {"exitCode": 2, "message": message}},
    }
    metadata = {"name": "p", "uid": "u", "labels": {names.LABEL_REVISION: revision}}
    return (Pod.of({"metadata": metadata, "status": {"initContainerStatuses": [loader]}}),)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    seen=st.lists(worlds(), min_size=2, max_size=4),
    turns=st.lists(st.integers(0, 3), min_size=4, max_size=10),
)
def test_cached_values_equal_recomputed_ones(seen: list[Snapshot], turns: list[int]) -> None:
    one = Resolver(OPTIONS)
    anew = [content(resolve(observed, OPTIONS)) for observed in seen]
    for turn in (turn % len(seen) for turn in turns):
        assert content(one.resolve(copy.deepcopy(seen[turn]))) == anew[turn]
    assert all(len(known) <= KEPT for known in one._read.values())


def test_true_and_one_are_two_specs() -> None:
    """Python takes them for the same; configPatch, which is passed on, does not."""
    one = Resolver(OPTIONS)
    assert isinstance(
        made := one.resolve(Snapshot(builders.document(**SPECS["patched true"]))), CompiledPipeline
    )
    assert isinstance(
        other := one.resolve(Snapshot(builders.document(**SPECS["patched 1"]))),
        CompiledPipeline | list,
    )
    assert content(made) != content(other)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the pipelines that were worked out."""
    calls: list[str] = []

    def counting(pipeline: Any, *given: Any) -> Any:
        calls.append(pipeline.name)
        return compile_parsed(pipeline, *given)

    monkeypatch.setattr(module, "compile_parsed", counting)
    return calls


def test_a_status_that_changes_is_no_reason_to_work_anything_out(counted: list[str]) -> None:
    one, world = Resolver(OPTIONS), World(builders.document()).started()
    observed = world.observed()
    first = one.resolve(observed)
    reported = copy.deepcopy(observed.pipeline) | {"status": {"conditions": []}}
    reported["metadata"] |= {"resourceVersion": "99", "managedFields": [{}]}
    again = one.resolve(replace(observed, pipeline=reported))
    assert counted == ["sentiment"]
    assert isinstance(again, CompiledPipeline)
    assert isinstance(again.revision, LazyRevision), "its content is not held"
    assert content(again) == content(first)


def test_the_record_of_the_image_that_was_compiled_with_is_no_reason_to_compile_again(
    counted: list[str],
) -> None:
    one, none = Resolver(OPTIONS), PipelineState()
    wanted = PipelineState(RevisionState(generation=1, desired="0123456789"))
    first = one.resolve(_seen({}, none))
    again = one.resolve(_seen({}, wanted, OPTIONS.server_image))
    assert len(counted) == 1
    assert content(again) == content(first)
    counted.clear()
    other = one.resolve(_seen({}, wanted, "registry.example/earlier:24.08-py3"))
    assert isinstance(other, CompiledPipeline)
    assert other.server_image == "registry.example/earlier:24.08-py3"
    one.resolve(_seen({}, none))
    assert len(counted) == 2, "a result for a recorded image is not that for the default"


def test_an_invalid_spec_beside_the_last_good_one_takes_no_place_from_it(
    counted: list[str],
) -> None:
    one, world = Resolver(OPTIONS), World(builders.document()).started()
    world.change(postprocess={"labels": ["a", "b", "c"]}).step()
    counted.clear()
    for _ in range(3):
        observed = world.observed()
        decided = plan(
            observed,
            Context(OPTIONS, lambda _uid, _revision: "key", cached_resolve=one.resolve),
            NOW,
            one.resolve(observed),
        )
        assert not [item for item in decided.apply if item["kind"] == "Deployment"]
    assert len(counted) == 2, "the present one, and the one that passes go by"


def test_a_source_that_is_missing_makes_nothing_be_worked_out_again_and_again(
    counted: list[str],
) -> None:
    """Compile a spec only once while its source is missing.

    The current spec and the effective spec are then the same, with and without the hash of the
    source.
    """
    document = builders.document(tokenizer={"source": {"uri": "configmap://tok/tokenizer.json"}})
    one, world = Resolver(OPTIONS), World(document, digests={"tokenizer": "abc"}).started()

    def passes(number: int) -> list[Any]:
        graphs = []
        for _ in range(number):
            observed = world.observed()
            asked = effective_spec(observed, wanted := one.resolve(observed), one.resolve)
            plan(
                observed,
                Context(OPTIONS, lambda _uid, _revision: "key", cached_resolve=one.resolve),
                NOW,
                wanted,
            )
            assert asked is not None
            graphs.append(asked[1].graph)
        return graphs

    passes(2)
    counted.clear()
    world.digests, world.missing_sources = {}, {"tokenizer": "ConfigMap tok is missing"}
    graphs = passes(4)
    assert len(counted) <= 2, "the present one, and the one that passes go by"
    assert all(graph is graphs[0] for graph in graphs), "everybody shares it"
    for number in range(5):
        world.digests, world.missing_sources = {"tokenizer": str(number)}, {}
        passes(1)
    assert all(len(spec._results) <= KEPT for known in one._read.values() for spec in known)


def test_what_a_plan_does_changes_nothing_of_what_is_remembered() -> None:
    """Also where it takes the content of the revision, which the cluster lacks."""
    one, observed = Resolver(OPTIONS), Snapshot(builders.document())
    context = Context(OPTIONS, lambda _uid, _revision: "key", cached_resolve=one.resolve)
    made = [plan(copy.deepcopy(observed), context, NOW) for _ in range(3)]
    assert (
        made[0].apply
        == made[1].apply
        == made[2].apply
        == plan(observed, Context(OPTIONS, context.control_key), NOW).apply
    )
    assert content(one.resolve(observed)) == content(resolve(observed, OPTIONS))


def test_a_pipeline_that_is_gone_is_forgotten(counted: list[str]) -> None:
    one, observed = Resolver(OPTIONS), Snapshot(builders.document())
    one.resolve(observed)
    one.forget(("nlp", "other"))
    one.resolve(observed)
    assert len(counted) == 1
    one.forget(("nlp", "sentiment"))
    one.resolve(observed)
    assert len(counted) == 2


def test_a_pipeline_takes_little_memory() -> None:
    """Keep only a spec and its graph, which all callers share.

    Keeping the files, the template and the load plan as well would take twice as much memory.
    """
    one = Resolver(OPTIONS)
    seen = [
        Snapshot(json.loads(json.dumps(builders.document(name=f"p{number}"))))
        for number in range(22)
    ]
    for observed in seen[:2]:  # what is read and compiled once
        one.resolve(observed)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for observed in seen[2:]:
            one.resolve(observed)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 20 < 30_000


def _seen(
    live: dict[str, str],
    state: PipelineState,
    image: str | None = None,
    spec: str = "plan",
    **more: Any,
) -> Snapshot:
    document = builders.document(**SPECS[spec])
    document["metadata"]["generation"] = 1
    children: dict[tuple[str, str], Object] = {
        ("ConfigMap", names.live_name("sentiment")): {
            "data": {names.KEY_STATE: state.to_json(), **live}
        }
    }
    if image is not None:
        record = {names.KEY_TEMPLATE: json.dumps({"template": {}, "serverImage": image})}
        children["ConfigMap", names.revision_name("sentiment", state.revision.desired)] = {
            "data": record
        }
    return Snapshot(document, children, **more)


def _cases() -> dict[str, tuple[Snapshot, Snapshot]]:
    """Two sights of one pipeline that differ in one thing alone, and come to two results."""
    none = PipelineState()
    wanted = PipelineState(RevisionState(generation=1, desired="0123456789"))
    reverted = data({fingerprint("plan", {}): CHOICES["reverted"]})  # type: ignore[dict-item]
    rules = replace(CHOICES["reverted"], revert_reason="")  # type: ignore[type-var]
    made = resolve(_seen(data({fingerprint("plan", {}): rules}), none), OPTIONS)  # type: ignore[dict-item]
    assert isinstance(made, CompiledPipeline)
    back = PipelineState(
        rollout=RolloutState(
            failed_revision=made.revision.name,
            failed_spec=_seen({}, none).spec_hash,
            restored="fedcba9876",
        )
    )
    adapted = resolve(_seen({}, none, spec="adapted"), OPTIONS)
    assert isinstance(adapted, CompiledPipeline)
    refused = {names.KEY_PADDING: json.dumps(dict.fromkeys(_refusals(), "axis 1 is 128"))}
    return {
        "digests": (_seen({}, none), _seen({}, none, digests={"model": "one"})),
        "image": (
            _seen({}, wanted, OPTIONS.server_image),
            _seen({}, wanted, "registry.example/earlier:24.08-py3"),
        ),
        "choices": (_seen({}, none), _seen(data({fingerprint("plan", {}): CHOICES["good"]}), none)),  # type: ignore[dict-item]
        "refused": (_seen({}, none, spec="adapted"), _seen(refused, none, spec="adapted")),
        "reports": (
            _seen({}, none, spec="adapted"),
            _seen({}, none, spec="adapted", pods=_pods(adapted.revision.name)),
        ),
        "failed": (_seen(reverted, none), _seen(reverted, back)),
    }


@pytest.mark.parametrize("what", ["digests", "image", "choices", "refused", "reports", "failed"])
def test_each_thing_that_decides_is_looked_at(what: str) -> None:
    one, (before, after) = Resolver(OPTIONS), _cases()[what]
    assert content(one.resolve(before)) != content(resolve(after, OPTIONS)), (
        "or it would decide nothing"
    )
    assert content(one.resolve(after)) == content(resolve(after, OPTIONS))


async def test_a_reconcile_publishes_the_spec_that_it_acts_on() -> None:
    """The last good one while the current one is invalid; the one before stays without either."""
    store = Store()
    raw = stored()
    store.put(INFERENCE_PIPELINES, raw)
    made = reconciler_of(AcceptingClient(), store)
    await made.reconcile(KEY)
    first = made.handover.effective_spec(raw)
    assert first is not None
    assert first.server_image == builders.options().server_image
    invalid = stored(model={"outputs": []})
    invalid["metadata"] |= {"generation": 2, "resourceVersion": "2"}
    store.put(INFERENCE_PIPELINES, invalid)
    await made.reconcile(KEY)
    later = made.handover.effective_spec(invalid)
    assert later is not None
    assert later.pipeline.spec == first.pipeline.spec
    store.remove(INFERENCE_PIPELINES, *KEY, uid=raw["metadata"]["uid"])
    await made.reconcile(KEY)
    assert made.handover.effective_specs == {}
