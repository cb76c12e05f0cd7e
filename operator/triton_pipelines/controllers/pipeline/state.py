"""State that the policies keep between reconcile iterations: one JSON document.

It is stored in the live ConfigMap. Each policy owns one dataclass and one key.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.depth import MAX_DOCUMENT_DEPTH, is_deeper_than
from triton_pipelines.controllers.timestamps import moment

from .certificate_state import CertificateState
from .field_managers import OtherManagers, parse_managers
from .policy_state import PolicyState
from .report_state import ScalingReportState, WarningsState

# A figure beyond this was edited by hand, and may be too large an integer for a float.
_FIGURE_MAX: Final = 1e12


@dataclass(frozen=True, slots=True)
class RevisionState(PolicyState):
    """The spec that was last acted on.

    Another revision for the same spec comes from a new operator release, not from the user.
    """

    generation: int = 0
    """Generation of that spec."""
    desired: str = ""
    """Revision that it was compiled to."""
    spec: str = ""
    """Hash of that spec."""


@dataclass(frozen=True, slots=True)
class RolloutState(PolicyState):
    """Rollouts of the pipeline: the verified revision, and the one that was rolled back."""

    mode_revision: str = ""
    """Revision for which strategy Auto fell back to another mode."""
    mode: str = ""
    """That mode."""
    verified: str = ""
    """Revision that last served the whole pipeline."""
    failed_revision: str = ""
    """Revision that was rolled back."""
    failed_spec: str = ""
    """Hash of the spec that requested it."""
    failed_reason: str = ""
    """Condition reason of the rollback."""
    failed_message: str = ""
    """Why it was rolled back."""
    restored: str = ""
    """Revision that was restored in its place."""
    left: str = ""
    """When pods that were being deleted while a new pod lacked room have left at the latest."""
    overdue_revision: str = ""
    """Revision whose progress deadline passed before old pods were removed for it; empty once it
    has made progress since."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document; a failure with an unknown reason is forgotten."""
        state = super(RolloutState, cls).parse(document)
        if state.failed_reason in {"", *Reason}:
            return state
        return dataclasses.replace(state, failed_revision="", failed_reason="")

    def target(self, desired: str) -> str:
        """Return the revision to run: ``desired``, or the restored one if ``desired`` failed."""
        return self.restored if self.failed_revision == desired and self.restored else desired

    def without_failure(self) -> Self:
        """Return the state without a rolled back revision."""
        return dataclasses.replace(
            self,
            failed_revision="",
            failed_spec="",
            failed_reason="",
            failed_message="",
            restored="",
        )


@dataclass(frozen=True, slots=True)
class StalledRolloutState(PolicyState):
    """A rollout that failed while pods of another revision still serve."""

    revision: str = ""
    """Revision whose pods do not all become ready; empty if the rollout is not stalled."""
    pods: int = 0
    """How many of them served when it stalled."""


@dataclass(frozen=True, slots=True)
class SloGuardState(PolicyState):
    """A rollout whose latency is watched."""

    revision: str = ""
    """The new revision; empty if no rollout is watched."""
    predecessor: str = ""
    """Revision to roll back to."""
    before: float = 0.0
    """p99 of the predecessor, milliseconds; 0 if unknown."""
    rate: float = 0.0
    """Requests per second in one pod of the predecessor; 0 if unknown."""
    since: str = ""
    """When the new revision first served the whole pipeline (RFC 3339); empty before that."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document; an unreadable one counts as no watched rollout."""
        if not isinstance(document, Mapping):
            return cls()
        texts = [document.get(key, "") for key in ("revision", "predecessor", "since")]
        numbers = [document.get(key, 0.0) for key in ("before", "rate")]
        if not all(isinstance(text, str) for text in texts) or not all(
            _is_figure(number) for number in numbers
        ):
            return cls()
        if texts[2] and moment(texts[2]) is None:
            return cls()
        return cls(texts[0], texts[1], float(numbers[0]), float(numbers[1]), texts[2])

    def to_document(self) -> dict[str, Any]:
        """Return the fields that are not empty; nothing if no rollout is watched."""
        return super(SloGuardState, self).to_document() if self.revision else {}


@dataclass(frozen=True, slots=True)
class FieldManagersState(PolicyState):
    """Other managers that write a field of ours."""

    managers: tuple[str, ...] = ()
    """Their names, sorted."""
    corrected: str = ""
    """When their edit was last corrected (RFC 3339); empty if the field is left to them."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document; with an unreadable time, no manager is known."""
        if not isinstance(document, Mapping):
            return cls()
        state = dataclasses.replace(
            super(FieldManagersState, cls).parse(document),
            managers=parse_managers(document.get("managers")),
        )
        if state.corrected and moment(state.corrected) is None:
            return dataclasses.replace(state, managers=(), corrected="")
        return state

    @property
    def others(self) -> OtherManagers:
        """The managers, with the rule of when they keep the field."""
        return OtherManagers(self.managers, self.corrected)

    def with_others(self, others: OtherManagers) -> Self:
        """Return the state with these managers."""
        return dataclasses.replace(self, managers=others.managers, corrected=others.corrected)


