"""Limit of a spec's size.

The operator keeps every pipeline in memory, about 2.5 times as large as its JSON. The API server
stores objects of up to 1.5 MiB, so a hundred of those would exceed the operator's memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_SPEC_BYTES: Final = 350_000
"""Bytes of a spec as JSON; real ones have a few kB. What is rendered of it must also fit one
ConfigMap (1 MiB): quoting doubles a text at worst, and the operator's own files, the pod template
and the load plan come on top."""
_OMITTED: Final = "omittedBytes"
_LARGEST: Final = "largestField"
# Fields of a spec and bytes of their values that stay when the rest is omitted. The last good spec
# takes effect then, but with the current replicas, suspend, tuning and serviceAccountName.
_KEPT_FIELDS: Final = 64
_KEPT_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class SpecSize:
    """How large a spec is, and where."""

    total: int
    """Bytes of the spec as JSON."""
    largest: str
    """Path of its largest field, such as ``spec.postprocess.labels``."""


def json_size(value: Any) -> int:
    """Return the size of a value as JSON (bytes).

    Raises:
        RecursionError: the value is nested too deeply; check the depth first.
    """
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="surrogatepass"))


def excess_of(spec: Any) -> SpecSize | None:
    """Return the size of a spec above :data:`MAX_SPEC_BYTES`, also of one that was omitted.

    ``None`` for a spec within the limit.
    """
    fields = spec if isinstance(spec, Mapping) else {}
    if isinstance(size := fields.get(_OMITTED), int):
        return SpecSize(size, str(fields.get(_LARGEST)))
    total = json_size(spec)
    if total <= MAX_SPEC_BYTES:
        return None
    parts = {
        f"spec.{name}.{key}": json_size(value)
        for name, part in fields.items()
        if isinstance(part, Mapping)
        for key, value in part.items()
    }
    return SpecSize(total, max(parts, key=lambda name: parts[name], default="spec"))


def omit_large_spec(pipeline: dict[str, Any]) -> None:
    """Replace a spec above :data:`MAX_SPEC_BYTES` by its size and its small fields, in place.

    The list of managed fields, whose size follows from the spec, is removed as well. Annotations
    stay: the API server limits them to 256 KiB, and one of them pauses the pipeline.
    """
    spec = pipeline.get("spec")
    if (excess := excess_of(spec)) is None:
        return
    fields = list(spec.items())[:_KEPT_FIELDS] if isinstance(spec, dict) else []
    small = {key: value for key, value in fields if json_size({key: value}) <= _KEPT_BYTES}
    pipeline["spec"] = {**small, _OMITTED: excess.total, _LARGEST: excess.largest[:_KEPT_BYTES]}
    pipeline["metadata"].pop("managedFields", None)
