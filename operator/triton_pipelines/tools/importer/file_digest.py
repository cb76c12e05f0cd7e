"""Digests of local files, which may have gigabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

BLOCK: Final = 1 << 20
ByteProgress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


def sha256_of(path: Path, meter: ByteProgress | None = None) -> str:
    """Return the SHA-256 of a file in lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if meter is not None:
                meter(len(block))
    return digest.hexdigest()