@dataclass(frozen=True, slots=True)
class ReplicasState(FieldManagersState):
    """Other managers of the number of pods, and the number during a rollout."""

    alternating: Mapping[str, Any] = field(default_factory=dict)
    """Who writes ``spec.replicas`` of the pipeline
    (:class:`~.field_managers.AlternatingManagers`)."""
    rollout_pods: int = 0
    """Pods with which a rollout continues if scaling wants more than fit; 0: all."""


@dataclass(frozen=True, slots=True)
class CpuResizeState(FieldManagersState):
    """Other managers of the pods' CPU."""

    @property
    def kept_by(self) -> str:
        """Managers that the CPU is left to; empty if it is ours."""
        return self.others.owners


@dataclass(frozen=True, slots=True)
class PodRepairState(PolicyState):
    """Pods that were deleted because their probes found a fault, and pods that have worked."""

    repaired: str = ""
    """When one was last deleted (RFC 3339)."""
    count: int = 0
    """How many were deleted in a row, each soon after the one before."""
    answered: Mapping[str, int] = field(default_factory=dict)
    """Pods that have answered a test inference in time, by uid: how often Triton's container had
    been restarted before. A restarted operator would not know it otherwise."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document; an unreadable time, or an unreadable pod, counts as none."""
        state = super(PodRepairState, cls).parse(document)
        answered = {uid: count for uid, count in state.answered.items() if type(count) is int}
        if moment(state.repaired) is None:
            return cls(answered=answered)
        return dataclasses.replace(state, answered=answered)


@dataclass(frozen=True, slots=True)
class ControlSecretsState(PolicyState):
    """Control keys that were applied."""

    digests: Mapping[str, str] = field(default_factory=dict)
    """Hash of the control key by revision."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document; at worst, a Secret is applied again."""
        digests = document.get("digests") if isinstance(document, Mapping) else None
        if not isinstance(digests, Mapping):
            return cls()
        return cls({name: value for name, value in digests.items() if isinstance(value, str)})


@dataclass(frozen=True, slots=True)
class TuningRunState(PolicyState):
    """The last tuning run."""

    document: Mapping[str, Any] = field(default_factory=dict)
    """Fields of :class:`~.tuning_run_state.Run`. An unreadable document is a lost run, not none."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document."""
        return cls(dict(document)) if isinstance(document, Mapping) else cls()

    def to_document(self) -> dict[str, Any]:
        """Return the fields of the run; nothing without one."""
        return dict(self.document)


@dataclass(frozen=True, slots=True)
class PipelineState:
    """State of all policies of one pipeline: one field and one JSON key each."""

    revision: RevisionState = RevisionState()
    rollout: RolloutState = RolloutState()
    stalled_rollout: StalledRolloutState = StalledRolloutState()
    slo_guard: SloGuardState = SloGuardState()
    replicas: ReplicasState = field(default_factory=ReplicasState)
    cpu_resize: CpuResizeState = CpuResizeState()
    pod_repair: PodRepairState = field(default_factory=PodRepairState)
    control_secrets: ControlSecretsState = field(default_factory=ControlSecretsState)
    tuning_run: TuningRunState = field(default_factory=TuningRunState)
    warnings: WarningsState = field(default_factory=WarningsState)
    scaling_report: ScalingReportState = field(default_factory=ScalingReportState)
    certificate: CertificateState = field(default_factory=CertificateState)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read a document; what cannot be read counts as empty."""
        document = json_object(text)
        states: dict[str, Any] = {
            name: kind.parse(document.get(name)) for name, kind in STATES.items()
        }
        return cls(**states)

    def to_json(self) -> str:
        """Return canonical JSON, without what is empty."""
        documents = {name: getattr(self, name).to_document() for name in STATES}
        return json.dumps({name: item for name, item in documents.items() if item}, sort_keys=True)

    def with_states(self, *states: PolicyState) -> Self:
        """Return the same state with these in the place of those of their kind."""
        named = {STATE_NAMES[type(state)]: state for state in states}
        changed: dict[str, Any] = {
            name: state for name, state in named.items() if state is not getattr(self, name)
        }
        return dataclasses.replace(self, **changed) if changed else self


STATES: Final[Mapping[str, type[PolicyState]]] = {
    "revision": RevisionState,
    "rollout": RolloutState,
    "stalled_rollout": StalledRolloutState,
    "slo_guard": SloGuardState,
    "replicas": ReplicasState,
    "cpu_resize": CpuResizeState,
    "pod_repair": PodRepairState,
    "control_secrets": ControlSecretsState,
    "tuning_run": TuningRunState,
    "warnings": WarningsState,
    "scaling_report": ScalingReportState,
    "certificate": CertificateState,
}
STATE_NAMES: Final = {kind: name for name, kind in STATES.items()}


def json_object(text: str | None) -> dict[str, Any]:
    """Read a JSON object out of a ConfigMap; anything else, as after an edit, counts as empty.

    So does one that is nested too deeply, because comparing it would fail.
    """
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    is_usable = isinstance(document, dict) and not is_deeper_than(document, MAX_DOCUMENT_DEPTH)
    return document if is_usable else {}


def _is_figure(number: Any) -> bool:
    return (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and 0 <= number <= _FIGURE_MAX
    )
