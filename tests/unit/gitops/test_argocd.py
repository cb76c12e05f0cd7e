"""Test Argo CD's health check and the samples next to it.

The check runs in Argo CD's Lua version (5.1), over the operator's own statuses.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from tests.support import statuses
from triton_pipelines.api import names

GITOPS = Path(__file__).parents[3] / "manifests" / "gitops"
SCRIPT = (GITOPS / "argocd-health.lua").read_text()
HEALTH_KEY = f"resource.customizations.health.{names.GROUP}_{names.KIND}"


def health(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the script's result.

    As in Argo CD, `obj` is its only input, and the libraries that access the machine are absent.
    """
    runtime = lua51.LuaRuntime(
        unpack_returned_tuples=True, register_eval=False, register_builtins=False
    )
    runtime.execute("os, io, package, require, dofile, loadfile, debug = nil")
    runtime.globals().obj = runtime.table_from(obj, recursive=True)
    return dict(runtime.execute(SCRIPT))


EXPECTED: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (statuses.created, "Progressing"),
    (statuses.starting, "Progressing"),
    (statuses.ready, "Healthy"),
    (statuses.changed, "Progressing"),
    (statuses.rolling, "Progressing"),
    (statuses.failed_rollout, "Degraded"),
    (statuses.rolled_back, "Degraded"),
    (statuses.invalid, "Degraded"),
    (statuses.suspended, "Suspended"),
    (statuses.not_answering, "Progressing"),
]


@pytest.mark.parametrize(
    ("story", "expected"), EXPECTED, ids=[story.__name__ for story, _ in EXPECTED]
)
def test_health_of_a_pipeline(story: Callable[[], dict[str, Any]], expected: str) -> None:
    item = story()
    found = health(item)
    assert found["status"] == expected, (found, item.get("status"))
    assert found["message"]


def test_message_names_reason_and_remedy() -> None:
    item = statuses.failed_rollout()
    (stalled,) = (
        condition for condition in item["status"]["conditions"] if condition["type"] == "Stalled"
    )
    assert health(item)["message"] == f"{stalled['reason']}: {stalled['message']}"


@pytest.mark.parametrize(
    "status",
    [
        {"observedGeneration": -1},
        {"conditions": []},
        {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    ],
)
def test_odd_statuses_are_progressing(status: dict[str, Any]) -> None:
    item = {**statuses.created(), "status": status}
    assert health(item)["status"] == "Progressing"


def documents(name: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all((GITOPS / name).read_text()) if item]


def test_sample_configuration_holds_the_script() -> None:
    (config,) = documents("argocd-cm.yaml")
    assert config["data"][HEALTH_KEY].strip() == SCRIPT.strip()
    assert (config["kind"], config["metadata"]["name"]) == ("ConfigMap", "argocd-cm")


def test_flux_waits_for_pipelines() -> None:
    pipelines, operator = documents("flux-kustomization.yaml")
    assert pipelines["spec"]["wait"] is True
    assert operator["spec"]["wait"] is True
    assert {"name": operator["metadata"]["name"]} in pipelines["spec"]["dependsOn"]
    assert (GITOPS.parents[1] / operator["spec"]["path"] / "kustomization.yaml").exists()
