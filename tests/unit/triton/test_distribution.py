"""Test how a Triton for this machine is found.

The cases are the states in which a machine can be; folders replace the real file system.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import Messages
from triton_pipelines.triton import distribution
from triton_pipelines.triton.distribution import Distribution, DistributionError

LIBRARY = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TRITONPIPE_CACHE", raising=False)
    assert distribution.cache_folder() == Path("/home/u/.cache/triton-pipelines")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert distribution.cache_folder() == Path("/x/triton-pipelines")
    monkeypatch.setenv("TRITONPIPE_CACHE", "/t")
    assert distribution.cache_folder() == Path("/t")


def test_the_environment_puts_the_interpreter_first_and_keeps_the_rest() -> None:
    found = Distribution(
        Path("/r"), (Path("/l1"), Path("/l2")), Path("/venv/bin"), (Path("/venv/site"),)
    )
    environment = found.environment(
        {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "HOME": "/h"}
    )
    assert environment == {
        "PATH": "/venv/bin:/usr/bin",
        "LD_LIBRARY_PATH": "/l1:/l2:/opt/lib",
        "HOME": "/h",
        "TRITONPIPE_SITE": "/venv/site",
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    assert found.environment({"OPENBLAS_NUM_THREADS": "4"})["OPENBLAS_NUM_THREADS"] == "4"


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: Messages
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with messages.raises(DistributionError):
        distribution.obtain(tmp_path)


def test_numpy_2_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: Messages
) -> None:
    real = distribution.importlib.metadata.version
    monkeypatch.setattr(
        distribution.importlib.metadata,
        "version",
        lambda name: "2.1.0" if name == "numpy" else real(name),
    )
    with messages.raises(DistributionError):
        distribution.obtain(tmp_path)


def test_an_interpreter_that_is_not_python3_of_its_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: Messages
) -> None:
    (tmp_path / "python3").write_text("another")
    (tmp_path / "python3.11").write_text("this one")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3.11"))
    with messages.raises(DistributionError):
        distribution._interpreter()


def test_libpython_of_the_interpreter_comes_before_the_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / LIBRARY).touch()
    monkeypatch.setattr(distribution.sysconfig, "get_config_var", lambda name: str(tmp_path))
    assert distribution._libpython(tmp_path) == [tmp_path]


@pytest.fixture
def no_own_libpython(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(distribution.sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))


@pytest.mark.usefixtures("no_own_libpython")
def test_the_systems_libpython_needs_no_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(distribution.ctypes.util, "find_library", lambda name: LIBRARY)
    assert distribution._libpython(tmp_path) == []


@pytest.fixture
def no_libpython(monkeypatch: pytest.MonkeyPatch, no_own_libpython: None) -> None:
    monkeypatch.setattr(distribution.ctypes.util, "find_library", lambda name: None)


@pytest.mark.usefixtures("no_libpython")
def test_libpython_is_fetched_once_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []

    def run(command: list[str], cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command[0])
        if command[0] == "apt-get":
            (cwd / "libpython_1_amd64.deb").touch()
        else:
            (cwd / "usr" / "lib").mkdir(parents=True)
            (cwd / "usr" / "lib" / LIBRARY).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(distribution.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    (folder,) = distribution._libpython(tmp_path)
    assert (folder / LIBRARY).exists()
    assert distribution._libpython(tmp_path) == [folder]
    assert commands == ["apt-get", "dpkg-deb"]


@pytest.mark.usefixtures("no_libpython")
def test_what_keeps_libpython_from_being_fetched_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, messages: Messages
) -> None:
    monkeypatch.setattr(distribution.shutil, "which", lambda name: None)
    with messages.raises(DistributionError, match="libpython3"):
        distribution._libpython(tmp_path)
    monkeypatch.setattr(distribution.shutil, "which", lambda name: name)
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **options: subprocess.CompletedProcess(
            command, 100, "", "E: Unable to locate package\n"
        ),
    )
    with messages.raises(DistributionError):
        distribution._libpython(tmp_path)
    assert list(tmp_path.iterdir()) == [], "a failed download leaves nothing in the cache"


def test_the_layout_appears_at_once_or_not_at_all(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for part in ("bin", "backends/python", "caches"):
        (source / part).mkdir(parents=True)
    (source / "bin" / "tritonserver").touch()
    stub = tmp_path / "stub"
    target = tmp_path / "cache" / "tritonserver"
    with pytest.raises(FileNotFoundError):
        distribution._lay_out(source, stub, target)
    assert list(target.parent.iterdir()) == []
    stub.touch()
    assert distribution._lay_out(source, stub, target) == target
    assert os.access(target / "backends" / "python" / "stub", os.X_OK)
    assert os.access(target / "bin" / "tritonserver", os.X_OK)
    assert list(target.parent.iterdir()) == [target]
