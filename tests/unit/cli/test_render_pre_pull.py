"""`tritonpipe render --format pre-pull`: a DaemonSet that pulls the images of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import libyaml
from tests.unit.cli.conftest import Run
from triton_pipelines.api import names

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
SENTIMENT = next(path for path in SAMPLES if path.stem == "sentiment")
IMAGE_SOURCE = ROOT / "tests" / "corpus" / "good" / "image-source.yaml"
PLACED = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "team", "operator": "Equal", "value": "nlp", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry-reader"}],
    "serviceAccountName": "default",
    "runtimeClassName": "nvidia",
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                ]
            }
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
            ]
        },
    },
    "priorityClassName": "serving",
}


def printed(tritonpipe: Run, path: Path, *options: str) -> list[dict[str, Any]]:
    """The printed objects."""
    ended = tritonpipe("render", str(path), *options)
    assert ended.code == 0, ended.err
    return list(libyaml.load_all(ended.out))


def written(folder: Path, server: dict[str, Any]) -> Path:
    """The sample with other fields of the server, in a file."""
    document = libyaml.load(SENTIMENT.read_text())
    document["spec"]["server"] = server
    path = folder / "sentiment.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("path", [*SAMPLES, IMAGE_SOURCE], ids=lambda path: path.stem)
def test_it_pulls_exactly_the_images_of_the_deployment(tritonpipe: Run, path: Path) -> None:
    (daemon_set,) = printed(tritonpipe, path, "--format", "pre-pull")
    operators = printed(tritonpipe, path, "--manifests")
    (deployment,) = [item for item in operators if item["kind"] == "Deployment"]
    pulling = daemon_set["spec"]["template"]["spec"]
    serving = deployment["spec"]["template"]["spec"]
    containers = [*serving["initContainers"], *serving["containers"]]
    fields = ("name", "image", "imagePullPolicy", "securityContext")
    assert [{key: item[key] for key in fields} for item in pulling["containers"]] == [
        {key: item[key] for key in fields} for item in containers
    ]
    volumes = [item for item in serving["volumes"] if "image" in item]
    assert pulling.get("volumes", []) == volumes
    for item in pulling["containers"]:
        mounted = {mount["name"] for mount in item.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in volumes}
        assert "nvidia.com/gpu" not in item["resources"]["limits"]
    assert pulling["securityContext"] == serving["securityContext"]


def test_it_runs_where_the_pipeline_may_run(tritonpipe: Run, tmp_path: Path) -> None:
    path = written(tmp_path, PLACED)
    (daemon_set,) = printed(tritonpipe, path, "--format", "pre-pull")
    pod = daemon_set["spec"]["template"]["spec"]
    for key in ("nodeSelector", "imagePullSecrets", "serviceAccountName", "runtimeClassName"):
        assert pod[key] == PLACED[key]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]
    assert pod["tolerations"][-1] == PLACED["tolerations"][0]  # type: ignore[index]
    # Other pods do not matter: a rule against them would keep the images off the node.
    assert pod["affinity"] == {"nodeAffinity": PLACED["affinity"]["nodeAffinity"]}  # type: ignore[index]
    assert "priorityClassName" not in pod
    assert pod["automountServiceAccountToken"] is False


def test_neither_operator_nor_services_take_the_pods_for_theirs(tritonpipe: Run) -> None:
    (daemon_set,) = printed(tritonpipe, SENTIMENT, "--format", "pre-pull")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for found in (labels, daemon_set["metadata"]["labels"]):
        assert not {names.LABEL_PIPELINE, names.LABEL_MANAGED_BY} & found.keys()
    assert "ownerReferences" not in daemon_set["metadata"]


def test_a_pipeline_that_only_its_gpu_request_places_gets_a_note(
    tritonpipe: Run, tmp_path: Path
) -> None:
    def note(server: dict[str, Any]) -> str:
        path = written(tmp_path, server)
        return tritonpipe("render", str(path), "--format", "pre-pull").err

    assert "set spec.server.nodeSelector" in note({})
    for server in ({"gpu": {"count": 0}}, {"nodeSelector": {"pool": "gpu"}}, PLACED):
        assert "nodeSelector" not in note(server)


def test_images_of_other_containers_are_named(tritonpipe: Run, tmp_path: Path) -> None:
    added = {"name": "proxy", "image": "registry.example/proxy:1"}
    path = written(tmp_path, {"podTemplate": {"spec": {"containers": [added]}}})
    ended = tritonpipe("render", str(path), "--format", "pre-pull")
    assert ended.code == 0, ended.err
    assert "does not pull registry.example/proxy:1" in ended.err
    (daemon_set,) = libyaml.load_all(ended.out)
    assert "registry.example/proxy:1" not in ended.out
    assert len(daemon_set["spec"]["template"]["spec"]["containers"]) == 2
