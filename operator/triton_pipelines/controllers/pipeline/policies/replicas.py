"""Choose the number of pods, and respect other managers that own it. Pure; the clock is passed in.

The Deployment's ``spec.replicas`` has one owner: the spec, live scaling or another manager. A
manager that writes it through the Deployment's scale subresource keeps it, and it is no longer
applied. A plain edit is drift and is corrected once; a manager that repeats it within minutes keeps
it (``field_managers.py``). The pipeline's own ``spec.replicas`` may be written by any manager and
is followed; if two alternate, both are reported.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.scaling import PodBounds, ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import counted
from triton_pipelines.controllers.pipeline.actions import soonest
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.deployment_progress import is_rolling_out
from triton_pipelines.controllers.pipeline.field_managers import AlternatingManagers, OtherManagers
from triton_pipelines.controllers.pipeline.live_config_map import KEY_MILLIS, KEY_REPLICAS, recorded
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Object, Snapshot
from triton_pipelines.controllers.pipeline.state import ReplicasState, StalledRolloutState
from triton_pipelines.controllers.timestamps import moment

from .preflight import Preflight
from .revision import DesiredRevision

# Name of a manager that writes the pipeline's scale subresource: API servers up to 1.36
# (measured) record a field manager of that only if the number had one before.
UNNAMED_SCALER: Final = (
    "a client of the pipeline's scale subresource (an HPA, KEDA or kubectl scale)"
)
UNNAMED_MANAGER: Final = "an unnamed manager"


@dataclass(frozen=True, slots=True)
class Replicas:
    """The number of pods and its owner."""

    number: int
    """Desired pods while the pipeline is not suspended."""
    applied: int | None
    """What the Deployment is applied with; ``None``: another manager owns the number."""
    owner: str
    """``spec``, ``scaling`` or the name of that manager."""
    state: ReplicasState
    conflict: str = ""
    """Which managers write the number as well, and what to do; empty without any."""
    live_scaling: int | None = None
    """The number that live scaling wants; ``None``: none."""
    minimum: int = 1
    """Pods that have to serve in any case."""
    is_shared: bool = False
    """Whether the other manager set the same number, so that it can be owned again."""

    def desired(self, pipeline: InferencePipeline) -> int:
        """Return the desired number of pods; 0 while the pipeline is suspended."""
        return 0 if pipeline.spec.suspend is Switch.ENABLED else self.number

    def blocked_by_rollout(self, snapshot: Snapshot, stalled: StalledRolloutState) -> bool:
        """Return whether a stalled rollout keeps live scaling from changing the number of pods.

        The stalled revision has to go first: the Deployment would give it a share of new pods.
        """
        live = snapshot.deployed_replicas
        return (
            bool(stalled.revision)
            and self.owner == "scaling"
            and self.applied not in (None, 0, live)
        )

    @property
    def is_autoscaled(self) -> bool:
        """Whether the number changes without the spec: pods that start are then not a rollout."""
        return self.owner != "spec"


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Choose the number of pods and respect other managers that own it."""
    pipeline = draft.of(ReconciledSpec).pipeline
    number = in_rollout(
        decide_replicas(pipeline, snapshot, draft.state.replicas, now),
        snapshot,
        # While a preflight holds the rollout, it has not begun.
        draft.of(Preflight).kept_revision or draft.of(DesiredRevision).target,
        rolling=snapshot.deployment is None or is_rolling_out(snapshot.deployment),
        verified=draft.state.rollout.verified,
        stalled=draft.state.stalled_rollout.revision,
    )
    alternating = AlternatingManagers.parse(number.state.alternating)
    ends = (alternating.sequence_ends_in(now), number.state.others.correction_ends_in(now))
    return Outcome(number, (number.state,), requeue_after=soonest(*ends))


def known_pods(pipeline: InferencePipeline, snapshot: Snapshot) -> Mapping[str, int]:
    """Return the recorded number of pods and CPU limit.

    If live scaling is not active and the live ConfigMap is gone, the number is that of the
    Deployment: fewer were never requested. Active scaling starts from what runs in any case.
    """
    known = recorded(snapshot.live_data())
    if snapshot.live_data() or pipeline.spec.scaling.mode is ScalingMode.ACTIVE:
        return known
    live = snapshot.deployed_replicas
    return {**known, KEY_REPLICAS: live} if live not in (0, pipeline.spec.replicas) else known


def owned_data(
    pipeline: InferencePipeline, snapshot: Snapshot, live_scaling: int | None, limit: int | None
) -> dict[str, str]:
    """Return the pod data of the live ConfigMap.

    It has the number of pods that live scaling wants, and the CPU limit of each. While live scaling
    is not active, its last values stay, so that it can continue from them.
    """
    known = known_pods(pipeline, snapshot)
    desired = {KEY_REPLICAS: live_scaling, KEY_MILLIS: limit}
    if pipeline.spec.scaling.mode is not ScalingMode.ACTIVE:
        desired = {
            key: known.get(key) if value is not None else None for key, value in desired.items()
        }
    kept = {key: value for key, value in desired.items() if value is not None}
    return {names.KEY_PODS: json.dumps(kept)} if kept else {}


