"""The built-in tokenizer of `native/`, built from the crate registry once and kept in the cache.

The library is the same for every checkout with the same sources, so a build is repeated only when
these change. `install` puts it into the package, where the loader and a wheel find it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from e2e.local import cache
from e2e.local.progress import step
from triton_pipelines.api.names import NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.loader import native_library

ROOT = Path(__file__).resolve().parents[2]
CRATE = ROOT / "native"
MINIMUM_RUST = (1, 85)
"""`rust-version` of the crate."""
INPUTS = ("Cargo.toml", "Cargo.lock", "build.rs", "src")
TEST_SERVER = "libtestserver.so"
"""The backend with a server of one model around it (`native/fuzz`), for tests in this process."""
KEPT_SETTINGS = ("CC", "CXX", "PATH", "HOME", "LANG", "TMPDIR")
KEPT_PREFIXES = ("CARGO_", "RUSTUP_", "SSL_", "HTTP", "http", "NO_PROXY", "no_proxy")
TAIL_LINES = 25


class NativeBuildError(RuntimeError):
    """The library could not be built; the message says what is needed."""


def key(crate: Path = CRATE, *more: str) -> str:
    """Return the hash of everything that decides the library; `more` are further inputs."""
    files = [
        path
        for name in (*INPUTS, *more)
        for path in ([crate / name] if (crate / name).is_file() else (crate / name).rglob("*"))
        if path.is_file()
    ]
    return cache.digest([cache.digest_tree(crate, files), native_library.machine()])


def require() -> None:
    """Check that :func:`library` has a library or a toolchain to build one.

    Raises:
        NativeBuildError: it has neither.
    """
    if not built_library().exists():
        find_cargo()


def library() -> Path:
    """Return the library, built if its sources have changed.

    Raises:
        NativeBuildError: no Rust toolchain, or a failed build (with its last lines).
    """
    return _built(built_library(), CRATE, "building the built-in tokenizer")


def built_library() -> Path:
    """Return where the library is kept once it is built."""
    return cache.cache_root() / f"native-{key()}" / NATIVE_TOKENIZER_LIBRARY


def testserver() -> Path:
    """Return the library of the test server, built if its sources have changed.

    Raises:
        NativeBuildError: as :func:`library`.
    """
    name = f"native-testserver-{key(CRATE, 'fuzz/Cargo.toml', 'fuzz/Cargo.lock', 'fuzz/src')}"
    target = cache.cache_root() / name / TEST_SERVER
    return _built(target, CRATE / "fuzz", "building the test server of the built-in tokenizer")


def _built(target: Path, crate: Path, doing: str) -> Path:
    """Return `target`, which is the library of `crate`."""
    if target.exists():
        return target
    with cache.locked(target.parent):
        if not target.exists():
            with step(doing):
                _cargo("build", "--lib", crate=crate)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                made = Path(scratch) / target.name
                shutil.copy(_target_folder() / "release" / target.name, made)
                made.replace(target)
    return target


def install() -> Path:
    """Put the library into the package and return its place there.

    Raises:
        NativeBuildError: as :func:`library`.
    """
    built, place = library(), native_library.path()
    if not place.exists() or place.read_bytes() != built.read_bytes():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            made = Path(scratch) / NATIVE_TOKENIZER_LIBRARY
            shutil.copy(built, made)
            made.replace(place)
    return place


def test() -> None:
    """Run the tests of the crate and its test server, unless they passed with these sources.

    Clippy runs first if it is installed. It rejects unsafe code without its invariant.

    Raises:
        NativeBuildError: no Rust toolchain, or a check that fails (with the last lines).
    """
    tests = ("fuzz/Cargo.toml", "fuzz/Cargo.lock", "fuzz/src", "fuzz/tests")
    passed = cache.cache_root() / f"native-tests-{key(CRATE, *tests)}" / "passed"
    with cache.locked(passed.parent):
        if not passed.exists():
            with step("testing the built-in tokenizer"):
                if shutil.which("cargo-clippy", path=Path(find_cargo()).parent):
                    _cargo("clippy")
                _cargo("test")
                _cargo("test", crate=CRATE / "fuzz")
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()


def find_cargo() -> str:
    """Return the path of Cargo, if its Rust is new enough.

    Raises:
        NativeBuildError: there is none; says what is needed instead.
    """
    wanted = ".".join(map(str, MINIMUM_RUST))
    advice = f"install Rust >= {wanted} (rustup, or the packages cargo and rustc) and a C compiler"
    cargo = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo/bin")
    if cargo is None:
        raise NativeBuildError(f"no Rust toolchain found: {advice}")
    done = subprocess.run([cargo, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"cargo (\d+)\.(\d+)", done.stdout)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM_RUST:
        raise NativeBuildError(f"{cargo} is {done.stdout.strip() or 'not usable'}: {advice}")
    return cargo


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a build sees, so that equal sources build alike."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in KEPT_SETTINGS or name.startswith(KEPT_PREFIXES)
    }
    # Paths of this machine are not part of the library.
    remapped = [f"--remap-path-prefix={CRATE}=native"]
    home = Path(environment.get("CARGO_HOME") or Path.home() / ".cargo")
    remapped.append(f"--remap-path-prefix={home}=cargo")
    return {**kept, "RUSTFLAGS": " ".join(remapped), "CARGO_TARGET_DIR": str(_target_folder())}


def _target_folder() -> Path:
    """Return the folder of compiled dependencies, shared by all versions of our own sources."""
    lock = (CRATE / "Cargo.lock").read_bytes()
    return cache.cache_root() / f"native-target-{cache.digest([lock])}"


def _cargo(command: str, *arguments: str, crate: Path = CRATE) -> None:
    call = [find_cargo(), command, "--release", "--locked", *arguments]
    with cache.locked(_target_folder()):
        run(call, crate, settings(os.environ))


def run(call: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command of a build in the background; return its output.

    Raises:
        NativeBuildError: it failed; the message ends with its last lines.
    """
    done = subprocess.run(
        ["nice", *call],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise NativeBuildError(f"`{' '.join(call[:2])}` in {folder} failed:\n{tail}")
    return done.stdout


def main() -> int:
    """Command line: test and build the library, put it into the package, print its place."""
    try:
        test()
        testserver()
        print(install())
    except NativeBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
