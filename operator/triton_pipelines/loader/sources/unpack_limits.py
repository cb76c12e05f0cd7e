"""Limits of what compressed content may unpack to, so that a small download fills no volume."""

from __future__ import annotations

from typing import Final

from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.progress import format_bytes

MAX_UNPACKED_BYTES: Final = 1 << 40
"""Maximum bytes of the files that come out of one layer: 1 TiB.

The free space of the volume usually ends an unpacking earlier.
"""
MAX_UNPACK_RATIO: Final = 100
"""Maximum size of unpacked content, as a multiple of its packed size.

Weights pack to 0.3-0.95 of their size and vocabularies to a tenth, while gzip packs zeros to a
thousandth.
"""
SMALL_UNPACKED_BYTES: Final = 64 << 20
"""Bytes that packed content of any size may unpack to, whatever the ratio: 64 MiB."""


def unpacked_limit(packed: int) -> int:
    """Return the bytes that ``packed`` bytes may unpack to."""
    return min(MAX_UNPACKED_BYTES, max(SMALL_UNPACKED_BYTES, MAX_UNPACK_RATIO * packed))


def unpacked_error(what: str, packed: int) -> SourceError:
    """Return the error for content that unpacks to more than :func:`unpacked_limit`.

    Args:
        what: what is packed, such as ``a layer``.
        packed: its packed bytes.
    """
    return SourceError(
        f"the source has {what} of {format_bytes(packed)} that unpacks to more than "
        f"{format_bytes(unpacked_limit(packed))}, which is implausible for a model; check "
        "the origin of the source, or publish the files uncompressed"
    )