def decide_replicas(
    pipeline: InferencePipeline, snapshot: Snapshot, state: ReplicasState, now: dt.datetime
) -> Replicas:
    """Return the number of pods and its owner."""
    bounds = pipeline.spec.scaling.pods
    number = pipeline.spec.replicas if bounds is None else _scaled_pods(pipeline, bounds, snapshot)
    owner = "spec" if bounds is None else "scaling"
    live_scaling, minimum = (None, number) if bounds is None else (number, bounds.low)
    alternating = _alternating_managers(
        AlternatingManagers.parse(state.alternating), pipeline, snapshot, now
    )
    state = replace(state, alternating=alternating.to_document())
    conflict = _alternation_message(alternating, bounds, number) or (
        "" if bounds is None else _outside_scaling_message(pipeline, snapshot, number)
    )
    found = Replicas(
        number,
        number,
        owner,
        state,
        conflict,
        live_scaling,
        minimum,
    )
    if pipeline.spec.suspend is Switch.ENABLED:
        return replace(found, applied=0)
    return _with_other_managers(found, pipeline, snapshot, now)


def _with_other_managers(
    found: Replicas, pipeline: InferencePipeline, snapshot: Snapshot, now: dt.datetime
) -> Replicas:
    """Return the number, or that of another manager that keeps writing it into the Deployment."""
    number, state = found.number, found.state
    others = state.others
    other = _other_owner(snapshot.deployment)
    live = snapshot.deployed_replicas
    # At 0 an HPA does nothing, so one correction is enough. An autoscaler that scales up from 0, as
    # KEDA does, keeps the number and scales back to 0 itself.
    is_zero = number == 0
    if is_zero and snapshot.state().revision.generation != snapshot.generation:
        others = OtherManagers()  # The spec has just requested 0.
    if is_zero and live == number and other is not None and others.owners:
        return replace(found, applied=None, owner=others.owners, state=state.with_others(others))
    if other is None or live == number:
        return replace(
            found,
            state=state.with_others(others.without_deviation(now)),
            is_shared=other is not None and live == number,
        )
    if (is_zero or not other.scale) and not others.keeps_writing(other.manager, other.at, now):
        # The time of the first correction counts. If the operator's clock is ahead, later
        # corrections would make the next edit look older than they are.
        if not others.was_corrected(other.manager, now):
            others = others.with_correction(other.manager, now)
        return replace(found, state=state.with_others(others))
    others = others.with_owner(other.manager)
    conflict = _conflict_message(pipeline, others, live, number, scale=other.scale)
    return Replicas(
        live,
        None,
        others.names,
        state.with_others(others),
        conflict,
        found.live_scaling,
    )


def in_rollout(
    number: Replicas,
    snapshot: Snapshot,
    target: str,
    *,
    rolling: bool,
    verified: str,
    stalled: str,
) -> Replicas:
    """Return the number of pods while ``target`` is being rolled out.

    The Deployment counts a pod that waits for a node among those that may be unavailable. Without
    room for a surge it would then take down no old pod, and the rollout would never end. So pods
    that live scaling wants but that could not be scheduled before are left out. Once the scheduled
    pods serve the revision, or it turns out that they never will, the number is the desired one
    again.

    Args:
        number: The desired number of pods.
        snapshot: What is observed.
        target: The revision that is being rolled out.
        rolling: Whether the Deployment reports a rollout in progress.
        verified: The revision that last served the whole pipeline.
        stalled: The revision whose rollout stalled; empty without one.
    """
    state, deployed = number.state, snapshot.deployed_revision()
    if number.owner != "scaling" or not number.applied or stalled == target:
        return replace(number, state=replace(state, rollout_pods=0))
    remaining = [pod for pod in snapshot.pods if not pod.deleting]
    rollout_pods = state.rollout_pods
    if (
        deployed == target == verified
        and not rolling
        and all(pod.revision == target for pod in remaining)
    ):
        rollout_pods = 0
    elif deployed not in ("", target) and not rollout_pods:
        rollout_pods = max(
            number.minimum,
            sum(pod.condition("PodScheduled").get("status") != "False" for pod in remaining),
        )
    limited = (
        min(number.number, max(number.minimum, rollout_pods)) if rollout_pods else number.number
    )
    return replace(
        number, number=limited, applied=limited, state=replace(state, rollout_pods=rollout_pods)
    )


@dataclass(frozen=True, slots=True)
class _Owner:
    """A field manager that owns the number of pods."""

    manager: str
    scale: bool
    """Whether it wrote through the scale subresource, as autoscalers and ``kubectl scale`` do."""
    at: dt.datetime | None
    """When it wrote; ``None`` if unknown."""


