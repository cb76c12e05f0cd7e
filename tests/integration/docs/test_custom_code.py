"""Run the code on the page about custom code, unchanged, on a real Triton."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from tests.support import nullbackend
from tests.support.samples import Client, column
from tests.support.serving import sample_sources, served
from tests.support.simulated_backends import on_simulated_backends
from tests.unit.docs import markdown
from triton_pipelines.loader.uris import SourceMap

pytestmark = pytest.mark.integration
PAGE = markdown.ROOT / "docs" / "user" / "custom-code.md"


def resource(name: str, folder: Path) -> Path:
    """A whole resource of the page as a file."""
    (text,) = [
        fence.text for fence in markdown.fences(PAGE) if f"metadata: {{name: {name}}}" in fence.text
    ]
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_first_step(tmp_path: Path) -> None:
    with served(
        resource("wordcount", tmp_path), *sample_sources(), log=tmp_path / "serve.log"
    ) as running:
        client = Client(running)
        answer = client.ask({"TEXT": column("one two three", "", "four")})
        client.close()
    # Each text with [CLS] and [SEP]; padding does not count.
    assert answer["TOKENS"].tolist() == [[5], [2], [3]]


def test_the_tokenizer(tmp_path: Path) -> None:
    """The TorchScript model behind it is a stand-in that answers with zeros."""
    alphabet = {letter: number for number, letter in enumerate("abc", start=2)}
    for name, content in (("alphabet.json", json.dumps(alphabet)), ("model.pt", "")):
        (tmp_path / "source" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "source" / name).write_text(content, encoding="utf-8")
    sources = SourceMap.parse([f"s3://models/characters/={(tmp_path / 'source').as_uri()}/"])
    file = resource("characters", tmp_path)
    texts = column("abcx", "", "c" * 200)
    with on_simulated_backends(
        file, nullbackend.distribution(tmp_path / "backends"), sources, tmp_path / "pod"
    ) as (_, client):
        text = tritonclient.http.InferInput("TEXT", list(texts.shape), "BYTES")
        text.set_data_from_numpy(texts)
        tokens, answer = client.infer("tokenizer", [text]), client.infer("characters", [text])
    assert tokens.as_numpy("ids")[:, :5].tolist() == [[2, 3, 4, 1, 0], [0] * 5, [4] * 5]
    assert tokens.as_numpy("mask").sum(axis=1).tolist() == [4, 0, 128]
    np.testing.assert_array_equal(answer.as_numpy("MASK"), tokens.as_numpy("mask"))
    assert answer.as_numpy("LABEL").shape == (3, 128, 1)
    # Equal scores: the first label.
    assert set(answer.as_numpy("LABEL").ravel().tolist()) == {b"outside"}
