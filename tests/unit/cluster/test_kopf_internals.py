"""Kopf still has the internals that the operator needs, and only one module imports them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import kopf

import triton_pipelines
from triton_pipelines.cluster import kopf_internals
from triton_pipelines.cluster.kopf_internals import Insights, identity, watched_kinds

PACKAGE = Path(triton_pipelines.__path__[0])


def test_kopf_takes_insights_and_identity() -> None:
    parameters = inspect.signature(kopf.operator).parameters
    assert {"insights", "identity"} <= set(parameters)
    assert identity("pod-0") == "pod-0"


def test_insights_name_the_watched_kinds() -> None:
    insights = Insights()
    assert watched_kinds(insights) == set()
    insights.watched_resources.add(kopf.Resource("apps", "v1", "deployments"))
    assert watched_kinds(insights) == {("apps", "v1", "deployments")}


def test_no_other_module_imports_internals() -> None:
    importing = {
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(from|import) kopf\._", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert importing == {Path(kopf_internals.__file__)}
