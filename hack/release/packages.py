"""Build the wheel and the source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.local import native
from hack.release import files
from hack.release.errors import ReleaseError
from hack.release.model import Release
from triton_pipelines.api.names import NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.loader import native_library


def add_native_tokenizer(source: Path) -> None:
    """Put the native tokenizer of this machine's architecture into the exported package.

    Raises:
        ReleaseError: it cannot be built.
    """
    try:
        library = native.library()
    except native.NativeBuildError as error:
        raise ReleaseError(f"native tokenizer: {error}") from None
    folder = source / "operator/triton_pipelines/native" / native_library.machine()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NATIVE_TOKENIZER_LIBRARY).write_bytes(library.read_bytes())


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
