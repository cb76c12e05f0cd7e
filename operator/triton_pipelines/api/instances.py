"""How many copies of a step run, and where: one type for every step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from .base import ApiModel, Quantity, Rule
from .tensors import ATOMIC

MAX_INSTANCES = 256
# Highest count of a tokenizer whose resource names none.
DEFAULT_MAX = 4
PROFILE_PATTERN = r"^[0-9]+$"
HOST_POLICY_PATTERN = r"^[A-Za-z0-9_.-]+$"


class InstanceKind(StrEnum):
    """Where instances run, in Triton's terms without the prefix KIND_; Auto leaves the choice to Triton."""

    GPU = "GPU"
    CPU = "CPU"
    MODEL = "MODEL"
    AUTO = "Auto"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Instance counts: the one a new pipeline starts with, and the lowest and highest that scaling may set."""

    start: int
    low: int
    high: int


class Copies(ApiModel):
    """Copies of a step in one pod: a fixed count, or bounds within which a CPU step may be scaled."""

    count: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description="A fixed count: per GPU for kind GPU, else in all. Excludes initial, min and max.",
        ),
    ] = None
    initial: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description="Count that a new pipeline starts with. Default 1, or min where that is higher.",
        ),
    ] = None
    min: Annotated[
        int | None, Field(ge=1, le=MAX_INSTANCES, description="Lowest count. Default 1.")
    ] = None
    max: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_INSTANCES,
            description="Highest count; CPU and memory limits are sized for it. Default 4, or initial where that is higher.",
        ),
    ] = None
    kind: Annotated[
        InstanceKind | None,
        Field(
            description="GPU, CPU, MODEL (the backend decides) or Auto (Triton's default). Default: CPU for tokenizer, postprocess and steps; GPU for the model (CPU where server.gpu.count is 0, MODEL for vllm). It asks for no GPU: server.gpu does."
        ),
    ] = None
    host_policy: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern=HOST_POLICY_PATTERN,
            description="Name of a host policy (NUMA node, CPU cores) that server.args sets with --host-policy.",
        ),
    ] = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.count) || !(has(self.initial) || has(self.min) || has(self.max))",
            message="instances.count is a fixed count and excludes initial, min and max",
            holds=lambda i: i.count is None or (i.initial, i.min, i.max) == (None, None, None),
            field="count",
        ),
        Rule(
            cel="(has(self.min) ? self.min : 1) <= (has(self.initial) ? self.initial : has(self.min) ? self.min : 1)",
            message="instances.initial must be at least instances.min",
            holds=lambda i: (i.min or 1) <= (i.initial or i.min or 1),
            field="initial",
        ),
        Rule(
            cel="!has(self.max) || (has(self.initial) ? self.initial : has(self.min) ? self.min : 1) <= self.max",
            message="instances.max must be at least instances.initial and instances.min",
            holds=lambda i: i.max is None or (i.initial or i.min or 1) <= i.max,
            field="max",
        ),
        Rule(
            cel="!(has(self.initial) || has(self.min) || has(self.max)) || !has(self.kind) || self.kind == 'CPU'",
            message="initial, min and max are for steps that are scaled live, which run on CPU; for other kinds write count",
            holds=lambda i: (
                (i.initial, i.min, i.max) == (None, None, None)
                or i.kind in (None, InstanceKind.CPU)
            ),
            field="kind",
        ),
    )

    @property
    def ranged(self) -> bool:
        """Whether bounds are written, not a count."""
        return (self.initial, self.min, self.max) != (None, None, None)

    def bounds(self, *, scaled: bool) -> Bounds:
        """Counts with their defaults. ``scaled``: without anything written the step may grow to :data:`DEFAULT_MAX`."""
        if self.count is not None or not (scaled or self.ranged):
            fixed = self.count or 1
            return Bounds(fixed, fixed, fixed)
        low = self.min or 1
        start = self.initial or low
        return Bounds(start, low, self.max or max(DEFAULT_MAX, start))


class PlacedCopies(Copies):
    """Copies of a step that may run on GPUs."""

    gpus: Annotated[
        tuple[Annotated[int, Field(ge=0, le=63)], ...],
        Field(
            max_length=64,
            description="Kind GPU: the pod's GPUs to run on, by index. Default: all.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = ()

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.gpus) && size(self.gpus) > 0) || !has(self.kind) || self.kind == 'GPU'",
            message="gpus goes with kind GPU only",
            holds=lambda i: not i.gpus or i.kind in (None, InstanceKind.GPU),
            field="gpus",
        ),
        *Copies.rules,
    )


class Instances(PlacedCopies):
    """Copies of a step that runs a model's file."""

    profiles: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=8, pattern=PROFILE_PATTERN)], ...],
        Field(
            max_length=16,
            description="TensorRT: optimization profiles, by index, as text.",
            json_schema_extra=ATOMIC,
        ),
    ] = ()


class InstanceResources(ApiModel):
    """What one more instance may use."""

    cpu: Annotated[Quantity, Field(description="CPU of one instance.")] = "1"
    memory: Annotated[Quantity, Field(description="Memory of one instance.")] = "400Mi"
