"""Build the native tokenizer for each architecture of a release, and put it into the package.

    make native-release

Zig links against glibc 2.28, so the library loads on every distribution since 2018. It is compiled
for other architectures, but not run: the tests of the crate run on this machine's architecture.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import venv
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
TOOLS = ("cargo-zigbuild==0.24.0", "ziglang==0.17.1")
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


class LibraryError(ValueError):
    """A file is not a library for the servers that are supported."""


def check(content: bytes, machine: str, newest: tuple[int, int]) -> None:
    """Check that a library is for ``machine`` and needs no glibc newer than ``newest``.

    Raises:
        LibraryError: it is not; says what it is instead.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise LibraryError("not a 64-bit little-endian ELF file")
    (number,) = struct.unpack_from("<H", content, 18)
    if _ELF_MACHINES.get(number) != machine:
        found = _ELF_MACHINES.get(number, f"ELF machine {number}")
        raise LibraryError(f"built for {found}, not for {machine}")
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", content)
    most = max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))
    if most > newest:
        raise LibraryError(f"needs glibc {most[0]}.{most[1]}, newer than {newest[0]}.{newest[1]}")


def build(machine: str) -> Path:
    """Build the library for ``machine``, check it and return its place in the package.

    Raises:
        LibraryError: as :func:`check`.
        subprocess.CalledProcessError: a tool failed; its output was shown.
    """
    target = f"{machine}-unknown-linux-gnu"
    folder = cache.cache_root() / "native-release-target"
    tools = _tools()
    cargo = native.find_cargo()
    environment = native.settings(os.environ) | {"CARGO_TARGET_DIR": str(folder)}
    environment["PATH"] = f"{tools}{os.pathsep}{Path(cargo).parent}{os.pathsep}{os.environ['PATH']}"
    with step(f"building the native tokenizer for {machine}"):
        if shutil.which("rustup", path=environment["PATH"]):
            subprocess.run(["rustup", "target", "add", target], env=environment, check=True)
        call = [cargo, "zigbuild", "--release", "--locked", "--lib"]
        call.append(f"--target={target}.{GLIBC[0]}.{GLIBC[1]}")
        subprocess.run(["nice", *call], cwd=native.CRATE, env=environment, check=True)
    content = (folder / target / "release" / NATIVE_TOKENIZER_LIBRARY).read_bytes()
    check(content, machine, GLIBC)
    place = native_library.path().parents[1] / machine / NATIVE_TOKENIZER_LIBRARY
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


def _tools() -> Path:
    """Return the folder of cargo-zigbuild and Zig, installed once."""
    folder = cache.cache_root() / f"native-release-tools-{cache.digest(list(TOOLS))}"
    with cache.locked(folder):
        if not (folder / "installed").exists():
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--only-binary=:all:", *TOOLS], check=True)
            (folder / "installed").touch()
    return folder / "bin"


def main() -> int:
    """Command line: build for every architecture; print the places."""
    try:
        for machine in MACHINES:
            print(build(machine))
    except (native.NativeBuildError, LibraryError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
