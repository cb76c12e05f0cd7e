"""The loader copies the built-in tokenizer, or says that it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import PlanLibrary
from triton_pipelines.loader import native_library
from triton_pipelines.loader.errors import LoaderError

LIBRARY = PlanLibrary(step="tokenizer", path="tok/1/lib.so", field="spec.tokenizer")


@pytest.mark.parametrize(
    ("reported", "expected"), [("AMD64", "x86_64"), ("x86_64", "x86_64"), ("arm64", "aarch64")]
)
def test_architectures_have_the_names_of_linux(
    monkeypatch: pytest.MonkeyPatch, reported: str, expected: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: reported)
    assert native_library.machine() == expected
    assert native_library.path().parent.name == expected


def test_the_library_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "package.so"
    source.write_bytes(b"library")
    monkeypatch.setattr(native_library, "path", lambda: source)
    target = tmp_path / LIBRARY.path
    for _ in range(2):  # a restarted loader, too
        native_library.copy_library(target, LIBRARY)
        assert [file.name for file in target.parent.iterdir()] == ["lib.so"]
        assert target.read_bytes() == b"library"


def test_a_loader_without_the_library_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(native_library, "path", lambda: tmp_path / "absent.so")
    monkeypatch.setattr(native_library, "machine", lambda: "riscv64")
    with pytest.raises(LoaderError) as caught:
        native_library.copy_library(tmp_path / LIBRARY.path, LIBRARY)
    assert "no built-in tokenizer for riscv64; use an operator image" in str(caught.value)
    messages.check(str(caught.value))
    assert (caught.value.step, caught.value.field) == ("tokenizer", "spec.tokenizer")
    assert not (tmp_path / LIBRARY.path).exists()
