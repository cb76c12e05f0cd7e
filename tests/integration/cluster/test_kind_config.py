"""The kind configuration is one that kind itself accepts.

kind validates a configuration only on its way to creating a cluster, for which it asks Docker
first. Docker is a stand-in here that answers the questions kind asks before and refuses to make
anything: how far kind came tells what it thought.
"""

import os
import subprocess
from pathlib import Path

import pytest

from e2e.local import binaries

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CONFIG = Path(__file__).parents[3] / "e2e" / "kind" / "cluster.yaml"
DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_LOG"
case "$1" in
  info) echo '{"CgroupVersion":"2","CgroupDriver":"systemd","SecurityOptions":[],"MemoryLimit":true,"PidsLimit":true,"CPUShares":true}';;
  ps|version|-v) ;;
  *) echo "refused by the stand-in" >&2; exit 1;;
esac
"""  # noqa: E501


@pytest.fixture(scope="module")
def kind() -> Path:
    return binaries.path_of("kind")


def create(kind: Path, config: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{docker.parent}:/usr/bin:/bin",
        "DOCKER_LOG": str(tmp_path / "calls"),
        "KIND_EXPERIMENTAL_PROVIDER": "docker",
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
    }
    command = [str(kind), "create", "cluster", "--config", str(config)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_kind_accepts_the_configuration(kind: Path, tmp_path: Path) -> None:
    done = create(kind, CONFIG, tmp_path)
    assert 'Creating cluster "tritonpipe"' in done.stderr, done.stderr
    assert "refused by the stand-in" in done.stderr


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("containerPath:", "containerPaht:"), "containerPaht"),
        (("role: worker", "role: wroker"), "wroker"),
        (("kind.x-k8s.io/v1alpha4", "kind.x-k8s.io/v9"), "unknown apiVersion"),
    ],
)
def test_kind_refuses_a_wrong_one(
    kind: Path, tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    wrong = tmp_path / "cluster.yaml"
    wrong.write_text(CONFIG.read_text().replace(*change))
    done = create(kind, wrong, tmp_path)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Creating cluster" not in done.stderr
