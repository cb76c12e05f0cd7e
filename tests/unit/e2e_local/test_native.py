"""The build of the native tokenizer: what decides it, what it needs, what it sees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.local import native


def crate(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    for name in ("Cargo.toml", "Cargo.lock", "build.rs", "src/lib.rs"):
        (folder / name).write_text(name)
    return folder


def test_sources_decide_the_build_and_other_files_do_not(tmp_path: Path) -> None:
    one, other = crate(tmp_path / "one"), crate(tmp_path / "other")
    (other / "target").mkdir()
    (other / "target/library.so").write_text("built")
    assert native.key(one) == native.key(other)
    keys = {native.key(one)}
    for name in ("Cargo.lock", "src/lib.rs"):
        (one / name).write_text("changed")
        keys.add(native.key(one))
    assert len(keys) == 3


def test_a_build_sees_no_credentials_and_no_flags_of_this_machine() -> None:
    seen = native.settings(
        {
            "HOME": "/home/dev",
            "RUSTFLAGS": "-C target-cpu=native",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "HTTPS_PROXY": "http://proxy",
        }
    )
    assert seen["HTTPS_PROXY"] == "http://proxy"
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    assert "target-cpu" not in seen["RUSTFLAGS"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'cargo 1.60.0'", "is cargo 1.60.0: install Rust >= 1.85"),
        ("exit 1", "is not usable: install Rust >= 1.85"),
    ],
)
def test_an_old_toolchain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    cargo = tmp_path / "cargo"
    cargo.write_text(f"#!/bin/sh\n{script}\n")
    cargo.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: str(cargo))
    with pytest.raises(native.NativeBuildError, match=expected):
        native.find_cargo()


def test_without_a_toolchain_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(native.NativeBuildError, match="no Rust toolchain found: install Rust"):
        native.find_cargo()
