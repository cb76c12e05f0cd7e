"""How a new revision takes over: strategy, deadline and drain."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel


class RolloutStrategy(StrEnum):
    """Strategy by which a new revision replaces the old one."""

    AUTO = "Auto"
    SURGE = "Surge"
    NO_SURGE = "NoSurge"
    RECREATE = "Recreate"


class PreflightMode(StrEnum):
    """Whether the loader checks a new revision before a serving pod is removed for it."""

    AUTO = "Auto"
    DISABLED = "Disabled"


class RolloutSpec(ApiModel):
    """How a new revision replaces the old one, and how long pods can take to terminate."""

    strategy: Annotated[
        RolloutStrategy,
        Field(
            description=(
                "Surge starts a new pod first, NoSurge removes one old "
                "pod first, and Recreate removes all old pods first. Auto tries Surge and "
                "falls back to NoSurge if no node has capacity for another pod."
            )
        ),
    ] = RolloutStrategy.AUTO
    preflight: Annotated[
        PreflightMode,
        Field(
            description=(
                "If Auto, a Job without GPUs runs the loader's checks of a new revision before a"
                " serving pod is removed to make room for it."
            )
        ),
    ] = PreflightMode.AUTO
    progress_deadline_seconds: Annotated[
        int,
        Field(
            ge=10,
            le=86400,
            description="Time without progress after which a rollout fails, in seconds.",
        ),
    ] = 900
    drain_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=3600,
            description=(
                "Time that a terminating pod waits before Triton stops, in seconds. It is also "
                "Triton's exit timeout."
            ),
        ),
    ] = 30
    revision_history_limit: Annotated[
        int,
        Field(
            ge=1,
            le=20,
            description="Number of old revisions for which ConfigMaps and ReplicaSets are kept.",
        ),
    ] = 3
