"""Read the scaling part of a pipeline's status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from triton_pipelines.autoscaling.types import Verdict

CONDITIONS: Final = ("MetricsAvailable", "ScalingActive", "ScalingLimited")
METRICS: Final = {
    "requestsPerSecond": "requests/s",
    "busyPercent": "busy %",
    "waitMilliseconds": "wait ms",
}
"""Fields of a step's figures, and how tables call them."""


def scaling_of(pipeline: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``status.scaling``; empty if it is missing."""
    return (pipeline.get("status") or {}).get("scaling") or {}


def scaled_steps(pipeline: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the steps of the status that scaling manages: those with a verdict."""
    return [
        item for item in (pipeline.get("status") or {}).get("steps") or () if item.get("verdict")
    ]


def metrics_of(pipeline: Mapping[str, Any], step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a step's metrics from the status.

    Empty while its verdict is Unknown: an unmeasured load is not zero.
    """
    if step.get("verdict") == Verdict.UNKNOWN.value:
        return {}
    return next(
        (
            item
            for item in scaling_of(pipeline).get("figures") or ()
            if item.get("step") == step["name"]
        ),
        {},
    )


def abnormal_conditions(pipeline: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the types, reason and message of abnormal conditions; equal messages are merged."""
    types: dict[tuple[str, str], list[str]] = {}
    for item in (pipeline.get("status") or {}).get("conditions") or ():
        good = "False" if item["type"] == "ScalingLimited" else "True"
        if item["type"] in CONDITIONS and item["status"] != good:
            types.setdefault(
                (item["reason"], item["message"].removeprefix(f"{item['reason']}: ")), []
            ).append(item["type"])
    for (reason, message), kinds in types.items():
        yield ", ".join(kinds), reason, message
