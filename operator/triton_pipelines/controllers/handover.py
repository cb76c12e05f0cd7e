"""Define what the pipeline controller and the autoscaler publish for each other. No I/O.

The pipeline controller is the only writer of the live ConfigMap and of the status. The autoscaler
publishes what it wants recorded and reported; the next reconcile writes it. Neither controller
calls the other: the composition root creates one :class:`Handover` first and passes it to each
part, which publishes its own fields and reads those of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from triton_pipelines.api.base import Finding
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.autoscaling.types import ScalingDecision
from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.store import Key, key_of

if TYPE_CHECKING:  # these modules import this one
    from triton_pipelines.controllers.pipeline.effective_spec import EffectiveSpec
    from triton_pipelines.controllers.pipeline.latency_figures import Latencies
    from triton_pipelines.controllers.pipeline.resize_rejections import ResizeRejection
    from triton_pipelines.controllers.pipeline.tls_trust import TlsTrust
    from triton_pipelines.controllers.pod_ownership import ReplicaSetOwner


@dataclass(frozen=True, slots=True)
class ScalingIntent:
    """What the autoscaler wants recorded in the live ConfigMap before it changes any pod."""

    counts: Mapping[str, int]
    """Instances by step."""
    scaling_state_json: str
    """State of the autoscaler, as JSON."""
    pods: int | None = None
    """Number of pods. ``None``: the recorded one stays."""
    cpu: int | None = None
    """CPU limit of each pod in thousandths of a core. ``None``: the recorded one stays."""


@dataclass(frozen=True, slots=True)
class ScalingView:
    """What the status reports about scaling."""

    decision: ScalingDecision
    """The last decision."""
    mode: ScalingMode
    """``spec.scaling.mode`` at that decision."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Step → pod → instances, as the pods report them."""
    metrics_source: str = ""
    """Where metrics are read from; empty if unknown."""
    metrics_failure: str = ""
    """Reason why metrics are not usable (MetricsMissing …); empty if they are."""
    action_failure: str = ""
    """Why the last change failed; empty if it did not."""
    at: float | None = None
    """Time of the decision, Unix seconds."""


@dataclass(slots=True)
class ScalingOutput:
    """What the autoscaler publishes for one pipeline."""

    intent: ScalingIntent | None = None
    """``None``: what is recorded stays."""
    view: ScalingView | None = None
    """``None`` before the first decision."""


@dataclass(slots=True)
class Handover:
    """What the controllers publish, by pipeline. An absent key means that nothing is known yet.

    All parts share one instance. Only the event loop's thread writes; others may read copies.
    """

    scaling: dict[Key, ScalingOutput] = field(default_factory=dict)
    """Published by the autoscaler, read by the pipeline controller."""
    latencies: dict[Key, Latencies] = field(default_factory=dict)
    """Published by the SLO latency monitor, read by the pipeline controller."""
    monitoring: dict[Key, tuple[Finding, ...]] = field(default_factory=dict)
    """Findings about PodMonitor and PrometheusRule; read by the pipeline controller."""
    effective_specs: dict[Key, EffectiveSpec] = field(default_factory=dict)
    """Published by the pipeline controller, read by the autoscaler and both monitors."""
    resize_rejections: dict[Key, dict[str, ResizeRejection]] = field(default_factory=dict)
    """By pod uid. Published by the pipeline controller, read by the autoscaler."""
    replica_sets: dict[Key, dict[str, ReplicaSetOwner]] = field(default_factory=dict)
    """ReplicaSets that pods name, by uid; they decide which pods belong to the pipeline. Published
    by the pipeline controller, read by the autoscaler and the SLO latency monitor."""

    tls: dict[Key, TlsTrust] = field(default_factory=dict)
    """How to connect to pods with TLS. Published by the pipeline controller, read by the
    autoscaler."""

    def intent(self, key: Key) -> ScalingIntent | None:
        """Return what the autoscaler wants recorded. ``None``: what is recorded stays."""
        output = self.scaling.get(key)
        return output.intent if output is not None else None

    def view(self, key: Key) -> ScalingView | None:
        """Return what the status reports about scaling; ``None`` before the first decision."""
        output = self.scaling.get(key)
        return output.view if output is not None else None

    def effective_spec(self, pipeline: Object) -> EffectiveSpec | None:
        """Return the effective spec of a raw pipeline.

        ``None`` before its first reconcile, if it never had a spec that compiles, and if what is
        known belongs to an earlier pipeline of the same name.
        """
        found = self.effective_specs.get(key_of(pipeline))
        if found is None or found.uid != str(pipeline["metadata"].get("uid") or ""):
            return None
        return found
