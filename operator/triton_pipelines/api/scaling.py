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
    """Time windows of the signals."""

    fast_seconds: Annotated[
        int | None,
        Field(
            ge=2,
            le=600,
            description=(
                "Window for scale-up decisions, in seconds; at least 2.2 scrape intervals. "
                "Default: 12; 6 if pods are scraped directly."
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
                "Seconds to wait after one scale-up before the next. Default: until the first "
                "scrape after the change took effect; 8 s until a change has been measured."
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
                "Seconds for which a lower count must be sufficient before the count is reduced."
            ),
        ),
    ] = 180
    max_step_percent: Annotated[
        int,
        Field(
            ge=1,
            le=100,
            description=(
                "Largest percentage of the instances that one scale-down removes; at least one"
                " instance."
            ),
        ),
    ] = 33


class PodBounds(ApiModel):
    """Bounds of the number of pods, if live scaling sets it."""

    min: Annotated[int | None, Field(ge=1, le=10000, description="Fewest pods. Default 1.")] = None
    max: Annotated[int, Field(ge=1, le=10000, description="Most pods.")]

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
                "Active changes counts; Advisory only publishes decisions; Disabled does nothing."
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
                "If no requests wait, a step is scaled up only from this utilization, in percent. "
                "Default: 80, or the target if that is higher."
            ),
        ),
    ] = None
    windows: Annotated[Windows, Field(description="Time windows of the signals.")] = Windows()
    scale_up: Annotated[ScaleUp, Field(description="How counts increase.")] = ScaleUp()
    scale_down: Annotated[ScaleDown, Field(description="How counts decrease.")] = ScaleDown()
    backlog_drain_seconds: Annotated[
        int, Field(ge=1, le=3600, description="Seconds within which a backlog should be processed.")
    ] = 10
    stale_after_seconds: Annotated[
        int,
        Field(
            ge=10,
            le=3600,
            description="Age in seconds at which metrics count as missing and fallback applies.",
        ),
    ] = 60
    fallback: Annotated[
        ScalingFallback,
        Field(
            description=(
                "Behavior without metrics: RecentMax (highest count of the last 15 minutes) and"
                " Initial only raise counts; Hold changes nothing."
            )
        ),
    ] = ScalingFallback.RECENT_MAX
    max_direction_changes_per_hour: Annotated[
        int,
        Field(
            ge=1,
            le=120,
            description=(
                "Number of direction changes per hour after which counts only increase until the "
                "hour is over."
            ),
        ),
    ] = 6
    pods: Annotated[
        PodBounds | None,
        Field(
            description=(
                "Also scales the number of pods when instance counts cannot help. Replaces "
                "replicas. Default: none."
            )
        ),
    ] = None
    cpu_resize: Annotated[
        CpuResize | None,
        Field(
            description=(
                "InPlace: if CPU is the bottleneck, a pod's CPU limit grows without a restart, up"
                " to what instances.max needs. Default: Disabled."
            )
        ),
    ] = None
    prometheus_ref: Annotated[
        ObjectName,
        Field(
            description=(
                "One of the operator's named Prometheus connections. Default: metrics are "
                "scraped from the pods."
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
