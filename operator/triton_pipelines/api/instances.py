"""How many instances of a step run, and where.

How a count travels from the resource to a running server:

1. Resource: ``spec.tokenizer.instances`` (:class:`StepCopies`) has ``count``, or ``initial``,
   ``min`` and ``max``.
2. Compilation, defaults: :meth:`StepCopies.bounds` returns :class:`CountBounds` with ``initial``,
   ``min`` and ``max``.
3. Compilation, graph: ``StepInstances.counts`` is the same object.
4. Revision ConfigMap, ``plan.json``: ``loadplan.PlanCount`` has ``initial``, ``min`` and ``max``.
5. Live ConfigMap, ``counts.json``: ``loadplan.LiveCounts`` has the desired count by step.
6. New pod, ``config.pbtxt``: the loader writes ``instance_group.count``, by ``PlanCount.clamp``.
7. Running pod, gRPC ``RepositoryModelLoad``: the autoscaler's actuator sets
   ``instance_group.count``.

The desired count of a step is ``initial`` until the autoscaler has recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from .base import ApiModel, FieldRule, Quantity
from .tensors import AS_SET, ATOMIC

MAX_INSTANCES = 256
# Maximum number of instance groups of a step: eight GPUs with two profiles each.
MAX_GROUPS = 16
# Highest count of a tokenizer whose resource does not set one.
DEFAULT_MAX = 4
PROFILE_PATTERN = r"^[0-9]+$"
HOST_POLICY_PATTERN = r"^[A-Za-z0-9_.-]+$"


class InstanceKind(StrEnum):
    """Where instances run, in Triton's terms without the prefix KIND_.

    Auto leaves the choice to Triton.
    """

    GPU = "GPU"
    CPU = "CPU"
    MODEL = "MODEL"
    AUTO = "Auto"


@dataclass(frozen=True, slots=True)
class CountBounds:
    """Instance counts of one step, with all defaults resolved."""

    initial: int
    """Count that a new pipeline starts with."""
    min: int
    """Lowest count that scaling may set."""
    max: int
    """Highest count that scaling may set."""

    @property
    def scaled(self) -> bool:
        """Return whether the count may change while the pod runs."""
        return self.max > self.min

    def fixed(self) -> CountBounds:
        """Return bounds within which the count never changes."""
        return CountBounds(self.initial, self.initial, self.initial)


HostPolicy = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=64,
        pattern=HOST_POLICY_PATTERN,
        description=(
            "Name of a host policy (NUMA node, CPU cores) that server.args sets with --host-policy."
        ),
    ),
]


class StepCopies(ApiModel):
    """Instances of a step in one pod.

    Either a fixed count, or bounds for scaling a CPU step.
    """

    count: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description=(
                "Fixed number of instances: per GPU for kind GPU, in total otherwise. Cannot "
                "be combined with initial, min or max."
            ),
        ),
    ] = None
    initial: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description="Initial count of a new pipeline. Default: 1, or min if that is higher.",
        ),
    ] = None
    min: Annotated[
        int | None, Field(ge=1, le=MAX_INSTANCES, description="Minimum count. Default: 1.")
    ] = None
    max: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description=(
                "Maximum count. CPU and memory limits are sized for it. Default: 4, or initial "
                "if that is higher."
            ),
        ),
    ] = None
    kind: Annotated[
        InstanceKind | None,
        Field(
            description=(
                "GPU, CPU, MODEL (the backend decides) or Auto (Triton's default). Default: "
                "CPU for tokenizer, postprocess and steps; GPU for the model (CPU if "
                "server.gpu.count is 0, MODEL for vllm). This field does not request a GPU; "
                "use server.gpu for that."
            )
        ),
    ] = None
    host_policy: HostPolicy = None

    rules: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            cel="!has(self.count) || !(has(self.initial) || has(self.min) || has(self.max))",
            message=(
                "must not be combined with initial, min and max; remove "
                "count, or remove the other three fields"
            ),
            holds=lambda i: i.count is None or (i.initial, i.min, i.max) == (None, None, None),
            field="count",
        ),
        FieldRule(
            cel=(
                "(has(self.min) ? self.min : 1) <= (has(self.initial) ? self.initial :"
                " has(self.min) ? self.min : 1)"
            ),
            message="must be at least instances.min",
            holds=lambda i: (i.min or 1) <= (i.initial or i.min or 1),
            field="initial",
        ),
        FieldRule(
            cel=(
                "!has(self.max) || (has(self.initial) ? self.initial : has(self.min) ? self.min :"
                " 1) <= self.max"
            ),
            message="must be at least instances.initial and instances.min",
            holds=lambda i: i.max is None or (i.initial or i.min or 1) <= i.max,
            field="max",
        ),
        FieldRule(
            cel=(
                "!(has(self.initial) || has(self.min) || has(self.max)) || !has(self.kind) ||"
                " self.kind == 'CPU'"
            ),
            message=(
                "initial, min and max are allowed only with kind CPU, because only CPU steps are"
                " scaled live; use count for other kinds"
            ),
            holds=lambda i: (
                (i.initial, i.min, i.max) == (None, None, None)
                or i.kind in (None, InstanceKind.CPU)
            ),
            field="kind",
        ),
    )

    @property
    def ranged(self) -> bool:
        """Return whether the resource has bounds instead of a count."""
        return (self.initial, self.min, self.max) != (None, None, None)

    def bounds(self, *, scaled: bool) -> CountBounds:
        """Return the counts with their defaults.

        Args:
            scaled: Whether a step without any count may grow to :data:`DEFAULT_MAX`.
        """
        if self.count is not None or not (scaled or self.ranged):
            fixed = self.count or 1
            return CountBounds(fixed, fixed, fixed)
        lowest = self.min or 1
        initial = self.initial or lowest
        return CountBounds(initial, lowest, self.max or max(DEFAULT_MAX, initial))


GpuIndices = Annotated[
    tuple[Annotated[int, Field(ge=0, le=63)], ...],
    Field(
        max_length=64,
        description="Indexes of the GPUs in the pod to run on, for kind GPU. Default: all GPUs.",
        json_schema_extra=AS_SET,
    ),
]
ProfileIndices = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=8, pattern=PROFILE_PATTERN)], ...],
    Field(
        max_length=16,
        description="Indexes of TensorRT optimization profiles, as strings.",
        json_schema_extra=ATOMIC,
    ),
]
_GPUS_NEED_KIND = FieldRule(
    cel="!(has(self.gpus) && size(self.gpus) > 0) || !has(self.kind) || self.kind == 'GPU'",
    message="allowed only with kind GPU",
    holds=lambda i: not i.gpus or i.kind in (None, InstanceKind.GPU),
    field="gpus",
)


class InstanceGroup(ApiModel):
    """One of multiple instance groups of a step."""

    count: Annotated[
        int,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description=(
                "Number of instances: per GPU for kind GPU, in total otherwise. Default: 1."
            ),
        ),
    ] = 1
    kind: Annotated[
        InstanceKind | None,
        Field(description="Same as instances.kind, for this group."),
    ] = None
    host_policy: HostPolicy = None
    gpus: GpuIndices = ()

    rules: ClassVar[tuple[FieldRule, ...]] = (_GPUS_NEED_KIND,)


class ModelInstanceGroup(InstanceGroup):
    """One of multiple instance groups of a step that runs a model's file."""

    profiles: ProfileIndices = ()


