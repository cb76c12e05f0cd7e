"""A real API server accepts every object that the operator makes of a sample, unchanged."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from tests.support.controlplane import ControlPlane
from tests.support.serving import SAMPLES, run_here

pytestmark = pytest.mark.integration


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of a sample, as the command line prints them."""
    code, printed, errors = run_here("render", str(SAMPLES / f"{name}.yaml"), "--manifests")
    assert code == 0, errors
    return list(yaml.safe_load_all(printed))


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.yaml")))
def test_objects_are_accepted(api_server: ControlPlane, name: str) -> None:
    """Strictly: a field that the API server does not know would be an error."""
    made = objects(name)
    command = [
        str(api_server.kubectl),
        f"--kubeconfig={api_server.kubeconfig}",
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
    ]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    done = subprocess.run(
        [*command, "--output=json", "--filename=-"],
        input=manifest,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    taken = answer["items"] if answer["kind"] == "List" else [answer]
    assert sorted((item["kind"], item["metadata"]["name"]) for item in taken) == sorted(
        (item["kind"], item["metadata"]["name"]) for item in made
    )


def container(name: str) -> dict[str, Any]:
    """Return the Triton container of a sample's Deployment and its pod's spec."""
    (deployment,) = [item for item in objects(name) if item["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    return {"pod": pod, **pod["containers"][0]}


@pytest.mark.proves("spec.server.gpu.resourceName", "applied")
def test_a_slice_is_asked_for_by_its_name() -> None:
    triton = container("mig")
    assert triton["resources"]["limits"]["nvidia.com/mig-1g.10gb"] in (1, "1")
    assert "nvidia.com/gpu" not in triton["resources"]["limits"]
    assert {one.get("key") for one in triton["pod"]["tolerations"]} >= {
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.10gb",
    }


@pytest.mark.proves("spec.server.gpu.products", "applied")
@pytest.mark.proves("spec.server.image", "applied")
def test_a_plan_stays_on_its_gpu_and_release() -> None:
    triton = container("tensorrt")
    assert triton["image"] == "nvcr.io/nvidia/tritonserver:26.07-py3"
    assert "NVIDIA-A100-SXM4-80GB" in json.dumps(triton["pod"]["affinity"])


@pytest.mark.proves("spec.server.modelCache.claimName", "applied")
def test_engines_and_sources_are_kept_on_the_claim() -> None:
    triton = container("onnx-tensorrt")
    claims = {
        one["name"]
        for one in triton["pod"]["volumes"]
        if one.get("persistentVolumeClaim", {}).get("claimName") == "model-cache"
    }
    for part in (triton, triton["pod"]["initContainers"][0]):
        assert claims & {mount["name"] for mount in part["volumeMounts"]}, part["name"]


@pytest.mark.proves("spec.server.sharedMemory", "applied")
def test_the_engine_gets_its_image_and_its_shared_memory() -> None:
    triton = container("vllm")
    assert triton["image"] == "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3"
    assert any(
        one.get("emptyDir", {}).get("sizeLimit") == "2Gi" for one in triton["pod"]["volumes"]
    )


def test_sequences_keep_their_pod() -> None:
    (service,) = [item for item in objects("sequence") if item["kind"] == "Service"]
    assert service["spec"]["sessionAffinity"] == "ClientIP"
