"""One pass, decided: what to apply, what to delete, what to say. Pure: no I/O, the clock is passed in.

A plan made again on its own result does nothing; a property test holds it to that.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Switch
from triton_pipelines.api.conditions import Condition, Reason
from triton_pipelines.api.crd import stored
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.diff import needs_apply
from triton_pipelines.compile.graph import Graph, Options, lint
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.compile.render import Revision
from triton_pipelines.compile.render.objects import (
    control_secret,
    deployment,
    disruption_budget,
    live_config_map,
    network_policy,
    revision_config_map,
    service,
)

from . import ragged_fallback, scaling_status, tuned_padding, tuning_run
from . import status as statuses
from .compiled_pipeline import Remade, Wanted, recommended, resolve
from .cpu_field_owner import decide_cpu
from .cpu_resize import Resize, wanted_limit
from .last_good_spec import accepted_data, kept_revision, last_accepted, without_wish
from .live_config_map import live_counts, live_data, resolved_sources
from .loader_warnings import remarks
from .output_mismatch import judged
from .pod_problems import Problem, config_missing, of_pod
from .pod_repair import heal
from .pods_and_cpu import rolls, stuck_in
from .replicas import decide_replicas, in_rollout, owned_data
from .retention import Deletion, cleared, kept_revisions, pruned
from .rollout import Rollout, decide, target_of
from .slo_guard import RECHECK_SECONDS, doubts, limit_of
from .snapshot import Memory, Object, Observed
from .status_events import Event, transitions
from .tuning_run_inputs import stage_of
from .tuning_run_state import Run, remembered, with_tuning

# A pass with nothing to wait for is repeated by the resync; with pods on their way the watch wakes us, this is the second line.
WAITING_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass does, in this order: the ``first`` so many of ``apply`` (in turn; what a tuning run has proven is recorded by the last of
    them), ``clear`` (deletes what a tuning run that has ended holds: others want the room, and what is refused of the rest is no reason to
    keep it), the rest of ``apply``, ``delete``, ``resize`` (one pod's CPU), ``notes`` (events of what it did),
    ``status`` (``None``: unchanged), ``events`` (of the change of status), then ``beside`` (objects of a tuning run, which harm nobody
    where they are refused)."""

    apply: tuple[Object, ...] = ()
    delete: tuple[Deletion, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    notes: tuple[Event, ...] = ()
    resize: Resize | None = None
    beside: tuple[Object, ...] = ()
    clear: tuple[Deletion, ...] = ()
    first: int = 0

    @property
    def quiet(self) -> bool:
        """Whether nothing is to be written."""
        return (
            not self.apply
            and not self.beside
            and not self.clear
            and not self.delete
            and self.status is None
            and self.resize is None
        )


Resolve = Callable[[Observed], Wanted | list[Finding]]


@dataclass(frozen=True, slots=True)
class Context:
    """What a pass knows beside the cluster: the operator's options, how a revision's control key is derived, and whether a
    rollout that no change of the spec asked for may start now (a new operator release rolls a few pipelines at a time). ``remembering``: says
    what :func:`resolve` says, out of what it remembers."""

    options: Options
    control_key: Callable[[str, str], str] = field(repr=False)
    may_roll: bool = True
    remembering: Resolve | None = field(default=None, repr=False)

    def resolve(self, observed: Observed) -> Wanted | list[Finding]:
        """What the spec asks for, or everything that is wrong with it."""
        return (
            resolve(observed, self.options)
            if self.remembering is None
            else self.remembering(observed)
        )


def hands_off(pipeline: Mapping[str, Any]) -> bool:
    """Whether a pipeline is not to be touched: it goes, and its children with it, or it is paused."""
    metadata = pipeline["metadata"]
    return (
        bool(metadata.get("deletionTimestamp"))
        or (metadata.get("annotations") or {}).get(names.ANNOTATION_PAUSED) == "true"
    )


def plan(
    observed: Observed,
    context: Context,
    now: dt.datetime,
    wanted: Wanted | list[Finding] | None = None,
) -> Plan:
    """Decide one pass for one pipeline. ``wanted``: what :func:`resolve` said, where it was asked already."""
    if hands_off(observed.pipeline):
        return Plan()
    if wanted is None:
        wanted = context.resolve(observed)
    if not isinstance(wanted, Wanted):
        return _held(
            observed,
            None,
            statuses.stalled(observed, Reason.INVALID_SPEC, wanted, now),
            context,
            now,
        )
    if observed.missing_sources:
        text = "; ".join(observed.missing_sources.values())
        return _held(
            observed,
            wanted,
            statuses.stalled(observed, Reason.SOURCE_UNAVAILABLE, text, now),
            context,
            now,
        )
    return _act(wanted.pipeline, wanted.graph, wanted.revision, observed, context, now)


@dataclass(frozen=True, slots=True)
class Held:
    """That the ``revision`` which is deployed stays, whatever the spec asks for, and the ``status`` says why. ``ends_run``: a tuning run that
    has begun ends."""

    revision: str
    status: dict[str, Any]
    ends_run: bool = False


def accepted(observed: Observed, resolve: Resolve) -> tuple[Observed, Wanted] | None:
    """The last spec that could be acted on: the pipeline with it, and what it asks for; ``None`` where none is known, or this release takes
    it no longer."""
    last = last_accepted(observed)
    made = resolve(last) if last is not None else None
    return (last, made) if last is not None and isinstance(made, Wanted) else None


def gone_by(
    observed: Observed, wanted: Wanted | list[Finding], resolve: Resolve
) -> tuple[Observed, Wanted] | None:
    """What a pass goes by: the present spec, ``wanted``, or the last one that could be acted on; ``None`` where there is neither."""
    present = (observed, wanted) if isinstance(wanted, Wanted) else None
    return (
        present
        if present is not None and not observed.missing_sources
        else accepted(observed, resolve) or present
    )


def _held(
    observed: Observed,
    wanted: Wanted | None,
    status: dict[str, Any],
    context: Context,
    now: dt.datetime,
) -> Plan:
    """No new revision can be made; the one that is deployed is kept, and scaled, suspended and repaired as ever. ``wanted``: what the spec
    asks for, where it is valid."""
    found = accepted(observed, context.resolve)
    if found is not None and (kept := kept_revision(found[0], found[1].revision.name)):
        last, made = found
        return _act(
            made.pipeline,
            made.graph,
            made.revision,
            last,
            context,
            now,
            held=Held(kept, status, ends_run=wanted is None),
        )
    if wanted is not None and (kept := kept_revision(observed)):
        return _act(
            wanted.pipeline,
            wanted.graph,
            wanted.revision,
            without_wish(observed),
            context,
            now,
            held=Held(kept, status),
        )
    if wanted is None:
        return _stalled(observed, status, None, now)
    return _stalled(
        observed,
        status,
        WAITING_SECONDS,
        now,
        "a source is missing, and nothing is left of the revision that was measured",
    )


def _stalled(
    observed: Observed, status: dict[str, Any], requeue: float | None, now: dt.datetime, *why: str
) -> Plan:
    """Nothing is known that could be kept, and nothing is done but that a tuning run ends."""
    memory = observed.memory()
    before = Run.parse(memory.tuning)
    tuned, live = (
        tuning_run.interrupted(before, now, *why),
        observed.child("ConfigMap", names.live_name(observed.name)),
    )
    apply: list[Object] = []
    if live is not None and tuned.run != before:
        kept = {
            key: live["metadata"][key]
            for key in ("name", "namespace", "labels", "ownerReferences")
            if key in live["metadata"]
        }
        data = {
            **live["data"],
            names.KEY_MEMORY: replace(memory, tuning=tuned.run.to_document()).to_json(),
        }
        apply = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept, "data": data}]
        status = with_tuning(status, tuned.status())
    return replace(
        _with_status(observed, status, apply, (), requeue, tuned.events),
        clear=cleared(observed, ()),
        first=len(apply),
    )


