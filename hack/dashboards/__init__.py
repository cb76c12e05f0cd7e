"""The Grafana dashboards: one of a pipeline, one of all pipelines and the operator.

``python -m hack.monitoring`` writes their JSON. To change a dashboard, edit ``pipeline.py`` or
``overview.py``; PromQL that both use is in ``expressions.py``.
"""

from __future__ import annotations

from typing import Any

from . import overview, pipeline


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the dashboards by name of their files, without an extension."""
    return {
        "overview": overview.dashboard().document(),
        "pipeline": pipeline.dashboard().document(),
    }
