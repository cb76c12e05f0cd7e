"""`tritonpipe render --format kserve`: the structure of a custom predictor of KServe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import libyaml
from tests.unit.cli.conftest import Run
from triton_pipelines.api import names

SAMPLES = sorted((Path(__file__).parents[3] / "manifests" / "samples").glob("*.yaml"))
SENTIMENT = next(path for path in SAMPLES if path.stem == "sentiment")


def rendered(tritonpipe: Run, path: Path, *options: str) -> list[dict[str, Any]]:
    """The printed objects."""
    ended = tritonpipe("render", str(path), *options)
    assert ended.code == 0, ended.err
    return list(libyaml.load_all(ended.out))


def mounted_objects(pod: dict[str, Any]) -> set[tuple[str, str]]:
    """Kind and name of the objects that the volumes of a pod and its environment name."""
    volumes = pod["volumes"]
    found = {("ConfigMap", one["configMap"]["name"]) for one in volumes if "configMap" in one}
    environment = [entry for one in pod["containers"] for entry in one.get("env", [])]
    keys = [entry["valueFrom"]["secretKeyRef"] for entry in environment if "valueFrom" in entry]
    return found | {("Secret", key["name"]) for key in keys}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_kserve_runs_the_pod_that_the_operator_would_run(tritonpipe: Run, path: Path) -> None:
    service = rendered(tritonpipe, path, "--format", "kserve")[-1]
    operators = rendered(tritonpipe, path, "--manifests")
    deployment = next(item for item in operators if item["kind"] == "Deployment")
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    predictor = dict(service["spec"]["predictor"])
    replicas = predictor.pop("minReplicas")
    assert replicas == predictor.pop("maxReplicas")
    expected = deployment["spec"]["template"]["spec"]
    del expected["topologySpreadConstraints"]
    (server,) = [one for one in expected["containers"] if one["name"] == names.CONTAINER_SERVER]
    server["name"] = "kserve-container"
    assert predictor == expected


def test_the_operator_does_not_take_the_objects_for_its_own(tritonpipe: Run) -> None:
    *mounted, service = rendered(tritonpipe, SENTIMENT, "--format", "kserve")
    for item in (*mounted, service):
        assert not {"ownerReferences", "labels"} & set(item["metadata"]), item["kind"]
    present = {(item["kind"], item["metadata"]["name"]) for item in mounted}
    assert mounted_objects(service["spec"]["predictor"]) <= present
    assert {item["kind"] for item in mounted} == {"ConfigMap", "Secret"}


def test_the_format_of_the_operator_is_the_default(tritonpipe: Run) -> None:
    assert (
        tritonpipe("render", str(SENTIMENT), "--format", "operator").out
        == tritonpipe("render", str(SENTIMENT)).out
    )