def _act(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: Revision | Remade,
    observed: Observed,
    context: Context,
    now: dt.datetime,
    *,
    held: Held | None = None,
) -> Plan:
    """A pass over a good resource, or over the last one that was good (``held``)."""
    memory = observed.memory()
    observed, mismatches = judged(observed, memory.proven)
    gpu = pipeline.spec.server.gpu.resource_name
    problems = [
        problem
        for pod in observed.pods
        if (problem := of_pod(pod, observed.probes.get(pod.uid), gpu, observed.nodes)) is not None
    ]
    must_wait = held is None and _must_wait(revision, observed, memory, context)
    wanted = observed.deployed_revision() if must_wait else revision.name
    wanted = held.revision if held is not None else wanted
    if held is None:
        memory = replace(
            memory, generation=observed.generation, wanted=wanted, spec=observed.spec_hash
        )
    else:  # which acts on no new spec
        memory = replace(memory, wanted=memory.wanted or wanted)
    resizing = decide_cpu(wanted_limit(pipeline, graph, observed), observed, memory, now)
    observed = replace(observed, unresized=resizing.refused)
    memory = stuck_in(observed, target_of(memory, wanted), problems, resizing.memory)
    rolling = observed.deployment is None or rolls(observed.deployment)
    number = in_rollout(
        decide_replicas(pipeline, observed, memory, now),
        observed,
        target_of(memory, wanted),
        rolling,
    )
    memory = number.memory
    replicas = 0 if pipeline.spec.suspend is Switch.ENABLED else number.number
    rollout = decide(
        wanted,
        pipeline.spec.rollout.strategy,
        replicas,
        observed,
        memory,
        problems,
        now,
        limit_of(pipeline),
        in_the_way=number.held_up(observed),
    )
    kept = kept_revisions(pipeline, observed, rollout, wanted)
    resolved = resolved_sources(observed, kept)
    healing = heal(observed, resolved, rollout.memory, now)
    rollout = replace(rollout, memory=healing.memory)
    counts = live_counts(graph, observed)
    secrets, memory = _secrets(pipeline, rollout, observed, context, kept)

    def ready() -> Condition:
        return statuses.conditions_of(pipeline, graph, observed, rollout, wanted, problems, number)[
            0
        ]

    def makes(patch: Mapping[str, Any]) -> str:
        return recommended(pipeline, patch, observed, context.options)

    stage = stage_of(
        pipeline, graph, observed, context.options, rollout, wanted, replicas, ready, makes
    )
    run = remembered(rollout.memory.tuning, observed.status.get("tuning"))
    tuned = (
        tuning_run.interrupted(run, now)
        if held is not None and held.ends_run
        else tuning_run.follow(stage, run, now)
    )
    fingerprint = cost_fingerprint(pipeline, context.options, observed.digests)
    known = tuned_padding.recorded(observed)
    choices = tuned_padding.after(
        known,
        tuned.choices,
        fingerprint,
        tuned_padding.failure_of(graph, revision.name, wanted, rollout),
    )
    barred = tuned_padding.barred_now(known, choices)
    tuned = replace(tuned, run=tuned_padding.retold(tuned.run, barred))
    memory = replace(memory, tuning=tuned.run.to_document())
    # In this order a pass may end anywhere: a revision's ConfigMap is the trace by which its Secret is pruned, what the live ConfigMap
    # remembers as applied has been applied, and pods find everything that they mount.
    desired: list[Object] = []
    if wanted == revision.name:
        record = observed.child("ConfigMap", names.revision_name(pipeline.name, wanted))
        # An immutable revision is written once; the default images that it recorded stay.
        data = (record or {}).get("data") or {
            **revision.data,
            **tuned_padding.applied(choices, fingerprint, graph),
        }
        desired.append(revision_config_map(pipeline, wanted, data))
    refused = graph.padding.refused if graph.padding else {}
    owned = owned_data(pipeline, observed, number.scaled, resizing.limit)
    live = live_config_map(
        pipeline,
        live_data(memory, counts, resolved, observed)
        | ragged_fallback.data(refused)
        | tuned_padding.data(choices)
        | owned
        | accepted_data(pipeline, observed, held=held is not None),
    )
    template = _template(revision, rollout, observed)
    optional = [
        network_policy(pipeline, context.options.operator_namespace),
        disruption_budget(pipeline, number.number),
    ]
    desired += [*secrets, live, service(pipeline), *(item for item in optional if item is not None)]
    desired.append(
        deployment(pipeline, template, rollout.mode, number.applied, _before(rollout, observed))
    )
    apply, beside = (
        [
            item
            for item in items
            if needs_apply(
                observed.child(item["kind"], item["metadata"]["name"]), item, names.MANAGER_CHILDREN
            )
        ]
        for items in (desired, tuned.created)
    )
    desired += tuned.objects
    if number.shared:  # which changes nothing but who owns the number
        apply += [item for item in desired if item["kind"] == "Deployment" and item not in apply]
    clear = cleared(observed, tuned.objects)
    left = [
        deletion for deletion in pruned(pipeline, observed, desired, kept) if deletion not in clear
    ]
    delete = [*(Deletion("Pod", pod.name, pod.uid) for pod in healing.pods), *left]
    warnings = lint(pipeline, graph, context.options)
    warnings += doubts(
        limit_of(pipeline),
        observed.latencies,
        rollout.target,
        observed.status.get("warnings") or (),
    )
    warnings += [
        *tuning_run.doubts(tuned.run, wanted),
        *observed.monitoring_warnings(),
        *remarks(observed, wanted),
        *mismatches,
    ]
    status = held.status if held is not None else None
    if status is None:
        status = statuses.compute(
            pipeline,
            graph,
            observed,
            rollout,
            wanted,
            warnings,
            problems,
            counts,
            healing.astray,
            number,
            now,
            resizing.conflict,
        )
        if graph.padding is not None:
            current = wanted in (tuned.run.revision, tuned.run.recommended)
            request = tuned.run.request if tuned.run.revision == wanted else ""
            other = tuned_padding.note(
                choices, fingerprint, request, in_force=graph.padding.measured
            )
            status = status | {
                "padding": ragged_fallback.told(graph.padding, tuned.run.status(), current, other)
                | tuned_padding.to_status(choices)
            }
    else:
        status = scaling_status.held(
            status,
            pipeline,
            graph,
            observed,
            wanted,
            counts,
            healing.astray,
            number,
            now,
            resizing.conflict,
        )
        status = tuned_padding.with_choices(status, {"padding": tuned_padding.to_status(choices)})
    if held is None or not held.ends_run or tuned.run != run:
        status = with_tuning(status, tuned.status())
    # For another spec nobody waits: it wakes us.
    waits = held is None or not held.ends_run
    requeue = soonest(
        _requeue(status, rollout, problems, must_wait, waits),
        tuned.recheck,
        resizing.again,
        number.again,
    )
    notes = (*healing.events, *rollout.notes, *tuned.events, *tuned_padding.events_of(barred))
    decided = _with_status(observed, status, apply, delete, 0.0 if barred else requeue, notes)
    first = apply.index(live) + 1 if clear and live in apply else 0
    return replace(decided, resize=resizing.resize, beside=tuple(beside), clear=clear, first=first)