class PlacedStepCopies(StepCopies):
    """Copies of a step that can run on GPUs."""

    gpus: GpuIndices = ()
    groups: Annotated[
        tuple[InstanceGroup, ...],
        Field(
            max_length=MAX_GROUPS,
            description=(
                "Instance groups with fixed counts, such as two instances on one GPU and one "
                "on another. Cannot be combined with other fields of instances."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()

    rules: ClassVar[tuple[FieldRule, ...]] = (
        _GPUS_NEED_KIND,
        FieldRule(
            cel=(
                "!(has(self.groups) && size(self.groups) > 0) || !(has(self.initial) ||"
                " has(self.min) || has(self.max))"
            ),
            message=(
                "a step with instances.groups cannot be scaled live; remove initial, min and max,"
                " and set count in each group"
            ),
            holds=lambda i: not i.groups or not i.ranged,
            field="groups",
        ),
        FieldRule(
            cel=(
                "!(has(self.groups) && size(self.groups) > 0) || !(has(self.count) ||"
                " has(self.kind) || has(self.hostPolicy) || has(self.gpus) && size(self.gpus) > 0)"
            ),
            message=(
                "must not be combined with instances.count, kind, gpus and"
                " hostPolicy; set them in each group"
            ),
            holds=lambda i: (
                not i.groups
                or ((i.count, i.kind, i.host_policy) == (None, None, None) and not i.gpus)
            ),
            field="groups",
        ),
        *StepCopies.rules,
    )

    @property
    def kinds(self) -> frozenset[InstanceKind | None]:
        """Return the kinds of the groups as written; ``None`` stands for the default."""
        return frozenset(group.kind for group in self.groups) or frozenset({self.kind})


class ModelInstances(PlacedStepCopies):
    """Copies of a step that runs a model's file."""

    profiles: ProfileIndices = ()
    groups: Annotated[
        tuple[ModelInstanceGroup, ...],
        Field(
            max_length=MAX_GROUPS,
            description=(
                "Instance groups with fixed counts, such as two instances on one GPU and one "
                "on another. Cannot be combined with "
                "other fields of instances."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()

    rules: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            cel=(
                "!(has(self.groups) && size(self.groups) > 0) || !(has(self.profiles) &&"
                " size(self.profiles) > 0)"
            ),
            message="must not be combined with instances.profiles; set profiles in each group",
            holds=lambda i: not i.groups or not i.profiles,
            field="groups",
        ),
        *PlacedStepCopies.rules,
    )

    @property
    def loaded_profiles(self) -> tuple[str, ...]:
        """Return the indexes of the optimization profiles that instances load.

        Empty means the first profile.
        """
        listed = [group.profiles for group in self.groups] or [self.profiles]
        return tuple(name for names in listed for name in names or ("0",)) if any(listed) else ()


class InstanceResources(ApiModel):
    """Resources of one instance."""

    cpu: Annotated[Quantity, Field(description="CPU that one instance requests.")] = "1"
    memory: Annotated[Quantity, Field(description="Memory that one instance requests.")] = "400Mi"
