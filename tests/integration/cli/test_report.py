"""`tritonpipe report` before a real API server; Chromium opens the page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from e2e.local import api, packages
from tests.support.controlplane import ControlPlane
from tests.support.serving import SAMPLES, run, run_here
from triton_pipelines.api import names

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
FILE = SAMPLES / "sentiment.yaml"
NAMESPACE = "report"
PIPELINES = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
CHROMIUM = {"chromium": "chromium"}
HOSTILE = "<img src=x onerror=alert(1)>"


@dataclass(frozen=True)
class Cluster:
    """An API server with one pipeline and the ConfigMap of its revision."""

    kubeconfig: Path
    client: httpx.Client
    config_map: str


@pytest.fixture
def cluster(api_server: ControlPlane) -> Iterator[Cluster]:
    code, printed, errors = run_here("render", "--manifests", str(FILE))
    assert code == 0, errors
    revision_map = next(
        item
        for item in yaml.safe_load_all(printed)
        if item["kind"] == "ConfigMap" and names.KEY_PLAN in item["data"]
    )
    del revision_map["metadata"]["ownerReferences"]
    revision_map["metadata"]["namespace"] = NAMESPACE
    status = {
        "observedGeneration": 1,
        "revision": revision_map["metadata"]["labels"][names.LABEL_REVISION],
        "servingRevision": revision_map["metadata"]["labels"][names.LABEL_REVISION],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": HOSTILE,
                "lastTransitionTime": "2026-11-24T11:00:00Z",
            }
        ],
    }
    with api.client(api_server.kubeconfig) as client:
        api.wait_for("the kind", lambda: client.get(PIPELINES).status_code == 200, 60.0)
        client.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
        item = yaml.safe_load(FILE.read_text())
        item["metadata"]["namespace"] = NAMESPACE
        created = client.post(PIPELINES, json=item)
        assert created.status_code == 201, created.text
        path = f"{PIPELINES}/{item['metadata']['name']}"
        patched = client.patch(
            f"{path}/status",
            content=json.dumps({"status": status}),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert patched.status_code == 200, patched.text
        config_maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        assert client.post(config_maps, json=revision_map).status_code == 201
        name = revision_map["metadata"]["name"]
        yield Cluster(api_server.kubeconfig, client, name)
        client.delete(path)
        client.delete(f"{config_maps}/{name}")


def report(cluster: Cluster, page: Path) -> str:
    done = run(
        "report",
        "sentiment",
        f"--namespace={NAMESPACE}",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--output-file={page}",
    )
    assert done.returncode == 0, done.stderr
    return page.read_text()


def test_a_browser_shows_the_page_without_complaints(cluster: Cluster, tmp_path: Path) -> None:
    page = tmp_path / "sentiment.html"
    report(cluster, page)
    packages.install(CHROMIUM)
    browser = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",  # root has none
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--window-size=1280,2400",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert browser.returncode == 0, browser.stderr
    # The page's own style passes its Content-Security-Policy, and nothing else is attempted.
    assert "CONSOLE" not in browser.stderr, browser.stderr
    shown = browser.stdout
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert "<img" not in shown
    for step in ("tokenizer", "model", "postprocess"):
        assert f"<title>{step}: " in shown
    assert "<code>tokenizer/config.pbtxt</code>" in shown or "config.pbtxt</code>" in shown


def test_a_missing_config_map_is_named_on_the_page(cluster: Cluster, tmp_path: Path) -> None:
    cluster.client.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{cluster.config_map}")
    html = report(cluster, tmp_path / "page.html")
    assert f"The rendered configuration (ConfigMap {cluster.config_map}) could not be read" in html
    assert "No rendered files were read." in html


def test_a_pipeline_that_does_not_exist(cluster: Cluster, tmp_path: Path) -> None:
    done = run(
        "report",
        "none",
        f"--namespace={NAMESPACE}",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--output-file={tmp_path / 'page.html'}",
    )
    assert done.returncode == 2
    assert "InferencePipeline 'none' does not exist" in done.stderr
    assert not (tmp_path / "page.html").exists()
