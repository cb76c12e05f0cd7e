"""Debian packages that the node is made of, installed when missing."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from e2e.local.progress import step

PROGRAMS = {
    "runc": "runc",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ip": "iproute2",
    "ipset": "ipset",
    "socat": "socat",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
"""Program -> the Debian package that has it."""

PROMETHEUS = {"prometheus": "prometheus", "promtool": "prometheus"}
"""The same for a Prometheus on this machine; no part of the node."""

CNI_PACKAGE = "containernetworking-plugins"
CNI_PLUGINS = Path("/usr/lib/cni")
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
SBIN = ("/usr/sbin", "/sbin")


class MachineError(RuntimeError):
    """This machine cannot run the local cluster.

    The message says what is missing and what to do.
    """


def search_path() -> str:
    """Return `PATH` with the folders of system programs.

    Root's own `PATH` may not contain them (`su` without a dash).
    """
    return os.pathsep.join(
        dict.fromkeys([*os.environ.get("PATH", os.defpath).split(os.pathsep), *SBIN])
    )


def missing(programs: Mapping[str, str] = PROGRAMS) -> list[str]:
    """Debian packages that are needed and not installed, sorted."""
    wanted = {
        package
        for program, package in programs.items()
        if shutil.which(program, path=search_path()) is None
    }
    if programs is PROGRAMS and not (CNI_PLUGINS / "ptp").exists():
        wanted.add(CNI_PACKAGE)
    return sorted(wanted)


def require_root() -> None:
    """Raise `MachineError` unless this process is root on Linux with the required rights.

    It needs the right to create mounts and network namespaces.
    """
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        raise MachineError(
            "the local cluster needs Linux on x86-64; elsewhere use any cluster: make e2e "
            "KUBECONFIG=FILE (see e2e/kind for kind)"
        )
    if os.geteuid() != 0:
        raise MachineError(
            "the local cluster needs root (network and mount namespaces, containerd, kubelet): "
            "run it with sudo, or use any other "
            "cluster: make e2e KUBECONFIG=FILE (see e2e/kind for one made by kind)"
        )
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise MachineError(
            f"this machine does not let root make namespaces ({done.stderr.strip()}): the local "
            f"cluster needs CAP_SYS_ADMIN and "
            "CAP_NET_ADMIN, as a virtual machine or a privileged container has them"
        )


def install(programs: Mapping[str, str] = PROGRAMS) -> None:
    """Install what is missing with apt, without starting any service.

    Raises:
        MachineError: not a Debian-like machine, or apt failed.
    """
    wanted = missing(programs)
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise MachineError(
            f"missing programs, and no apt-get to install them: please install "
            f"{', '.join(wanted)} (names of Debian's packages)"
        )
    with step(f"installing {' '.join(wanted)}"), _no_services():
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *wanted)
    if still := missing(programs):
        raise MachineError(
            f"apt-get succeeded, but these packages still lack their programs: {', '.join(still)}"
        )


def _apt(*arguments: str) -> None:
    command = ["apt-get", "--quiet", "--option", "DPkg::Lock::Timeout=300", *arguments]
    env = {**os.environ, "PATH": search_path(), "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-10:])
        raise MachineError(f"{' '.join(command)} failed:\n{tail}")


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Prevent Debian's maintainer scripts from starting a system containerd during installation."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
    SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICE_POLICY.unlink(missing_ok=True)
