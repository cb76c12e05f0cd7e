"""Run the native tokenizer of a release for ARM64 in an emulator, and compare its answers.

    make compare-native-arm64 TEXTS=10000 SEED=1

`make compare-native` records its requests and the answers on this machine, which are those of the
tokenizers library. The library of the release then answers the same requests under qemu. The tests
of the crate run there as well.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.local import cache, native, native_release
from e2e.local.progress import step
from tests.support import nativecompare

MACHINE = "aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
"""C library for ARM64, of Debian's package libc6-arm64-cross."""
OUT = native.ROOT / "out" / "compare-native-arm64"


class EmulatorError(RuntimeError):
    """Programs for ARM64 cannot run here; the message says what is needed."""


def emulator() -> list[str]:
    """Return the command that runs a program for ARM64; empty on such a machine.

    Raises:
        EmulatorError: qemu or the C library for ARM64 is missing.
    """
    if platform.machine() == MACHINE:
        return []
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None or not (LIBRARIES / "lib").is_dir():
        raise EmulatorError(
            "programs for ARM64 cannot run here: install qemu-user and libc6-arm64-cross"
        )
    return [qemu, "-L", str(LIBRARIES)]


def program(library: Path) -> Path:
    """Return the program that replays a recording with ``library``, compiled if necessary."""
    folder = cache.cache_root() / "native-replay-target"
    flags = f"-L native={library.parent} -l dylib=triton_tritonpipe_tokenizer"
    native_release.cargo(
        *(MACHINE, "zigbuild", "--no-default-features", "--bin=replay"),
        folder=folder,
        crate=native.CRATE / "fuzz",
        variables={"RUSTFLAGS": flags},
    )
    return folder / native_release.triple(MACHINE) / "release/replay"


def run_tests(runner: list[str]) -> str:
    """Run the tests of the crate; return the line with their number."""
    name = native_release.triple(MACHINE).upper().replace("-", "_")
    output = native_release.cargo(
        *(MACHINE, "test", "--lib"),
        folder=cache.cache_root() / "native-release-target",
        variables={f"CARGO_TARGET_{name}_RUNNER": " ".join(runner)} if runner else None,
    )
    return next(line for line in output.splitlines() if line.startswith("test result:"))


def main() -> int:
    """Command line: record, test and replay; return 1 if anything differs."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--texts", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    recording = OUT / f"seed{given.seed}"
    try:
        runner = emulator()
        library = native_release.library(MACHINE)
        replay = program(library)
        if not nativecompare.compare(given.seed, given.texts, recording):
            return 1
        with step(f"testing the native tokenizer on {MACHINE}"):
            print(run_tests(runner))
    except (EmulatorError, native.NativeBuildError, native_release.LibraryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = ["-E", f"LD_LIBRARY_PATH={library.parent}"] if runner else []
    call = ["nice", *runner, *found, str(replay), str(recording)]
    return subprocess.run(call, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
