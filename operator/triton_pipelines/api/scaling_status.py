"""Scaling part of the status: figures, decisions and history of live scaling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import ApiModel
from .status_types import Count, Short, Time
from .tensors import ATOMIC, by_key


class ScaleEvent(ApiModel):
    """One change to an instance count."""

    time: Annotated[Time, Field(description="Time of the decision.")]
    step: Annotated[Short, Field(description="Name of the step whose count changed.")]
    from_: Annotated[Count, Field(alias="from", description="Instances before.")] = 0
    to: Annotated[Count, Field(description="Instances after.")] = 0
    reason: Annotated[
        Short, Field(description="Reason for the change, with the values on which it is based.")
    ] = ""


class ScalingFigures(ApiModel):
    """Figures of a scaled step across all pods.

    They change only by more than a tenth; for current values, see the metrics.
    """

    step: Annotated[Short, Field(description="Name of the scaled step.")]
    requests_per_second: Annotated[Count, Field(description="Arriving requests.")] = 0
    busy_percent: Annotated[
        Count, Field(description="Utilization of its instances in percent.")
    ] = 0
    wait_milliseconds: Annotated[Count, Field(description="Wait before this step.")] = 0


class ScalingStatus(ApiModel):
    """Signals and decisions of live scaling."""

    bottleneck: Annotated[Short, Field(description="Bottleneck of the pipeline.")] = ""
    mode: Annotated[Short, Field(description="Current mode: Active or Advisory.")] = ""
    last_scale_time: Annotated[
        Time | None, Field(description="Time of the last change to a count.")
    ] = None
    history: Annotated[
        tuple[ScaleEvent, ...],
        Field(
            max_length=5, description="Most recent changes, newest first.", json_schema_extra=ATOMIC
        ),
    ] = ()
    figures: Annotated[
        tuple[ScalingFigures, ...],
        Field(
            max_length=64,
            description="Signals of each step.",
            json_schema_extra=by_key("step"),
        ),
    ] = ()
    figures_time: Annotated[
        Time | None, Field(description="Time at which one of the signals last changed.")
    ] = None
