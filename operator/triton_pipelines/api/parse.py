"""From a document to the resource, with every finding at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .base import Finding
from .v1alpha1 import InferencePipeline

_META = ("name", "namespace", "uid", "generation", "deletionTimestamp", "annotations", "labels")


def parse(document: Mapping[str, Any]) -> tuple[InferencePipeline | None, list[Finding]]:
    """Read one resource: schema first, then the cross-field rules.

    ``document`` is the object as ``kubectl`` or the API server gives it; ``status`` and foreign metadata are ignored.
    Returns the pipeline (``None`` where the schema is broken) and all findings, each with its path.
    """
    body = {key: value for key, value in document.items() if key != "status"}
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        body["metadata"] = {key: metadata[key] for key in _META if metadata.get(key) is not None}
    try:
        pipeline = InferencePipeline.model_validate(body)
    except ValidationError as error:
        return None, [Finding(_path(item["loc"]), _message(dict(item))) for item in error.errors(include_url=False, include_context=True)]
    return pipeline, list(pipeline.spec.broken_rules("spec"))


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(the document)"


def _message(item: Mapping[str, Any]) -> str:
    """Pydantic's message in the words of the resource: what is wrong and what may stand there."""
    kind, value = item["type"], item.get("input")
    context = item.get("ctx") or {}
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not a field of InferencePipeline v1alpha1; check the spelling (see docs/reference/api.md)"
    if kind in ("enum", "literal_error"):
        return f"{value!r} is not allowed; write one of {context.get('expected')}"
    if kind == "string_pattern_mismatch":
        return f"{value!r} does not match {context.get('pattern')}"
    return f"{item['msg']} (got {value!r})" if not isinstance(value, (dict, list)) else str(item["msg"])
