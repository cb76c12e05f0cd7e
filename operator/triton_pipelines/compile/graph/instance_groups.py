"""Triton's instance groups of a step, with every default resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.api.instances import (
    CountBounds,
    InstanceGroup,
    InstanceKind,
    ModelInstanceGroup,
)

# Kinds whose count Triton starts on every GPU of the group (KIND_AUTO: if it has GPUs).
PER_GPU: Final = ("KIND_GPU", "KIND_AUTO")


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """One instance group: how many instances, and where they run."""

    kind: str
    """Triton's kind, such as ``KIND_CPU``."""
    count: int
    """Number of instances: per GPU for ``KIND_GPU``, otherwise in total."""
    gpus: tuple[int, ...] = ()
    """GPUs of the pod to run on, by index; empty: all."""
    profiles: tuple[str, ...] = ()
    """TensorRT optimization profiles, by index."""
    host_policy: str = ""
    """Triton's host policy; empty: none."""
    field: str = "instances"
    """Field of the step that declares the group, which findings name."""


@dataclass(frozen=True, slots=True)
class StepInstances:
    """Instances of a step: how many, and where they run."""

    counts: CountBounds
    """The initial count of all groups and its bounds."""
    groups: tuple[PlacedGroup, ...]
    """The groups, at least one. A step that is scaled has exactly one."""

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of the groups."""
        return frozenset(group.kind for group in self.groups)

    @property
    def profiles(self) -> tuple[str, ...]:
        """Return the optimization profiles that instances load, by index; empty: the first."""
        listed = [group.profiles for group in self.groups]
        return tuple(name for names in listed for name in names or ("0",)) if any(listed) else ()

    @property
    def on_cpu(self) -> bool:
        """Return whether no instance uses a GPU."""
        return self.kinds == {"KIND_CPU"}

    @property
    def scaled(self) -> bool:
        """Return whether the count may change while the pod runs."""
        return self.counts.scaled

    def processes(self, gpus: int) -> tuple[int, int]:
        """Return the initial and the highest number of instances on a server with ``gpus`` GPUs.

        Triton counts instances of ``KIND_GPU`` per GPU.
        """
        if self.scaled:
            devices = _devices(self.groups[0], gpus)
            return self.counts.initial * devices, self.counts.max * devices
        total = sum(group.count * _devices(group, gpus) for group in self.groups)
        return total, total

    def fixed(self) -> StepInstances:
        """Return instances whose count is fixed."""
        return replace(self, counts=self.counts.fixed())


def _devices(group: PlacedGroup, gpus: int) -> int:
    return (len(group.gpus) or max(gpus, 1)) if group.kind in PER_GPU else 1


def one_group(
    kind: InstanceKind,
    counts: CountBounds,
    *,
    gpus: Sequence[int] = (),
    profiles: Sequence[str] = (),
    host_policy: str | None = None,
) -> StepInstances:
    """Return the instances of a step that has one group."""
    group = PlacedGroup(
        triton_kind(kind), counts.initial, tuple(gpus), tuple(profiles), host_policy or ""
    )
    return StepInstances(counts, (group,))


def several_groups(declared: Sequence[InstanceGroup], default: InstanceKind) -> StepInstances:
    """Return the instances of a step that declares its groups.

    Args:
        declared: ``instances.groups`` of the resource.
        default: The kind of a group that has none.
    """
    groups = tuple(
        _placed_group(group, default, f"instances.groups[{index}]")
        for index, group in enumerate(declared)
    )
    return StepInstances(_total(sum(one.count * (len(one.gpus) or 1) for one in groups)), groups)


def _total(count: int) -> CountBounds:
    return CountBounds(count, count, count)


def _placed_group(declared: InstanceGroup, default: InstanceKind, field: str) -> PlacedGroup:
    kind = declared.kind or default
    return PlacedGroup(
        triton_kind(kind),
        declared.count,
        declared.gpus,
        declared.profiles if isinstance(declared, ModelInstanceGroup) else (),
        declared.host_policy or "",
        field,
    )


def moved_to_cpu(instances: StepInstances) -> StepInstances:
    """Return the instances with every group on CPU; profiles need a GPU."""
    groups = tuple(
        replace(group, kind=triton_kind(InstanceKind.CPU), gpus=(), profiles=())
        for group in instances.groups
    )
    counts = instances.counts if instances.scaled else _total(sum(one.count for one in groups))
    return replace(instances, counts=counts, groups=groups)


def triton_kind(kind: InstanceKind) -> str:
    """Return Triton's name of a kind."""
    return f"KIND_{kind.value.upper()}"
