"""A tuning run in the cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel


class TuningMode(StrEnum):
    """How thoroughly the tuner measures."""

    QUICK = "Quick"
    THOROUGH = "Thorough"


class Tuning(ApiModel):
    """A tuning run in the cluster. Results are in status.tuning; the spec is never changed."""

    request: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            description=(
                "Any text, such as a date. A change to it starts a tuning run on a pod without "
                "client traffic. Default: no tuning run."
            ),
        ),
    ] = None
    mode: Annotated[
        TuningMode | None,
        Field(
            description=(
                "Quick takes under 3 minutes. Thorough measures longer and repeatedly. Default:"
                " Quick."
            )
        ),
    ] = None
