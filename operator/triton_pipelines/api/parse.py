"""Parse a document into the resource and report every problem at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from .base import Finding
from .depth import MAX_DOCUMENT_DEPTH, deep_path
from .field_paths import written
from .finding_codes import FindingCode
from .messages import code_of, message
from .spec_size import MAX_SPEC_BYTES, SpecSize, excess_of
from .v1alpha1 import InferencePipeline
from .wording import counted

_META = ("name", "namespace", "uid", "generation", "deletionTimestamp", "annotations", "labels")


def parse(document: Mapping[str, Any]) -> tuple[InferencePipeline | None, list[Finding]]:
    """Parse one resource: the schema first, then the rules across fields.

    Types are as strict as in the API server: text is not a number, ``null`` means omitted, and keys
    are case-sensitive.

    Args:
        document: the object as ``kubectl`` or the API server returns it. ``status`` and unrelated
            metadata are ignored.

    Returns:
        The pipeline (``None`` if the schema is violated), and all findings.
    """
    if not isinstance(document, Mapping):
        return None, [
            Finding(
                "(the document)",
                "must be a mapping with apiVersion, kind, metadata and spec",
                code=FindingCode.WRONG_TYPE,
            )
        ]
    read = read_of(document)
    if (deep := deep_path(read, MAX_DOCUMENT_DEPTH)) is not None:
        return None, [_too_deep(deep)]
    if (excess := excess_of(read.get("spec"))) is not None:
        return None, [_too_large(excess)]
    body = {key: _normalized(value) for key, value in read.items()}
    absent = [
        Finding(key, "required", code=FindingCode.REQUIRED)
        for key in ("apiVersion", "kind")
        if key not in body
    ]
    try:
        # Strict pydantic reads enums from text only in JSON input. YAML dates become text, as in
        # kubectl.
        pipeline = InferencePipeline.model_validate_json(
            json.dumps(body, default=str), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        return None, absent + _findings(error, body)
    return (None if absent else pipeline), absent + list(pipeline.spec.broken_rules("spec"))


# Findings reported at once: suggestions for thousands of unknown fields would take minutes.
FINDINGS_MAX: Final = 100


def _findings(error: ValidationError, body: Mapping[str, Any]) -> list[Finding]:
    items: list[dict[str, Any]] = [
        dict(one) for one in error.errors(include_url=False)[: FINDINGS_MAX + 1]
    ]
    found = [
        Finding(_path(item["loc"]), message(item, body), code=code_of(item))
        for item in _without_echoes(items[:FINDINGS_MAX])
    ]
    if (more := error.error_count() - FINDINGS_MAX) > 0:
        last = items[FINDINGS_MAX]
        further = counted(more, "further problem is", "further problems are")
        text = f"{further} not listed; correct the listed problems first"
        found.append(Finding(_path(last["loc"]), text, code=code_of(last)))
    return found


# Parts of a path that are shown of a value that is nested too deeply: the field, not the nesting.
_SHOWN_PARTS = 4


def _too_deep(path: tuple[int | str, ...]) -> Finding:
    return Finding(
        written(path[:_SHOWN_PARTS]),
        f"nested more than {MAX_DOCUMENT_DEPTH} levels deep in the document; use fewer levels",
        code=FindingCode.TOO_LARGE,
    )


def _too_large(excess: SpecSize) -> Finding:
    return Finding(
        excess.largest,
        f"the spec has {excess.total} bytes as JSON, but at most {MAX_SPEC_BYTES} bytes are "
        "allowed; shorten this field, which is the largest",
        code=FindingCode.TOO_LARGE,
    )


def read_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a document that :func:`parse` reads.

    Equal parts parse to equal results.
    """
    body = {key: value for key, value in document.items() if key != "status"}
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        body["metadata"] = {key: metadata[key] for key in _META if metadata.get(key) is not None}
    return body


# Parts of the Kubernetes API and of Triton's ModelConfig that are kept as written: in some of them
# null has a meaning.
_KEPT_AS_WRITTEN = frozenset(
    {
        "configPatch",
        "engineArgs",
        "podTemplate",
        "affinity",
        "tolerations",
        "topologySpreadConstraints",
        "valueFrom",
        "inferenceFrom",
        "metricsFrom",
        "egress",
    }
)


def _normalized(value: Any) -> Any:
    """Return the value as the API server sees it: without null fields, ``2.0`` as an integer."""
    if isinstance(value, Mapping):
        return {
            key: item if key in _KEPT_AS_WRITTEN else _normalized(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, (list, tuple)):
        return [_normalized(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without_echoes(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the errors without consequential ones.

    Pydantic counts only the valid items of a list, so an invalid item also makes its list "too
    short".
    """

    def echo(item: dict[str, Any]) -> bool:
        length = len(item["loc"])
        return item["type"] == "too_short" and any(
            len(other["loc"]) > length and other["loc"][:length] == item["loc"] for other in items
        )

    return [item for item in items if not echo(item)]


def _path(location: tuple[int | str, ...]) -> str:
    # "[key]" is pydantic's marker for the key of a mapping. The finding names the mapping, as the
    # API server does.
    if location and location[-1] == "[key]":
        location = location[:-2]
    return written(location) or "(the document)"
