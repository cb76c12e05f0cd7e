"""The loader on mounted images: their files are linked and never copied without a reason."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.loader.conftest import Pod
from tests.integration.loader.test_folders import check, graph, model, tokenizer
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch

pytestmark = pytest.mark.integration

DIGEST = hashlib.sha256(b"an image").hexdigest()
URI = f"image://registry.example/models/sst2:v3@sha256:{DIGEST}"


@pytest.fixture
def image(pod: Pod) -> Path:
    """The mounted image."""
    folder = pod.options.images / DIGEST[:16]
    folder.mkdir()
    return folder


def folder(**rest: Any) -> PlanFetch:
    """A model that is a folder of the image."""
    return PlanFetch(
        step="model",
        uri=URI,
        kind=FetchKind.MODEL,
        target="model",
        file="model.onnx",
        whole=True,
        **rest,
    )


@pytest.mark.parametrize("place", ["sst2", "sst2/", "sst2/tokenizer.json"])
def test_files_of_an_image_are_linked_and_checked(
    pod: Pod, image: Path, minilm: Path, place: str
) -> None:
    (image / "sst2").mkdir()
    graph(image / "sst2" / "model.onnx")
    shutil.copy(minilm / "tokenizer.json", image / "sst2")
    digest = hashlib.sha256((image / "sst2/model.onnx").read_bytes()).hexdigest()
    pod.plan(
        tokenizer(URI, path=place),
        model(URI, path="sst2/model.onnx", sha256=digest),
        checks=[check()],
    )
    code, report = pod.load()
    assert (code, report.ok) == (0, True), pod.output
    for name in ("model/1/model.onnx", "tokenizer/1/tokenizer.json"):
        path = pod.models / name
        assert path.is_symlink()
        assert path.readlink() == image / "sst2" / path.name
    assert {item.step: item.sha256 for item in report.sources}["model"] == digest
    # A restarted container uses what it has.
    before = pod.output
    assert pod.load()[0] == 0
    assert "linked" not in pod.output.removeprefix(before)


def test_a_folder_of_versions_is_linked(pod: Pod, image: Path) -> None:
    for version in ("1", "2"):
        (image / version).mkdir()
        graph(image / version / "model.onnx")
    pod.plan(folder(versions={"all": True}))
    code, _ = pod.load()
    assert code == 0, pod.output
    assert [path.readlink() for path in sorted(pod.models.glob("model/*/model.onnx"))] == [
        image / "1/model.onnx",
        image / "2/model.onnx",
    ]


@pytest.mark.parametrize("item", [folder(), model(URI, path="model.onnx")], ids=["folder", "file"])
def test_a_model_with_external_data_is_copied(pod: Pod, image: Path, item: PlanFetch) -> None:
    graph(image / "model.onnx", external=True)
    pod.plan(item, checks=[check()])
    code, _ = pod.load()
    assert code == 0, pod.output
    for name in ("model.onnx", "weights.bin"):
        path = pod.models / "model/1" / name
        assert not path.is_symlink()
        assert path.read_bytes() == (image / name).read_bytes()


def test_a_shared_library_is_copied_because_the_mount_may_forbid_to_execute(
    pod: Pod, image: Path
) -> None:
    for name in ("libvolume.so", "libvolume.so.1", "volume.bin"):
        (image / name).write_bytes(b"library")
    item = PlanFetch(step="model", uri=URI, kind=FetchKind.FOLDER, target="model")
    pod.plan(item)
    code, _ = pod.load()
    assert code == 0, pod.output
    links = {path.name: path.is_symlink() for path in pod.models.rglob("*") if path.is_file()}
    assert links == {"libvolume.so": False, "libvolume.so.1": False, "volume.bin": True}


def test_a_wrong_digest_ends_the_load(pod: Pod, image: Path) -> None:
    graph(image / "model.onnx")
    pod.plan(model(URI, path="model.onnx", sha256="0" * 64))
    code, report = pod.load()
    assert (code, [item.reason for item in report.findings]) == (
        2,
        [LoadReason.CHECKSUM_MISMATCH],
    )
    assert not (pod.models / "model/1/model.onnx").exists()


def test_a_link_out_of_the_image_is_refused(pod: Pod, image: Path) -> None:
    (pod.root / "secret").write_text("of the node")
    (image / "model.onnx").symlink_to(pod.root / "secret")
    pod.plan(model(URI, path="model.onnx"))
    code, report = pod.load()
    assert (code, [item.reason for item in report.findings]) == (
        2,
        [LoadReason.SOURCE_UNAVAILABLE],
    )
    assert "points outside its volume" in report.findings[0].message


def test_an_image_that_is_not_mounted_names_the_remedy(pod: Pod) -> None:
    pod.plan(model(URI, path="model.onnx"))
    code, report = pod.load()
    assert (code, report.findings[0].reason) == (3, LoadReason.SOURCE_UNAVAILABLE)
    assert "--source-map image://=oci://" in report.findings[0].message
