"""Build the wheel and the source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.local import native, native_release
from hack.release import files
from hack.release.errors import ReleaseError
from hack.release.model import Release


def add_native_tokenizer(source: Path) -> None:
    """Put the built-in tokenizer for every architecture into the exported package.

    Raises:
        ReleaseError: it cannot be built.
    """
    try:
        native_release.install(source / "operator/triton_pipelines")
    except (native.NativeBuildError, native_release.LibraryError) as error:
        raise ReleaseError(f"built-in tokenizer: {error}") from None


def build(release: Release) -> list[Path]:
    """Return the wheel and the source distribution.

    Raises:
        ReleaseError: the build failed, with its last lines.
    """
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("uv")),
            "build",
            "--wheel",
            "--sdist",
            "--no-build-isolation",
            "--offline",
            f"--python={sys.executable}",
            f"--out-dir={release.folder}",
            str(release.source),
        ],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise ReleaseError(f"building the Python package failed:\n{tail}")
    (release.folder / ".gitignore").unlink(missing_ok=True)
    stem = f"triton_pipelines-{release.python_version}"
    wheel = release.folder / f"{stem}-py3-none-any.whl"
    sdist = release.folder / f"{stem}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        files.repack(sdist, Path(scratch), release.epoch)
    return [wheel, sdist]
