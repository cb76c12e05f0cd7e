"""Metrics, alerts and traces of the pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel

OTLP_PATTERN = r"^https?://[^\s,]+$"


class Tracing(ApiModel):
    """Triton's OpenTelemetry traces."""

    otlp_endpoint: Annotated[
        str,
        Field(
            max_length=512,
            pattern=OTLP_PATTERN,
            description="URL of the OTLP endpoint over HTTP, such as"
            " http://collector:4318/v1/traces.",
        ),
    ]
    sample_every: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000_000,
            description="Sampling interval: one request out of this number is traced.",
        ),
    ] = 1000


class Presence(StrEnum):
    """Whether to create an object of another operator's kind."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Observability(ApiModel):
    """Metrics, alerts and traces of the pods."""

    pod_monitor: Annotated[
        Presence | None,
        Field(
            description=(
                "Whether to create a PodMonitor for the Prometheus operator. Auto creates it "
                "if the cluster serves this kind. Enabled warns if it does not. Default: Auto."
            )
        ),
    ] = None
    prometheus_rule: Annotated[
        Presence | None,
        Field(
            description=(
                "Whether to create a PrometheusRule with the pipeline's recording rules and "
                "alerts. Default: Auto."
            )
        ),
    ] = None

    tracing: Annotated[
        Tracing | None,
        Field(
            description=(
                "Export of traces. Triton reads it only at startup, so a change creates a new"
                " revision. Default: no traces."
            )
        ),
    ] = None
