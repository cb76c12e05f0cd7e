"""Cache keys, and which binaries found on a machine may stand in for pinned ones."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.local import binaries, cache
from e2e.local.cluster import Cluster


def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITONPIPE_CACHE", str(tmp_path / "explicit"))
    assert cache.cache_root() == tmp_path / "explicit"
    monkeypatch.delenv("TRITONPIPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "triton-pipelines"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "triton-pipelines"


def test_digest_keeps_boundaries() -> None:
    assert cache.digest(["ab", ""]) != cache.digest(["a", "b"]) != cache.digest(["ab"])


def test_tree_digest_sees_names_contents_and_modes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    first = cache.digest_tree(tmp_path, [one, two])
    assert cache.digest_tree(tmp_path, [two, one, one]) == first
    one.chmod(0o755)
    assert cache.digest_tree(tmp_path, [one, two]) != first
    one.chmod(0o644)
    one.write_text("3")
    assert cache.digest_tree(tmp_path, [one, two]) != first


def is_locked(path: Path) -> bool:
    """Whether another process would have to wait for the lock of this name."""
    program = (
        "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    command = [sys.executable, "-c", program, f"{path}.lock"]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_lock_excludes_other_processes(tmp_path: Path) -> None:
    with cache.locked(tmp_path / "thing"):
        assert is_locked(tmp_path / "thing")
    assert not is_locked(tmp_path / "thing")


def test_a_reserved_cluster_is_kept_from_other_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITONPIPE_CACHE", str(tmp_path))
    one, two = (tmp_path / "locks" / f"reserved-{name}" for name in ("one", "two"))
    with Cluster("one").reserved():
        assert is_locked(one)
        assert not is_locked(two)
    assert not is_locked(one)


@pytest.mark.parametrize(
    ("name", "output", "fits"),
    [
        ("kube-apiserver", "Kubernetes v1.36.3", True),
        ("kube-apiserver", "Kubernetes v1.36.9", True),
        ("kube-apiserver", "Kubernetes v1.36.0-rc.1", False),
        ("kube-apiserver", "Kubernetes v1.35.3", False),
        ("kubectl", "Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", False),
        ("etcd", "etcd Version: 3.6.4\nGit SHA: abc", True),
        ("etcd", "etcd Version: 3.5.9\nGit SHA: abc", False),
        ("pause", "anything", False),
    ],
)
def test_version_of_a_found_binary(name: str, output: str, fits: bool) -> None:
    assert binaries.BINARIES[name].fits(output) is fits


def test_binaries_are_found_in_kubebuilder_assets_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder, version in (("old", "3.5.0"), ("assets", "3.6.1"), ("path", "3.6.2")):
        program = tmp_path / folder / "etcd"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho etcd Version: {version}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    etcd = binaries.BINARIES["etcd"]
    monkeypatch.setenv("PATH", f"{tmp_path / 'old'}:{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert binaries.find_installed(etcd) == tmp_path / "assets" / "etcd"
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    assert binaries.find_installed(etcd) == tmp_path / "path" / "etcd"
    assert binaries.find_installed(etcd, exclude=tmp_path / "path") is None


def test_module_versions_are_the_advertised_ones() -> None:
    def required(module: str, package: str) -> str:
        match = re.search(
            rf"{re.escape(package)} v(\S+)", (binaries.MODULES / module / "go.mod").read_text()
        )
        assert match
        return match[1]

    assert required("kubernetes", "k8s.io/kubernetes") == binaries.KUBERNETES_VERSION
    for version in binaries.OLDER_KUBERNETES:
        module = binaries.BINARIES[binaries.api_server(version)].module.name
        assert required(module, "k8s.io/kubernetes") == version
    assert required("etcd", "go.etcd.io/etcd/server/v3") == binaries.ETCD_VERSION
    assert required("helm", "helm.sh/helm/v4") == binaries.HELM_VERSION
    containerd = required("containerd", "github.com/containerd/containerd/v2")
    assert containerd == binaries.CONTAINERD_VERSION


@pytest.mark.parametrize(
    "name", sorted({binary.module.name for binary in binaries.BINARIES.values()})
)
def test_every_module_is_there_and_locked(name: str) -> None:
    module = binaries.MODULES / name
    definition = (module / "go.mod").read_text()
    assert "go 1.26" in definition
    assert (module / "go.sum").exists() or "require" not in definition


def test_unknown_name_is_refused() -> None:
    with pytest.raises(binaries.BinaryError, match=r"kube-apisrever.*known are .*kube-apiserver"):
        binaries.folder(["kube-apisrever"])


def test_missing_go_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)
    with pytest.raises(binaries.BinaryError, match="KUBEBUILDER_ASSETS"):
        binaries.find_go()
