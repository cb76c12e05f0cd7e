"""Tell which pipelines the operator leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names


def is_unmanaged(pipeline: Mapping[str, Any]) -> bool:
    """Return whether the operator leaves a pipeline alone: it is being deleted, or paused."""
    metadata = pipeline["metadata"]
    return (
        bool(metadata.get("deletionTimestamp"))
        or (metadata.get("annotations") or {}).get(names.ANNOTATION_PAUSED) == "true"
    )
