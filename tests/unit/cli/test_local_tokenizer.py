"""The implementation of the tokenizer on a machine with and without the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.api.tokenizer import TokenizerImplementation
from triton_pipelines.cli.local_pipeline import default_tokenizer, tokenizer_note
from triton_pipelines.compile.graph import build
from triton_pipelines.loader import native_library

PYTHON, NATIVE = TokenizerImplementation.PYTHON, TokenizerImplementation.NATIVE
CUSTOM = {
    "source": None,
    "type": "Python",
    "python": {"code": {"inline": "x = 1"}},
    "outputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
}


def test_the_default_depends_on_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library.so"
    monkeypatch.setattr(native_library, "path", lambda: library)
    assert default_tokenizer() is PYTHON
    library.touch()
    assert default_tokenizer() is NATIVE


def note(default: TokenizerImplementation, **tokenizer: Any) -> str:
    pipeline = builders.pipeline(tokenizer=tokenizer)
    return tokenizer_note(pipeline, build(pipeline, builders.options(tokenizer=default)))


def test_a_tokenizer_that_runs_otherwise_than_in_a_cluster_is_reported(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "machine", lambda: "riscv64")
    text = note(PYTHON)
    assert "spec.tokenizer.implementation" in text
    assert "riscv64" in text
    messages.check(text)


@pytest.mark.parametrize(
    ("default", "tokenizer"),
    [(NATIVE, {}), (PYTHON, {"implementation": "Python"}), (PYTHON, CUSTOM)],
    ids=["default", "written", "custom"],
)
def test_other_tokenizers_are_not_reported(
    default: TokenizerImplementation, tokenizer: dict[str, Any]
) -> None:
    assert note(default, **tokenizer) == ""
