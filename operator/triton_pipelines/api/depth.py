"""Bounds of nesting: how deep a document may be, and the first value that is deeper.

Nothing here is recursive, so a document of any depth can be examined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

MAX_DOCUMENT_DEPTH: Final = 64
"""Levels of mappings and lists in a document; a real resource has fewer than 25."""
# Values of one level from which on the same value is examined once.
_MANY: Final = 1000


def is_deeper_than(value: Any, depth: int) -> bool:
    """Return whether a value has more than ``depth`` levels of mappings and lists.

    A mapping that contains itself is deeper than any depth.
    """
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if len(level) > _MANY:
            # Aliases of YAML could otherwise double the work with every level.
            level = list({id(child): child for child in level}.values())
    return bool(level)


def deep_path(value: Any, depth: int) -> tuple[int | str, ...] | None:
    """Return the path of the first mapping or list below ``depth`` levels; ``None`` without one.

    Keys are as written, and list items have their index.
    """
    level: dict[int, tuple[tuple[int | str, ...], Any]] = (
        {id(value): ((), value)} if isinstance(value, (Mapping, list, tuple)) else {}
    )
    for _ in range(depth):
        level = {
            id(child): ((*path, key), child)
            for path, item in level.values()
            for key, child in _children(item)
            if isinstance(child, (Mapping, list, tuple))
        }
    return next((path for path, _ in level.values()), None)


def _children(value: Any) -> Iterable[tuple[int | str, Any]]:
    if isinstance(value, Mapping):
        return ((str(key), child) for key, child in value.items())
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def expanded_size(value: Any, limit: int) -> int:
    """Return the number of values in a document after its aliases are expanded.

    Args:
        value: a document of bounded depth.
        limit: a size above it is returned as ``limit + 1``.
    """
    sizes: dict[int, int] = {}

    def size(item: Any) -> int:
        if not isinstance(item, (dict, list)):
            return 1
        if id(item) not in sizes:
            children = item.values() if isinstance(item, dict) else item
            sizes[id(item)] = min(limit + 1, 1 + sum(map(size, children)))
        return sizes[id(item)]

    return size(value)
