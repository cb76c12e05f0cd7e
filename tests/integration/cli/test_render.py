"""`tritonpipe render --manifests` and `status` before a real API server."""

from __future__ import annotations

import datetime as dt
import functools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api
from tests.support.controlplane import ControlPlane
from tests.support.serving import SAMPLES, run, run_here
from triton_pipelines.api import crd, names
from triton_pipelines.cli.render import KEY_PLACEHOLDER
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render.objects import PLACEHOLDER_UID
from triton_pipelines.controllers.pipeline.planner import Context, plan
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

pytestmark = pytest.mark.integration
FILES = sorted(SAMPLES.glob("*.yaml"))
IMAGE_SOURCE = SAMPLES.parents[1] / "tests/corpus/good/image-source.yaml"
PIPELINES = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"


def kubectl(plane: ControlPlane, *arguments: str, text: str = "") -> str:
    command = [str(plane.kubectl), f"--kubeconfig={plane.kubeconfig}", *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster(api_server: ControlPlane) -> Iterator[tuple[ControlPlane, httpx.Client]]:
    """An API server that serves the definition which `tritonpipe crd` prints."""
    kubectl(
        api_server, "apply", "--server-side", "--force-conflicts", "--filename=-", text=crd.render()
    )
    with api.client(api_server.kubeconfig) as client:
        api.wait_for("the kind", lambda: client.get(PIPELINES).status_code == 200, 60.0)
        yield api_server, client


@functools.cache
def rendered(file: Path) -> str:
    """What `tritonpipe render --manifests` prints."""
    code, printed, errors = run_here("render", "--manifests", str(file))
    assert code == 0, errors
    return printed


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_kubectl_takes_the_manifests(
    cluster: tuple[ControlPlane, httpx.Client], file: Path
) -> None:
    for way in (["apply"], ["apply", "--server-side"]):
        said = kubectl(
            cluster[0],
            *way,
            "--dry-run=server",
            "--validate=strict",
            "--filename=-",
            text=rendered(file),
        )
        for kind in ("configmap", "secret", "service", "networkpolicy", "deployment"):
            assert kind in said


@pytest.mark.parametrize("file", [*FILES, IMAGE_SOURCE], ids=lambda path: path.stem)
def test_kubectl_takes_the_daemon_set_that_pulls_images(
    cluster: tuple[ControlPlane, httpx.Client], file: Path
) -> None:
    code, printed, errors = run_here("render", "--format=pre-pull", str(file))
    assert code == 0, errors
    arguments = ("--dry-run=server", "--validate=strict", "--output=yaml", "--filename=-")
    kept = yaml.safe_load(kubectl(cluster[0], "apply", *arguments, text=printed))
    pod, expected = (item["spec"]["template"]["spec"] for item in (kept, yaml.safe_load(printed)))
    assert pod.get("volumes") == expected.get("volumes")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_stored_resource_gives_the_same_manifests(
    cluster: tuple[ControlPlane, httpx.Client], file: Path
) -> None:
    """The operator makes the same of a file with the API server's defaults as of the file alone."""
    plane, client = cluster
    kubectl(plane, "apply", "--server-side", f"--filename={file}")
    stored: dict[str, Any] = client.get(f"{PIPELINES}/{file.stem}").json()
    # Who wrote the number of pods is remembered too; a file does not say it.
    del stored["metadata"]["managedFields"]
    try:
        applied = plan(
            Snapshot(stored),
            Context(Options(), lambda _uid, _revision: KEY_PLACEHOLDER),
            dt.datetime.now(dt.UTC),
        ).apply
        printed = json.dumps(list(yaml.safe_load_all(rendered(file))), indent=1)
        assert printed.replace(PLACEHOLDER_UID, stored["metadata"]["uid"]) == json.dumps(
            applied, indent=1
        )
    finally:
        client.delete(f"{PIPELINES}/{file.stem}")


def test_status_of_a_resource_that_no_operator_has_seen(
    cluster: tuple[ControlPlane, httpx.Client],
) -> None:
    plane, client = cluster
    kubeconfig = f"--kubeconfig={plane.kubeconfig}"
    missing = run("status", "sentiment", kubeconfig)
    assert (
        missing.returncode,
        "InferencePipeline 'sentiment' does not exist" in missing.stderr,
    ) == (
        2,
        True,
    )
    kubectl(plane, "apply", "--server-side", f"--filename={SAMPLES / 'sentiment.yaml'}")
    try:
        done = run("status", "sentiment", kubeconfig)
    finally:
        client.delete(f"{PIPELINES}/sentiment")
    assert done.returncode == 1, done.stderr
    assert "default/sentiment" in done.stdout
