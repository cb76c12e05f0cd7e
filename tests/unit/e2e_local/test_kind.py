"""The demo on kind: when it is chosen, and which commands it would run.

No Docker is needed: the commands are compared, or run by stand-ins that record them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import demo
from e2e.local import kind
from e2e.local.cluster import Cluster
from e2e.local.images import OPERATOR_IMAGE, SAMPLES_IMAGE, TRITON_IMAGE
from e2e.local.kind import KindCluster, docker_is_available

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return a function that puts a shell script on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_without_docker_there_is_no_kind(program: Program) -> None:
    assert not docker_is_available()


@pytest.mark.parametrize("code", [0, 1])
def test_docker_must_reach_its_daemon(program: Program, code: int) -> None:
    program("docker", f'test "$1" = info || exit 9; exit {code}')
    assert docker_is_available() == (code == 0)


@pytest.mark.parametrize(
    ("requested", "local", "docker", "chosen", "obstacle"),
    [
        ("", "", True, Cluster, ""),
        ("", "needs root", True, KindCluster, ""),
        ("", "needs root", False, None, "needs root"),
        ("kind", "", True, KindCluster, ""),
        ("kind", "", False, None, "CLUSTER=kind needs Docker, and `docker info` fails"),
    ],
)
def test_the_local_cluster_is_preferred(
    requested: str,
    local: str,
    docker: bool,
    chosen: type[demo.AnyCluster] | None,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLUSTER", requested)
    monkeypatch.setattr(demo, "_no_local_cluster", lambda: local)
    monkeypatch.setattr(demo, "docker_is_available", lambda: docker)
    cluster, reported = demo._choose_cluster()
    assert (type(cluster) if cluster else None, reported) == (chosen, obstacle)


def test_the_cluster_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker that fails during the demo does not change which cluster is removed."""
    answers, removed = iter([True]), list[KindCluster]()
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    monkeypatch.setenv("CLUSTER", "kind")
    monkeypatch.delenv("KEEP", raising=False)
    monkeypatch.setattr(demo, "docker_is_available", lambda: next(answers))
    monkeypatch.setattr(demo.native, "install", lambda: None)
    monkeypatch.setattr(demo, "_cluster_build", contextlib.nullcontext)
    monkeypatch.setattr(demo, "_serve", lambda began: "")
    monkeypatch.setattr(demo, "_wait_for", lambda building: None)
    monkeypatch.setattr(demo, "_on_cluster", lambda cluster: [str(cluster)])
    monkeypatch.setattr(KindCluster, "down", lambda cluster: removed.append(cluster))
    assert demo.main() == 0
    assert removed == [KindCluster(demo.CLUSTER)]


def test_the_commands_build_create_load_and_offer_gpus() -> None:
    cluster = KindCluster("demo")
    commands = cluster.commands(Path("/bin/kind"), Path("/bin/kubectl"), Path("/samples"))
    assert [command[:2] for command in commands] == [
        ["docker", "build"],
        ["docker", "build"],
        ["docker", "build"],
        ["/bin/kind", "create"],
        ["/bin/kind", "load"],
        ["/bin/kubectl", f"--kubeconfig={cluster.kubeconfig}"],
    ]
    tags = [OPERATOR_IMAGE, TRITON_IMAGE, SAMPLES_IMAGE]
    assert [command[2] for command in commands[:3]] == [f"--tag={tag}" for tag in tags]
    assert list(commands[4][4:]) == tags
    assert all((Path(command[3]) / "Dockerfile").exists() for command in commands[:2])
    patch = json.loads(commands[5][-1].removeprefix("--patch="))
    assert patch["status"]["capacity"] == {"nvidia.com/gpu": str(kind.GPUS)}
    assert "demo-control-plane" in commands[5]
    assert cluster.context == "kind-demo"


def test_a_failed_command_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    program("docker", f'echo "$*" >> {tmp_path}/calls; exit 3')
    monkeypatch.setattr(kind.binaries, "folder", lambda names: tmp_path)
    monkeypatch.setattr("e2e.local.images.build.samples_context", lambda context: None)
    with pytest.raises(kind.subprocess.CalledProcessError, match="exit status 3"):
        KindCluster("demo").up()
    assert (tmp_path / "calls").read_text().count("\n") == 1
