"""The cache folder for slow builds: content-addressed, atomic, safe for parallel use.

Everything that is expensive to make (binaries, image archives) lives outside the checkout, in a
folder whose name ends in the hash of what it was made from. A changed input makes a new folder; an
unchanged one is never rebuilt.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

DIGEST_LENGTH = 16
"""Hex digits kept of a SHA-256: 64 bits, ample for a cache on one machine."""


def cache_root() -> Path:
    """Return the product's cache folder.

    It is `$TRITONPIPE_CACHE`, else `triton-pipelines` below the XDG cache folder.
    """
    if explicit := os.environ.get("TRITONPIPE_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "triton-pipelines"


def digest(parts: Iterable[str | bytes]) -> str:
    """Hash of a sequence of inputs; their boundaries count (`["ab"] != ["a", "b"]`)."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "big"))
        sha.update(data)
    return sha.hexdigest()[:DIGEST_LENGTH]


def digest_tree(root: Path, files: Iterable[Path]) -> str:
    """Return a hash of files below `root`.

    It covers relative names, executable bits and contents, independent of the order of `files`.
    """
    parts: list[str | bytes] = []
    for path in sorted(set(files)):
        mode = "x" if path.stat().st_mode & 0o111 else "-"
        parts += [f"{mode}{path.relative_to(root)}", path.read_bytes()]
    return digest(parts)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock named after `path` (in `path` + `.lock`).

    Waits for other processes and threads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
