"""PodMonitors and PrometheusRules on a real API server.

They are created where their kinds are served, as the spec requests, and removed with that request.
"""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.local import packages
from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.monitoringcrds import served
from tests.support.operators import apply_any, eventually, operator, patch
from tests.support.prometheus import packages_path
from triton_pipelines.api import names
from triton_pipelines.app import composition
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, POD_MONITORS, PROMETHEUS_RULES
from triton_pipelines.controllers.monitoring_objects import MonitoringObjects

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(180),
]
FIELDS = {"podMonitor": POD_MONITORS, "prometheusRule": PROMETHEUS_RULES}
DEADLINE = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        composition, "MonitoringObjects", partial(MonitoringObjects, round_seconds=0.3)
    )


async def applied(client: Client, namespace: str, name: str, value: str | None) -> None:
    """A pipeline with both fields at this value."""
    given: dict[str, Any] = {} if value is None else {"observability": dict.fromkeys(FIELDS, value)}
    document = builders.document(namespace=namespace, name=name, **given)
    document["metadata"].pop("uid")
    await apply_any(client, INFERENCE_PIPELINES, document)


async def warned(client: Client, namespace: str, name: str) -> dict[str, str]:
    """What the status says of these fields, by field."""
    status = (await client.get(INFERENCE_PIPELINES, namespace, name)).get("status") or {}
    found = {item["path"]: item["message"] for item in status.get("warnings") or ()}
    return {
        field: found[path] for field in FIELDS if (path := f"spec.observability.{field}") in found
    }


async def objects(client: Client, namespace: str, name: str) -> dict[str, Object]:
    """Those that there are, by field."""
    found = {}
    for field, resource in FIELDS.items():
        try:
            found[field] = await client.get(resource, namespace, name)
        except NotFound:
            continue
    return found


async def until_made(client: Client, namespace: str, name: str, *fields: str) -> dict[str, Object]:
    async def there() -> dict[str, Object] | None:
        found = await objects(client, namespace, name)
        return found if set(found) == set(fields) else None

    if not fields:
        await eventually(f"{name} has none of them", lambda: _true(there()), DEADLINE)
        return {}
    return dict(await eventually(f"{name} has {fields}", there, DEADLINE))


async def _true(found: Any) -> bool:
    return await found is not None


async def until_warned(client: Client, namespace: str, name: str, *fields: str) -> dict[str, str]:
    async def said() -> dict[str, str] | None:
        found = await warned(client, namespace, name)
        return found if set(found) == set(fields) else None

    if not fields:
        await eventually(f"{name} is warned of nothing", lambda: _true(said()), DEADLINE)
        return {}
    return dict(await eventually(f"{name} is warned of {fields}", said, DEADLINE))


@pytest.mark.proves("spec.observability.podMonitor", "behaviour")
@pytest.mark.proves("spec.observability.prometheusRule", "behaviour")
async def test_they_follow_the_spec_and_what_the_cluster_serves(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    namespace = bare_namespace
    values = {"unsaid": None, "auto": "Auto", "enabled": "Enabled", "disabled": "Disabled"}
    async with operator(
        bare_proxy, tmp_path, namespace, monitoring_labels={"release": "kube-prometheus"}
    ):
        for name, value in values.items():
            await applied(bare, namespace, name, value)
        said = await until_warned(bare, namespace, "enabled", *FIELDS)
        assert said["podMonitor"].startswith(
            "the cluster does not serve PodMonitor (monitoring.coreos.com); install the "
            "Prometheus Operator CRDs"
        )
        assert "PrometheusRule" in said["prometheusRule"]
        for name in ("unsaid", "auto", "disabled"):
            assert await warned(bare, namespace, name) == {}, "Auto is content without"
        async with served(bare):
            for name in ("unsaid", "auto", "enabled"):
                await until_made(bare, namespace, name, *FIELDS)
            await until_warned(bare, namespace, "enabled")
            assert await objects(bare, namespace, "disabled") == {}
            made = await objects(bare, namespace, "auto")
            looked_at(made["podMonitor"], "auto")
            checked_by_promtool(made["prometheusRule"], tmp_path)

            edited = {"spec": {"podMetricsEndpoints": [{"port": "http"}]}}
            await patch(bare, POD_MONITORS, namespace, "auto", edited)

            async def corrected() -> bool:
                found = await bare.get(POD_MONITORS, namespace, "auto")
                return bool(found["spec"] == made["podMonitor"]["spec"])

            await eventually("what was edited is put right", corrected, DEADLINE)
            await bare.delete(PROMETHEUS_RULES, namespace, "auto")
            await until_made(bare, namespace, "auto", *FIELDS)

            await patch(
                bare,
                INFERENCE_PIPELINES,
                namespace,
                "auto",
                {"spec": {"observability": {"podMonitor": "Disabled"}}},
            )
            await until_made(bare, namespace, "auto", "prometheusRule")
        await until_warned(bare, namespace, "enabled", *FIELDS)


@pytest.mark.proves("spec.observability.podMonitor", "behaviour")
async def test_what_others_made_stays_theirs_and_auto_is_the_operators_choice(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    namespace = bare_namespace
    async with served(bare):
        foreign = {
            "selector": {"matchLabels": {"app": "else"}},
            "podMetricsEndpoints": [{"port": "web"}],
        }
        for name in ("taken", "kept"):
            item = {
                "apiVersion": POD_MONITORS.api_version,
                "kind": "PodMonitor",
                "metadata": {"name": name, "namespace": namespace},
                "spec": foreign,
            }
            await apply_any(bare, POD_MONITORS, item)
        async with operator(bare_proxy, tmp_path, namespace, monitoring_auto="prometheusRule"):
            for name, value in {"taken": "Enabled", "kept": "Disabled", "auto": "Auto"}.items():
                await applied(bare, namespace, name, value)
            said = await until_warned(bare, namespace, "taken", "podMonitor")
            assert (
                "PodMonitor taken exists in this namespace and does not belong to this pipeline"
                in said["podMonitor"]
            )
            await until_made(bare, namespace, "auto", "prometheusRule")
            await until_made(bare, namespace, "taken", *FIELDS)
            for name in ("taken", "kept"):
                assert (await bare.get(POD_MONITORS, namespace, name))["spec"] == foreign


def looked_at(item: Object, name: str) -> None:
    """Check that a PodMonitor selects exactly the pipeline's pods.

    Prometheus selects it, and it is deleted with the pipeline.
    """
    assert item["metadata"]["labels"]["release"] == "kube-prometheus"
    assert item["metadata"]["labels"][names.LABEL_PIPELINE] == name
    (owner,) = item["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == (names.KIND, name, True)
    assert item["spec"]["selector"] == {"matchLabels": names.selector(name)}
    (endpoint,) = item["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == (
        "metrics",
        "/metrics",
        "5s",
    )
    (relabelling,) = endpoint["relabelings"]
    assert relabelling["sourceLabels"] == [
        "__meta_kubernetes_pod_label_tritonpipelines_io_pipeline"
    ]
    assert relabelling["targetLabel"] == "pipeline"


def checked_by_promtool(item: Object, folder: Path) -> None:
    """The rules as the API server has them are rules."""
    packages.install(packages.PROMETHEUS)
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(item["spec"]))
    done = subprocess.run(
        [packages_path("promtool"), "check", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