def _owners(item: Object | None) -> Iterator[Mapping[str, Any]]:
    """Return the managedFields entries that own the number of pods."""
    for entry in ((item or {}).get("metadata") or {}).get("managedFields") or ():
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            yield entry


def _other_owner(deployment: Object | None) -> _Owner | None:
    """Return who else owns the Deployment's number of pods.

    ``None`` if we own it, alone or together with others that set the same number.
    """
    entries = list(_owners(deployment))
    if any(str(entry.get("manager", "")).startswith(names.MANAGER_CHILDREN) for entry in entries):
        return None
    found = [
        _Owner(
            str(entry.get("manager", "")) or UNNAMED_MANAGER,
            entry.get("subresource") == "scale",
            moment(str(entry.get("time") or "")),
        )
        for entry in entries
    ]
    return max(found, key=lambda one: one.scale, default=None)


def _scaled_pods(pipeline: InferencePipeline, bounds: PodBounds, snapshot: Snapshot) -> int:
    """Return the number of pods that live scaling wants, else the recorded one.

    If there is neither, return what runs when live scaling takes over.
    """
    known = known_pods(pipeline, snapshot).get(KEY_REPLICAS)
    desired = (
        snapshot.intent.pods
        if snapshot.intent is not None and snapshot.intent.pods is not None
        else known
    )
    if desired is None:
        if pipeline.spec.scaling.mode is not ScalingMode.ACTIVE:
            return pipeline.spec.replicas
        desired = snapshot.deployed_replicas or pipeline.spec.replicas
    return max(bounds.low, min(bounds.max, desired))


def _outside_scaling_message(pipeline: InferencePipeline, snapshot: Snapshot, number: int) -> str:
    """Return a message if another manager scales the pipeline itself, where its number is ignored.

    A number that has no owner and is not the default was set that way, too.
    """
    entries = list(_owners(snapshot.pipeline))
    manager = next(
        (str(entry.get("manager")) for entry in entries if entry.get("subresource") == "scale"), ""
    )
    if (
        not manager
        and not entries
        and snapshot.pipeline["metadata"].get("managedFields")
        and pipeline.spec.replicas != 1
    ):
        manager = UNNAMED_MANAGER
    if not manager:
        return ""
    kept = counted(number, "pod is kept", "pods are kept")
    return (
        f"{manager} sets spec.replicas to {pipeline.spec.replicas} through the scale "
        "subresource (an HPA, KEDA or kubectl scale), but spec.scaling.pods determines the "
        f"number of pods, and {kept}. Remove that autoscaler, or remove spec.scaling.pods "
        "to let the autoscaler set the number of pods"
    )


def _alternating_managers(
    known: AlternatingManagers, pipeline: InferencePipeline, snapshot: Snapshot, now: dt.datetime
) -> AlternatingManagers:
    """Return the managers that have written the pipeline's own number, including the current ones.

    If several set the same number, the previous writer still counts as the owner.
    """
    if not snapshot.pipeline["metadata"].get("managedFields"):
        return known.with_manager("", now)
    found = {
        str(entry.get("manager", "")) or UNNAMED_MANAGER: entry.get("subresource") == "scale"
        for entry in _owners(snapshot.pipeline)
    }
    for manager, scale in found.items():
        known = known.with_name(UNNAMED_SCALER, manager) if scale else known
    if found:
        return known.with_manager(known.last if known.last in found else min(found), now)
    # The default, which no manager wrote, unless another one had the number before.
    return known.with_manager(
        UNNAMED_SCALER if pipeline.spec.replicas != 1 or known.last else "", now
    )


def _alternation_message(
    alternating: AlternatingManagers, bounds: PodBounds | None, number: int
) -> str:
    """Return which managers alternate in writing the pipeline's own number; empty without any."""
    if not alternating.alternating:
        return ""
    follows = (
        "so the number of pods changes with every write. Let only one of them set this field; if "
        "this is an autoscaler, remove replicas from the manifest"
        if bounds is None
        else "but spec.scaling.pods determines the number of pods, and "
        + counted(number, "pod is kept", "pods are kept")
        + ". Remove replicas from every manifest, and remove any autoscaler of this pipeline"
    )
    return f"{alternating.alternating} overwrite each other's changes to spec.replicas, {follows}"


def _conflict_message(
    pipeline: InferencePipeline, others: OtherManagers, live: int, number: int, *, scale: bool
) -> str:
    if others.has_several:
        action, how = "alternately set", ""
    elif scale:
        action, how = "sets", " through its scale subresource (an HPA, KEDA or kubectl scale)"
    else:
        action, how = "repeatedly sets", ""
    return (
        f"{others.names} {action} the number of pods of Deployment {pipeline.name} to "
        f"{live} instead of {number}{how}, so the operator no longer changes that number. "
        f"Stop these changes (point an autoscaler at InferencePipeline {pipeline.name} instead), "
        f"and then run: kubectl scale deployment {pipeline.name} --replicas={number}"
    )
