"""Kubernetes, etcd and helper binaries, built from the Go module proxy once and kept in the cache.

`python -m e2e.local.binaries [NAME…]` makes the named binaries (default: those of an API server)
and prints the folder that holds them, ready for `KUBEBUILDER_ASSETS` or `PATH`. Binaries of a
fitting version that are already in `$KUBEBUILDER_ASSETS` or on `PATH` are used as they are.
Versions and checksums are pinned by `go/<module>/go.mod` and `go.sum`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.local import cache
from e2e.local.progress import step

MODULES = Path(__file__).with_name("go")
KUBERNETES_VERSION = "1.36.3"
OLDER_KUBERNETES = ("1.30.14", "1.34.3")
"""Further versions whose API server the compatibility tests run: the oldest one that the chart
accepts, and one between it and the pinned version."""
ETCD_VERSION = "3.6.16"
HELM_VERSION = "4.3.1"
CONTAINERD_VERSION = "2.2.9"
"""The newest minor version that every Go 1.26 builds; later ones need a certain patch release."""
MINIMUM_GO = (1, 26)

API_SERVER = ("etcd", "kube-apiserver", "kubectl")
CONTROL_PLANE = (*API_SERVER, "kube-controller-manager", "kube-scheduler")
CONTAINERD = ("containerd", "containerd-shim-runc-v2", "ctr")
NODE = ("kubelet", "kube-proxy", *CONTAINERD, "gpu-device-plugin")


class BinaryError(RuntimeError):
    """A binary could not be provided; the message says what to do."""


@dataclass(frozen=True)
class Module:
    """One folder below `go/` with its own go.mod.

    The modules would need conflicting dependency versions in a shared one.
    """

    name: str
    ldflags: tuple[str, ...] = ("-s", "-w")

    @property
    def folder(self) -> Path:
        """The module's source folder."""
        return MODULES / self.name

    def key(self) -> str:
        """Hash of everything the build depends on: go.mod, go.sum, own sources and link flags."""
        files = [path for path in self.folder.rglob("*") if path.suffix in {".go", ".mod", ".sum"}]
        return cache.digest([cache.digest_tree(self.folder, files), *self.ldflags])


@dataclass(frozen=True)
class Binary:
    """One executable: its module, its package, and the check that an installed one fits."""

    name: str
    module: Module
    package: str
    version_command: tuple[str, ...] = ()
    version_pattern: str = ""

    def fits(self, output: str) -> bool:
        """Return whether the output of `version_command` shows a usable version.

        A usable version can replace the pinned one.
        """
        return bool(self.version_pattern) and re.search(self.version_pattern, output) is not None


def _kubernetes_ldflags(version: str) -> tuple[str, ...]:
    """Return link flags that stamp the version.

    Without them the emulation version and the version skew checks of the components misbehave.
    """
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return (
        "-s",
        "-w",
        *(f"-X {package}.{key}={value}" for package in packages for key, value in values.items()),
    )


def _kubernetes(name: str, *version_command: str) -> Binary:
    minor = re.escape(KUBERNETES_VERSION.rsplit(".", 1)[0])
    return Binary(
        name,
        KUBERNETES,
        f"k8s.io/kubernetes/cmd/{name}",
        version_command or ("--version",),
        rf"v{minor}\.\d+\b(?!-)",
    )


KUBERNETES = Module("kubernetes", _kubernetes_ldflags(KUBERNETES_VERSION))


_CONTAINERD = "github.com/containerd/containerd/v2"
CONTAINERD_MODULE = Module(
    "containerd", ("-s", "-w", f"-X {_CONTAINERD}/version.Version={CONTAINERD_VERSION}")
)


def api_server(version: str) -> str:
    """Return the name of the API server's binary of a Kubernetes version such as 1.30.14."""
    minor = version.rpartition(".")[0]
    return "kube-apiserver" if version == KUBERNETES_VERSION else f"kube-apiserver-{minor}"


BINARIES: dict[str, Binary] = {
    binary.name: binary
    for binary in (
        *(
            Binary(
                api_server(version),
                Module(f"kubernetes-{version.rpartition('.')[0]}", _kubernetes_ldflags(version)),
                "k8s.io/kubernetes/cmd/kube-apiserver",
            )
            for version in OLDER_KUBERNETES
        ),
        *(
            _kubernetes(name)
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
            )
        ),
        _kubernetes("kubectl", "version", "--client"),
        Binary(
            "etcd",
            Module("etcd"),
            "go.etcd.io/etcd/server/v3",
            ("--version",),
            r"etcd Version: 3\.6\.",
        ),
        *(Binary(name, CONTAINERD_MODULE, f"{_CONTAINERD}/cmd/{name}") for name in CONTAINERD),
        Binary("helm", Module("helm"), "helm.sh/helm/v4/cmd/helm", ("version", "--short"), r"v4\."),
        Binary("gpu-device-plugin", Module("gpu-device-plugin"), "."),
        Binary("pause", Module("pause"), "."),
        Binary("kind", Module("kind"), "sigs.k8s.io/kind", ("version",), r"^kind v0\.(?:3[3-9])\."),
        # Servers of source protocols, for the loader's tests.
        Binary("versitygw", Module("versitygw"), "github.com/versity/versitygw/cmd/versitygw"),
        Binary("fake-gcs-server", Module("fake-gcs-server"), "github.com/fsouza/fake-gcs-server"),
        Binary(
            "registry", Module("registry"), "github.com/distribution/distribution/v3/cmd/registry"
        ),
        # An OpenTelemetry Collector, for the tests of traces.
        Binary("otelcol", Module("otelcol"), "."),
        # The rules by which GitOps tools judge and compare objects, from their own code (tests of
        # the resource's status and defaults).
        Binary("kstatus", Module("kstatus"), "."),
        Binary("argodiff", Module("argodiff"), "."),
    )
}


