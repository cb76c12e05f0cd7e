"""From a document to the resource, with every finding at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .base import Finding
from .field_paths import written
from .messages import message
from .v1alpha1 import InferencePipeline

_META = ("name", "namespace", "uid", "generation", "deletionTimestamp", "annotations", "labels")


def parse(document: Mapping[str, Any]) -> tuple[InferencePipeline | None, list[Finding]]:
    """Read one resource: schema first, then the cross-field rules.

    ``document`` is the object as ``kubectl`` or the API server gives it; ``status`` and foreign metadata are ignored. Types are taken
    as strictly as the API server takes them: text is no number, ``null`` means left out, keys are spelt as in the reference.
    Returns the pipeline (``None`` where the schema is broken) and all findings, each with its path.
    """
    if not isinstance(document, Mapping):
        return None, [
            Finding("(the document)", "must be a mapping with apiVersion, kind, metadata and spec")
        ]
    body = {key: _as_sent(value) for key, value in read_of(document).items()}
    absent = [Finding(key, "is required") for key in ("apiVersion", "kind") if key not in body]
    try:
        # Through JSON, because only there pydantic is strict and still reads enums from text; YAML's dates become text, as in kubectl.
        pipeline = InferencePipeline.model_validate_json(
            json.dumps(body, default=str), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        return None, absent + [
            Finding(_path(item["loc"]), message(item, body))
            for item in _telling([dict(one) for one in error.errors(include_url=False)])
        ]
    return (None if absent else pipeline), absent + list(pipeline.spec.broken_rules("spec"))


def read_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """All of a document that :func:`parse` reads: where this is equal, so is what it says."""
    body = {key: value for key, value in document.items() if key != "status"}
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        body["metadata"] = {key: metadata[key] for key in _META if metadata.get(key) is not None}
    return body


# Parts of the Kubernetes API and of Triton's ModelConfig that are kept as written: null has a meaning of its own in some.
_PASSED_ON = frozenset(
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
    }
)


def _as_sent(value: Any) -> Any:
    """The value as the API server sees it: fields that are null are left out, ``2.0`` is a whole number."""
    if isinstance(value, Mapping):
        return {
            key: item if key in _PASSED_ON else _as_sent(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, (list, tuple)):
        return [_as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _telling(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the echoes: pydantic counts only good items of a list, so a bad item also makes its list "too short"."""

    def echo(item: dict[str, Any]) -> bool:
        length = len(item["loc"])
        return item["type"] == "too_short" and any(
            len(other["loc"]) > length and other["loc"][:length] == item["loc"] for other in items
        )

    return [item for item in items if not echo(item)]


def _path(location: tuple[int | str, ...]) -> str:
    if (
        location and location[-1] == "[key]"
    ):  # pydantic's mark for the key of a mapping: speak of the mapping, as the API server does
        location = location[:-2]
    return written(location) or "(the document)"
