"""Build the built-in tokenizer for each architecture of a release, and put it into the package.

    make native-release

Zig links against glibc 2.28, so the library loads on every distribution since 2018. It is compiled
for other architectures, but not run: `make compare-native-arm64` does that with an emulator.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

from e2e.local import cache, native
from e2e.local.progress import step
from triton_pipelines.api.names import NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.loader import native_library

MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)
"""Version that a release needs."""
SERVER_GLIBC = (2, 35)
"""Version in the oldest supported server image, Ubuntu 22.04: the most that any build may need."""
TOOLS_LOCK = native.ROOT / "requirements/native.txt"
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


class LibraryError(ValueError):
    """A file is not a library for the servers that are supported."""


def check(content: bytes, machine: str, newest: tuple[int, int]) -> None:
    """Check that a library is for ``machine`` and needs no glibc newer than ``newest``.

    Raises:
        LibraryError: it is not, or it needs the C++ library.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise LibraryError("not a 64-bit little-endian ELF file")
    (number,) = struct.unpack_from("<H", content, 18)
    if _ELF_MACHINES.get(number) != machine:
        found = _ELF_MACHINES.get(number, f"ELF machine {number}")
        raise LibraryError(f"built for {found}, not for {machine}")
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", content)
    if b"\0GLIBCXX_" in content:
        raise LibraryError("needs the C++ library, whose version differs between server images")
    most = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    if most > newest:
        raise LibraryError(f"needs glibc {most[0]}.{most[1]}, newer than {newest[0]}.{newest[1]}")


def library(machine: str) -> Path:
    """Return the library for ``machine``, built if its sources have changed.

    Raises:
        LibraryError: as :func:`check`.
        native.NativeBuildError: no Rust toolchain, or a failed build (with its last lines).
    """
    key = cache.digest([native.key(), TOOLS_LOCK.read_bytes(), machine, str(GLIBC)])
    target = cache.cache_root() / f"native-release-{key}" / NATIVE_TOKENIZER_LIBRARY
    with cache.locked(target.parent):
        if not target.exists():
            with step(f"building the built-in tokenizer for {machine}"):
                content = _build(machine).read_bytes()
            check(content, machine, GLIBC)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                made = Path(scratch) / target.name
                made.write_bytes(content)
                made.replace(target)
    return target


def install(package: Path) -> list[Path]:
    """Put the libraries of all architectures into a package folder and return their places.

    Raises:
        LibraryError: as :func:`library`.
        native.NativeBuildError: as :func:`library`.
    """
    places = []
    for machine in MACHINES:
        place = package / "native" / machine / NATIVE_TOKENIZER_LIBRARY
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library(machine), place)
        places.append(place)
    return places


def _build(machine: str) -> Path:
    """Compile the library for ``machine`` and return it."""
    folder = cache.cache_root() / "native-release-target"
    cargo(machine, "zigbuild", "--lib", folder=folder)
    return folder / triple(machine) / "release" / NATIVE_TOKENIZER_LIBRARY


def triple(machine: str) -> str:
    """Return Rust's name of the target of a release for ``machine``."""
    return f"{machine}-unknown-linux-gnu"


def cargo(
    machine: str,
    command: str,
    *arguments: str,
    folder: Path,
    crate: Path = native.CRATE,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run ``cargo-zigbuild`` for ``machine`` as a release does; return its output.

    Args:
        machine: An architecture of ``MACHINES``.
        command: A command of cargo-zigbuild.
        arguments: More arguments of the command.
        folder: Where Cargo puts what it compiles.
        crate: The crate to compile.
        variables: More environment variables; ``RUSTFLAGS`` is added to those of a release.

    Raises:
        native.NativeBuildError: no Rust toolchain, or a failed build (with its last lines).
    """
    tools, more = _tools(), dict(variables or {})
    environment = native.settings(os.environ) | {"CARGO_TARGET_DIR": str(folder)}
    path = (str(tools), str(Path(native.find_cargo()).parent), os.environ["PATH"])
    environment["PATH"] = os.pathsep.join(path)
    environment["RUSTFLAGS"] = f"{environment['RUSTFLAGS']} {more.pop('RUSTFLAGS', '')}".strip()
    environment |= more
    if rustup := shutil.which("rustup", path=environment["PATH"]):
        native.run([rustup, "target", "add", triple(machine)], crate, environment)
    call = [str(tools / "cargo-zigbuild"), command, "--release", "--locked", "--jobs=1"]
    call += [f"--target={triple(machine)}.{GLIBC[0]}.{GLIBC[1]}", *arguments]
    with cache.locked(folder):
        return native.run(call, crate, environment)


def _tools() -> Path:
    """Return the folder of cargo-zigbuild and Zig, installed once per lock file."""
    key = cache.digest([TOOLS_LOCK.read_bytes()])
    folder = cache.cache_root() / f"native-release-tools-{key}"
    with cache.locked(folder):
        if not (folder / "installed").exists():
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
            options = ["--only-binary=:all:", "--require-hashes", "-r", str(TOOLS_LOCK)]
            native.run([*pip, *options], native.ROOT, dict(os.environ))
            (folder / "installed").touch()
    return folder / "bin"


def main() -> int:
    """Command line: build for every architecture; print the places."""
    try:
        for place in install(native_library.path().parents[2]):
            print(place)
    except (native.NativeBuildError, LibraryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
