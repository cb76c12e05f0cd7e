"""Live scaling of CPU steps, as a user writes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, ObjectName


class ScalingMode(StrEnum):
    """Whether the operator changes instance counts."""

    ACTIVE = "Active"
    ADVISORY = "Advisory"
    DISABLED = "Disabled"  # not "Off": in YAML 1.1, which kubectl reads, that is a boolean


class ScalingFallback(StrEnum):
    """What happens to counts while metrics are missing; counts never decrease because of that."""

    RECENT_MAX = "RecentMax"
    HOLD = "Hold"
    INITIAL = "Initial"


class CpuResize(StrEnum):
    """Whether a pod's CPU grows in place before pods are added."""

    DISABLED = "Disabled"
    IN_PLACE = "InPlace"


class Windows(ApiModel):
    """Time windows over which the signals are computed."""

    fast_seconds: Annotated[
        int | None,
        Field(
            ge=2,
            le=600,
            description=(
                "Window for scale-up decisions, in seconds. It must span at least 2.2 scrape "
                "intervals. Default: 12, or 6 if the operator scrapes the pods directly."
            ),
        ),
    ] = None
    slow_seconds: Annotated[
        int | None,
        Field(
            ge=10,
            le=3600,
            description="Window for service times and verdicts, in seconds. Default: 60.",
        ),
    ] = None

    @property
    def fast(self) -> int:
        """Return the fast window, in seconds."""
        return 12 if self.fast_seconds is None else self.fast_seconds

    @property
    def slow(self) -> int:
        """Return the slow window, in seconds."""
        return 60 if self.slow_seconds is None else self.slow_seconds


class ScaleUp(ApiModel):
    """How counts increase."""

    cooldown_seconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=3600,
            description=(
                "Time between two scale-ups, in seconds. By default, the operator waits for "
                "the first scrape after the change took effect, or 8 s until it has measured "
                "how long a change takes."
            ),
        ),
    ] = None


class ScaleDown(ApiModel):
    """How counts decrease."""

    stabilization_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=86400,
            description=(
                "Time for which a lower count must be sufficient before the count is reduced, "
                "in seconds."
            ),
        ),
    ] = 180
    max_step_percent: Annotated[
        int,
        Field(
            ge=1,
            le=100,
            description=(
                "Maximum percentage of the instances that one scale-down removes. At least one "
                "instance is removed."
            ),
        ),
    ] = 33


class PodBounds(ApiModel):
    """Bounds of the number of pods, if live scaling sets it."""

    min: Annotated[
        int | None, Field(ge=1, le=10000, description="Minimum number of pods. Default: 1.")
    ] = None
    max: Annotated[int, Field(ge=1, le=10000, description="Maximum number of pods.")]

    rules = (
        FieldRule(
            cel="(has(self.min) ? self.min : 1) <= self.max",
            message="must be at most pods.max",
            holds=lambda p: p.low <= p.max,
            field="min",
        ),
    )

    @property
    def low(self) -> int:
        """Return the fewest pods."""
        return 1 if self.min is None else self.min


class Scaling(ApiModel):
    """Live scaling of CPU steps.

    Counts change in place, over gRPC, without a restart and without a lost request.
    """

    mode: Annotated[
        ScalingMode,
        Field(
            description=(
                "Active changes instance counts. Advisory publishes decisions but does not "
                "apply them. Disabled turns scaling off."
            )
        ),
    ] = ScalingMode.ACTIVE
    target_utilization_percent: Annotated[
        int | None,
        Field(
            ge=10,
            le=95,
            description="Target utilization of the scaled step in percent. Default: 70.",
        ),
    ] = None
    scale_up_threshold_percent: Annotated[
        int | None,
        Field(
            ge=10,
            le=100,
            description=(
                "Minimum utilization, in percent, at which a step without waiting requests is "
                "scaled up. Default: 80, or the target if that is higher."
            ),
        ),
    ] = None
    windows: Annotated[
        Windows, Field(description="Time windows over which the signals are computed.")
    ] = Windows()
    scale_up: Annotated[
        ScaleUp, Field(description="Behavior of increases in the instance count.")
    ] = ScaleUp()
    scale_down: Annotated[
        ScaleDown, Field(description="Behavior of decreases in the instance count.")
    ] = ScaleDown()
    backlog_drain_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=3600,
            description="Time within which a backlog should be processed, in seconds.",
        ),
    ] = 10
    stale_after_seconds: Annotated[
        int,
        Field(
            ge=10,
            le=3600,
            description=(
                "Age, in seconds, from which metrics are treated as missing and the fallback "
                "applies."
            ),
        ),
    ] = 60
    fallback: Annotated[
        ScalingFallback,
        Field(
            description=(
                "RecentMax raises the count to the highest of the "
                "last 15 minutes, Initial raises it to the initial count, and Hold keeps it."
            )
        ),
    ] = ScalingFallback.RECENT_MAX
    max_direction_changes_per_hour: Annotated[
        int,
        Field(
            ge=1,
            le=120,
            description=(
                "Number of direction changes within an hour after which the count does not "
                "decrease until the hour is over."
            ),
        ),
    ] = 6
    pods: Annotated[
        PodBounds | None,
        Field(
            description=(
                "Scales the number of pods when more instances would not help. Replaces replicas."
                " Default: no scaling."
            )
        ),
    ] = None
    cpu_resize: Annotated[
        CpuResize | None,
        Field(
            description=(
                "If InPlace and CPU is the bottleneck, a pod's CPU limit is raised without a"
                " restart, up to what instances.max requires. Default: "
                "Disabled."
            )
        ),
    ] = None
    prometheus_ref: Annotated[
        ObjectName,
        Field(
            description=(
                "Name of one of the operator's Prometheus connections. By default, the "
                "operator scrapes the pods directly."
            )
        ),
    ] = "default"

    rules = (
        FieldRule(
            cel=(
                "!has(self.scaleUpThresholdPercent) || self.scaleUpThresholdPercent >="
                " (has(self.targetUtilizationPercent) ? self.targetUtilizationPercent : 70)"
            ),
            message="must be at least targetUtilizationPercent",
            holds=lambda s: (
                s.scale_up_threshold_percent is None or s.scale_up_threshold_percent >= s.target
            ),
            field="scaleUpThresholdPercent",
        ),
        FieldRule(
            cel=(
                "!has(self.windows) || (has(self.windows.fastSeconds) ? self.windows.fastSeconds :"
                " 12) <= (has(self.windows.slowSeconds) ? self.windows.slowSeconds : 60)"
            ),
            message="must be at most windows.slowSeconds",
            holds=lambda s: s.windows.fast <= s.windows.slow,
            field="windows.fastSeconds",
        ),
    )

    @property
    def target(self) -> int:
        """Return the target utilization, in percent."""
        return 70 if self.target_utilization_percent is None else self.target_utilization_percent
