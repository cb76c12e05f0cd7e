"""Decode responses of the API server, with a bounded nesting depth and bounded specs.

Everything that reads an object recursively (``json``, ``copy.deepcopy``, Kopf's diffs) fails at
some depth of nesting. An object that is stored with a deeper value must not stop the operator for
all others, so values below :data:`MAX_DEPTH` are read as ``null``. What remains is still deeper
than any valid resource: :func:`triton_pipelines.api.parse.parse` reports it. Specs that are too
large for the operator's memory are replaced by their size, which the same function reports.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import from_json

from triton_pipelines.api import names
from triton_pipelines.api.spec_size import MAX_SPEC_BYTES, omit_large_spec

# Levels of objects and lists that are kept: those that pydantic's JSON parser accepts (jiter's
# DEFAULT_RECURSION_LIMIT). copy.deepcopy takes three stack frames per level; Python allows 1000.
MAX_DEPTH: Final = 200
# A string (whose brackets do not count) or a bracket.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def loads(raw: bytes) -> Any:
    """Return the decoded JSON; values nested deeper than :data:`MAX_DEPTH` are ``None``.

    Large specs of pipelines are omitted, also in lists and watch events.

    Raises:
        ValueError: it is not JSON.
    """
    document = _loads(raw)
    if len(raw) > MAX_SPEC_BYTES and isinstance(document, dict):
        _omit_large_specs(document)
    return document


def _omit_large_specs(document: dict[str, Any]) -> None:
    if document.get("kind") == f"{names.KIND}List":
        pipelines = document.get("items") or ()
    else:
        # A watch event, or an object.
        one = document.get("object", document)
        is_pipeline = isinstance(one, dict) and one.get("kind") == names.KIND
        pipelines = (one,) if is_pipeline else ()
    for pipeline in pipelines:
        omit_large_spec(pipeline)


def _loads(raw: bytes) -> Any:
    try:
        return from_json(raw)
    except ValueError:
        # Too deep, not JSON, or half of a surrogate pair.
        return json.loads(without_deep_values(raw))


def bounded(raw: bytes) -> bytes:
    """Return JSON text without what :func:`loads` leaves out."""
    if len(raw) > MAX_SPEC_BYTES:
        try:
            return json.dumps(loads(raw)).encode()
        except ValueError:
            return raw  # The end of a connection that broke.
    # Cheap and enough for many lines: fewer brackets than levels.
    if raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return raw
    # To decode a line takes a third to a tenth of the time that it takes to find its brackets here.
    try:
        from_json(raw)
    except ValueError:
        return without_deep_values(raw)
    return raw


def without_deep_values(raw: bytes, depth: int = MAX_DEPTH) -> bytes:
    """Return the JSON text with every object and list below ``depth`` levels replaced by null.

    Linear in the length of the text, and without recursion.
    """
    kept: list[bytes] = []
    level = start = 0
    for token in _TOKEN.finditer(raw):
        bracket = token.group()
        if bracket in (b"{", b"["):
            level += 1
            if level == depth + 1:
                kept += (raw[start : token.start()], b"null")
        elif bracket in (b"}", b"]"):
            if level == depth + 1:
                start = token.end()
            level -= 1
    kept.append(raw[start:])
    return b"".join(kept)