def require(names: Sequence[str]) -> None:
    """Check that the named binaries exist, or that there is a Go toolchain to build them.

    Raises:
        BinaryError: there is neither.
    """
    for name in names:
        if not built(name).exists() and find_installed(BINARIES[name]) is None:
            find_go()


def folder(names: Sequence[str] = API_SERVER) -> Path:
    """Make sure that the named binaries exist and return the folder that holds all of them.

    Raises:
        BinaryError: an unknown name, no Go toolchain, or a failed build (with its last lines).
    """
    unknown = sorted(set(names) - BINARIES.keys())
    if unknown:
        raise BinaryError(
            f"unknown binaries {', '.join(unknown)}; known are {', '.join(sorted(BINARIES))}"
        )
    modules = {binary.module.name: binary.module for binary in BINARIES.values()}
    view = (
        cache.cache_root() / f"bin-{cache.digest(modules[name].key() for name in sorted(modules))}"
    )
    view.mkdir(parents=True, exist_ok=True)
    for name in names:
        link = view / name
        if not link.exists():
            _link(link, find_installed(BINARIES[name], view) or build(BINARIES[name]))
    return view


def path_of(name: str) -> Path:
    """Path of one binary, made if missing."""
    return folder([name]) / name


def module_sources(name: str) -> dict[str, Path]:
    """Return the source folder of each module that `go/NAME/go.mod` requires, by module path.

    The modules are downloaded if they are missing, and compared with the locked checksums.

    Raises:
        BinaryError: no Go toolchain, or a failed download (with its last lines).
    """
    module = MODULES / name
    names = re.findall(r"^\s+(\S+) v\S+$", (module / "go.mod").read_text(), re.MULTILINE)
    done = subprocess.run(
        [find_go(), "mod", "download", "-json", *names],
        cwd=module,
        env={**os.environ, "GOWORK": "off", "GOFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BinaryError(f"downloading the modules of {module / 'go.mod'} failed:\n{tail}")
    found, decoder, text = {}, json.JSONDecoder(), done.stdout.strip()
    while text:
        one, end = decoder.raw_decode(text)
        found[one["Path"]] = Path(one["Dir"])
        text = text[end:].lstrip()
    return found


def find_installed(binary: Binary, exclude: Path | None = None) -> Path | None:
    """Return a binary of a fitting version in `$KUBEBUILDER_ASSETS` or on `PATH`.

    Folders in `exclude` are ignored. Returns `None` if there is no such binary.
    """
    if not binary.version_command:
        return None
    places = [
        os.environ.get("KUBEBUILDER_ASSETS", ""),
        *os.environ.get("PATH", "").split(os.pathsep),
    ]
    for place in dict.fromkeys(places):
        candidate = Path(place) / binary.name
        if not place or not os.access(candidate, os.X_OK) or candidate.parent == exclude:
            continue
        try:
            done = subprocess.run(
                [candidate, *binary.version_command],
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if binary.fits(done.stdout + done.stderr):
            return candidate.resolve()
    return None


def build(binary: Binary) -> Path:
    """Build one binary into its module's cache folder unless it is already there.

    Parallel builds of one module wait for each other.
    """
    target = built(binary.name)
    if target.exists():
        return target
    with cache.locked(target.parent):
        if target.exists():
            return target
        go = find_go()
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            step(f"building {binary.name}"),
            tempfile.TemporaryDirectory(dir=target.parent) as scratch,
        ):
            made = Path(scratch) / binary.name
            command = [
                "nice",
                go,
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-mod=readonly",
                f"-ldflags={' '.join(binary.module.ldflags)}",
                "-o",
                str(made),
            ]
            done = subprocess.run(
                [*command, binary.package],
                cwd=binary.module.folder,
                env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                tail = "\n".join(done.stdout.splitlines()[-20:])
                raise BinaryError(
                    f"building {binary.name} in {binary.module.folder} failed:\n{tail}"
                )
            made.replace(target)
    return target


def built(name: str) -> Path:
    """Return where a built binary is kept."""
    module = BINARIES[name].module
    return cache.cache_root() / f"go-{module.name}-{module.key()}" / name


def find_go() -> str:
    """Path of a Go toolchain that is new enough.

    Raises:
        BinaryError: there is none; says what is needed instead.
    """
    wanted = ".".join(map(str, MINIMUM_GO))
    advice = (
        f"install Go >= {wanted}, or point KUBEBUILDER_ASSETS at a folder with ready binaries of "
        f"Kubernetes {KUBERNETES_VERSION}"
    )
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise BinaryError(f"no Go toolchain found: {advice}")
    output = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=True
    ).stdout
    match = re.match(r"go(\d+)\.(\d+)", output)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM_GO:
        raise BinaryError(f"{go} is {output.strip()}: {advice}")
    return go


def _link(link: Path, target: Path) -> None:
    """Make or replace a symbolic link in one step."""
    with tempfile.TemporaryDirectory(dir=link.parent) as scratch:
        fresh = Path(scratch) / link.name
        fresh.symlink_to(target)
        fresh.replace(link)


def main(arguments: Sequence[str]) -> int:
    """Command line: build the named binaries and print their folder."""
    try:
        print(folder(arguments or API_SERVER))
    except BinaryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
