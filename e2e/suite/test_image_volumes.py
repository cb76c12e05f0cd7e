"""Sources that the kubelet mounts as image volumes: from a private registry to right answers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.suite import clients, registry
from e2e.suite.access import Access, Images
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import Pipeline, check_answer, golden, small
from e2e.suite.reach import Reach
from e2e.suite.registry import Registry
from triton_pipelines.api import names

FOLDER = "models/sentiment"
REPOSITORY = "models/sentiment"
# Prints the repository's files with the targets of links, how the image is mounted, and the error
# of a write into it. Every Triton image has python3.
OBSERVE = """
import json, os, pathlib, sys
models, images = map(pathlib.Path, sys.argv[1:])
mounts = [line.split() for line in pathlib.Path('/proc/mounts').read_text().splitlines()]
(folder,) = images.iterdir()
try:
    (folder / 'new').write_text('x')
    failed = None
except OSError as error:
    failed = error.strerror
print(json.dumps({
    'links': {str(path.relative_to(models)): str(path.readlink())
              for path in models.rglob('*') if path.is_symlink()},
    'files': [path.name for path in models.rglob('*') if path.is_file() and not path.is_symlink()],
    'options': [row[3].split(',') for row in mounts if row[1] == str(folder)],
    'folder': str(folder),
    'write': failed,
}))
"""


@pytest.fixture(scope="module")
def store(access: Access) -> Iterator[Registry]:
    """A private registry that the node can pull from."""
    if access.local is None:
        pytest.skip("the registry runs on the node of a local cluster")
    with registry.running(access.local) as made:
        yield made


def push(store: Registry) -> str:
    """Push an image with the files of the sample; returns its reference."""
    from e2e.models import tree

    folder = tree.build()
    files: dict[str, Path] = {
        f"{FOLDER}/model.onnx": folder / tree.SENTIMENT_MODEL,
        f"{FOLDER}/tokenizer.json": folder / tree.TOKENIZER_FOLDER / "tokenizer.json",
    }
    return store.push(REPOSITORY, files)


@pytest.fixture(scope="module")
def image(store: Registry) -> str:
    """The reference of an image with the files of the sample."""
    return push(store)


def document(image: str, **server: Any) -> Object:
    """Return the sample whose tokenizer and model come from an image."""
    source = {"uri": f"image://{image}"}
    return small(
        "sentiment",
        tokenizer={"source": {**source, "path": FOLDER}},
        model={"source": {**source, "path": f"{FOLDER}/model.onnx"}},
        server={"imagePullSecrets": [{"name": registry.SECRET}], **server},
    )


@pytest.fixture(scope="module")
def served(kube: Kube, module_namespace: str, store: Registry, image: str) -> Pipeline:
    """Return a pipeline that serves from the image."""
    kube.apply(store.secret, namespace=module_namespace)
    pipeline = Pipeline(kube, module_namespace, "sentiment")
    pipeline.apply(document(image))
    pipeline.wait_ready()
    return pipeline


def serves(pipeline: Pipeline, reach: Reach) -> None:
    cases = golden("sentiment", 2, longest=32)
    with reach.service(pipeline.namespace, pipeline.name) as endpoint:
        answer = clients.grpc(endpoint, "sentiment", [case["text"] for case in cases])
        check_answer("sentiment", cases, answer)


def observed(pipeline: Pipeline) -> dict[str, Any]:
    """What the Triton container sees of the image."""
    (pod,) = pipeline.pods()
    command = ("python3", "-c", OBSERVE, names.PATH_MODELS, names.PATH_IMAGES)
    output = pipeline.kube.kubectl(
        "exec",
        pod["metadata"]["name"],
        f"--namespace={pipeline.namespace}",
        f"--container={names.CONTAINER_SERVER}",
        "--",
        *command,
    )
    result: dict[str, Any] = yaml.safe_load(output)
    return result


def test_a_model_in_an_image_gives_the_golden_answers(served: Pipeline, reach: Reach) -> None:
    serves(served, reach)


def test_triton_reads_the_files_from_the_read_only_mount(served: Pipeline) -> None:
    seen = observed(served)
    assert seen["links"] == {
        name: f"{seen['folder']}/{FOLDER}/{Path(name).name}"
        for name in ("model/1/model.onnx", "tokenizer/1/tokenizer.json")
    }
    assert not {"model.onnx", "tokenizer.json"} & set(seen["files"])
    (options,) = seen["options"]
    assert "ro" in options
    assert seen["write"] == "Read-only file system"


def on_node(kube: Kube) -> set[str]:
    """The names of the images on the node."""
    return {
        name
        for node in kube.objects("Node")
        for item in node["status"]["images"]
        for name in item["names"]
    }


def test_the_node_has_the_image_of_that_digest(served: Pipeline, kube: Kube, image: str) -> None:
    name = f"{registry.HOST}/{REPOSITORY}@{image.rpartition('@')[2]}"
    wait_for("the image on the node", lambda: on_node(kube), lambda names: name in names, 60)


def test_an_image_that_the_registry_lacks_is_named(
    pipeline: Pipeline, kube: Kube, store: Registry
) -> None:
    kube.apply(store.secret, namespace=pipeline.namespace)
    missing = f"{registry.HOST}/{REPOSITORY}@sha256:{'0' * 64}"
    pipeline.apply(document(missing))
    reported = pipeline.wait_condition("Ready", "False", "ImageUnavailable")
    assert f"image://{missing}" in reported["message"]
    assert "not found" in reported["message"]
    assert pipeline.condition("Stalled") == {}


def test_each_namespace_needs_the_secret_also_for_an_image_on_the_node(
    pipeline: Pipeline, kube: Kube, store: Registry, served: Pipeline, image: str, reach: Reach
) -> None:
    pipeline.apply(document(image))
    reported = pipeline.wait_condition("Ready", "False", "ImageUnavailable")
    assert f"image://{image}" in reported["message"]
    assert "authorization failed" in reported["message"]
    kube.apply(store.secret, namespace=pipeline.namespace)
    pipeline.wait_ready()
    serves(pipeline, reach)


def rendered(image: str, namespace: str, images: Images, folder: Path) -> str:
    """Return the DaemonSet that `tritonpipe render` prints for the pipeline."""
    file, resource = folder / "sentiment.yaml", document(image)
    resource["metadata"]["namespace"] = namespace
    file.write_text(yaml.safe_dump(resource))
    command = [sys.executable, "-m", "triton_pipelines.cli.main", "render", str(file)]
    command += ["--format=pre-pull", f"--server-image={images.triton}"]
    command += [f"--loader-image={images.operator}", "--substitute-runner=onnxruntime_onnx"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_pod_starts_without_a_download_on_a_node_that_has_pulled_its_images(
    test_namespace: str, kube: Kube, store: Registry, reach: Reach, tmp_path: Path
) -> None:
    image, namespace = push(store), test_namespace
    kube.apply(store.secret, namespace=namespace)
    manifest = rendered(image, namespace, Images.of(os.environ), tmp_path)
    kube.kubectl("apply", "--filename=-", input=manifest)
    kube.kubectl(
        "rollout",
        "status",
        f"daemonset/{names.pre_pull_name('sentiment')}",
        f"--namespace={namespace}",
        "--timeout=120s",
    )
    with store.stopped():
        pipeline = Pipeline(kube, namespace, "sentiment")
        pipeline.apply(document(image))
        pipeline.wait_ready()
        serves(pipeline, reach)