def soonest(*times: float | None) -> float | None:
    """The least of the times that there are, seconds; ``None`` without any."""
    return min((time for time in times if time is not None), default=None)


def _must_wait(
    revision: Revision | Remade, observed: Observed, memory: Memory, context: Context
) -> bool:
    """Whether the revision has changed, but not the spec, and too many others roll."""
    deployed = observed.deployed_revision()
    if (
        context.may_roll
        or not deployed
        or deployed == revision.name
        or observed.revision_record(deployed) is None
    ):
        return False
    return (memory.generation, memory.wanted) == (observed.generation, deployed)


def _before(rollout: Rollout, observed: Observed) -> str:
    """The revision that served before this one, as the Deployment tells of it: the memory of it may be lost in mid-rollout."""
    proven = rollout.memory.proven
    return proven if proven not in ("", rollout.target) else observed.previous_revision()


def _template(
    revision: Revision | Remade, rollout: Rollout, observed: Observed
) -> Mapping[str, Any]:
    record = observed.revision_record(rollout.target)
    if record is not None:
        template: Mapping[str, Any] = record["template"]
        return template
    return revision.template


def _secrets(
    pipeline: InferencePipeline,
    rollout: Rollout,
    observed: Observed,
    context: Context,
    kept: Sequence[str],
) -> tuple[list[Object], Memory]:
    """Secrets to apply: those whose key was not yet applied, and those that a pod misses."""
    applied = {
        revision: digest for revision, digest in rollout.memory.secrets.items() if revision in kept
    }
    missing = {
        pod.revision
        for pod in observed.pods
        if config_missing(pod, names.revision_name(pipeline.name, pod.revision))
    }
    result = []
    for revision in sorted({rollout.target} | missing):
        # A pod's label is anybody's to write; what follows takes the Secret of that name over.
        if revision not in kept or not names.is_revision(revision):
            continue
        key = context.control_key(pipeline.metadata.uid, revision)
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        if applied.get(revision) != digest or revision in missing:
            result.append(control_secret(pipeline, revision, key))
            applied[revision] = digest
    return result, replace(rollout.memory, secrets=dict(sorted(applied.items())))


