"""A kind cluster for the demo, on machines with Docker that cannot run the local cluster.

Its one node offers simulated GPUs: the API server is told of them, and no device is behind them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.local import binaries
from e2e.local.cache import cache_root
from e2e.local.images import OPERATOR_IMAGE, SAMPLES_IMAGE, TRITON_IMAGE
from e2e.local.progress import step

ROOT = Path(__file__).resolve().parents[2]
TRITON_FOLDER = ROOT / "e2e" / "local" / "images" / "triton"
GPUS = 2
READY = "180s"
DOCKER_SECONDS = 20.0


def docker_is_available() -> bool:
    """Return whether the command `docker` exists and reaches its daemon."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        done = subprocess.run(
            [docker, "info"], capture_output=True, timeout=DOCKER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@dataclass(frozen=True)
class KindCluster:
    """The kind cluster of this name; making the object changes nothing."""

    name: str

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return cache_root() / f"kind-{self.name}.kubeconfig"

    @property
    def context(self) -> str:
        """The context's name in the kubeconfig."""
        return f"kind-{self.name}"

    def commands(self, kind: Path, kubectl: Path, samples: Path) -> Sequence[Sequence[str]]:
        """Return the commands that start the cluster, in order.

        Args:
            kind: the program kind.
            kubectl: the program kubectl.
            samples: context of the image with the sample models.
        """
        contexts = {OPERATOR_IMAGE: ROOT, TRITON_IMAGE: TRITON_FOLDER, SAMPLES_IMAGE: samples}
        name = f"--name={self.name}"
        capacity = {"status": {"capacity": {"nvidia.com/gpu": str(GPUS)}}}
        return [
            *(["docker", "build", f"--tag={tag}", str(path)] for tag, path in contexts.items()),
            [
                str(kind),
                "create",
                "cluster",
                name,
                f"--kubeconfig={self.kubeconfig}",
                f"--wait={READY}",
            ],
            [str(kind), "load", "docker-image", name, *contexts],
            [
                str(kubectl),
                f"--kubeconfig={self.kubeconfig}",
                "patch",
                "node",
                f"{self.name}-control-plane",
                "--subresource=status",
                "--type=merge",
                f"--patch={json.dumps(capacity)}",
            ],
        ]

    def up(self) -> None:
        """Build the images, start the cluster and load the images into it.

        Raises:
            CalledProcessError: a command failed; it has printed why.
        """
        from e2e.local.images.build import samples_context  # needs the sample models

        folder = binaries.folder(["kind", "kubectl"])
        with tempfile.TemporaryDirectory() as scratch:
            samples_context(Path(scratch))
            for command in self.commands(folder / "kind", folder / "kubectl", Path(scratch)):
                with step(" ".join(command[:3])):
                    subprocess.run(command, check=True)

    def down(self) -> None:
        """Remove the cluster; does nothing if it does not exist."""
        command = [str(binaries.path_of("kind")), "delete", "cluster", f"--name={self.name}"]
        subprocess.run([*command, f"--kubeconfig={self.kubeconfig}"], check=True)
        self.kubeconfig.unlink(missing_ok=True)
