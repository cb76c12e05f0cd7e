"""A real local Triton for tests, and small model repositories written by hand."""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from triton_pipelines.triton.local_server import LocalTriton


@contextlib.contextmanager
def triton_server(repository: Path, load: Sequence[str], **options: Any) -> Iterator[LocalTriton]:
    """Run a real tritonserver on free loopback ports and wait until it is ready.

    The options are those of ``LocalTriton``. Its log is shown if the test fails.
    """
    options.setdefault("stop_s", 2)
    with LocalTriton(repository, load, **options) as server:
        try:
            yield server
        except BaseException:
            print(
                "--- tail of the tritonserver log ---", *server.log().splitlines()[-40:], sep="\n"
            )  # pytest shows it with the failure
            raise


def runtime_source(name: str) -> str:
    """Return the text of ``runtime/<name>/model.py``.

    The file is copied into a model's version folder.
    """
    return (
        importlib.resources.files("triton_pipelines")
        .joinpath("runtime", name, "model.py")
        .read_text()
    )


def write_model(
    repository: Path, name: str, config: str, files: dict[str, str | bytes] | None = None
) -> Path:
    """Write ``<repository>/<name>/config.pbtxt`` and the files of version 1.

    Returns the version folder.
    """
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for path, content in (files or {}).items():
        if isinstance(content, str):
            (version / path).write_text(content)
        else:
            (version / path).write_bytes(content)
    return version