def _requeue(
    status: Mapping[str, Any],
    rollout: Rollout,
    problems: Sequence[Problem],
    must_wait: bool,
    waits: bool,
) -> float | None:
    if rollout.recheck is not None:
        return rollout.recheck
    if rollout.watching:
        return RECHECK_SECONDS
    ready: Mapping[str, Any] = next(
        (item for item in status["conditions"] if item["type"] == "Ready"), {}
    )
    return (
        WAITING_SECONDS
        if (waits and ready.get("status") != "True") or problems or must_wait
        else None
    )


def _with_status(
    observed: Observed,
    status: dict[str, Any],
    apply: Sequence[Object],
    delete: Sequence[Deletion],
    requeue: float | None,
    notes: Sequence[Event] = (),
) -> Plan:
    same = not statuses.differs(observed.pipeline, status)
    events = () if same else transitions(observed.status, status)
    return Plan(
        tuple(apply), tuple(delete), None if same else status, tuple(events), requeue, tuple(notes)
    )


def first_objects(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: Revision,
    options: Options,
    control_key: str,
) -> list[Object]:
    """What the first pass applies for a new pipeline, in its order: what ``tritonpipe render --manifests`` prints."""
    # The memory's hash of the spec is that of the spec as it is stored.
    document = stored(
        pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    )
    observed = Observed(
        {
            **document,
            "metadata": {**document["metadata"], "generation": pipeline.metadata.generation or 1},
        }
    )
    context = Context(options, lambda _uid, _revision: control_key)
    return list(
        _act(
            pipeline, graph, revision, observed, context, dt.datetime.fromtimestamp(0, dt.UTC)
        ).apply
    )
