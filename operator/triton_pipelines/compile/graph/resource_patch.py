"""Change a resource by a JSON merge patch, as the tuner and a measured padding mode do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline


@dataclass(frozen=True, slots=True, order=True)
class PaddingSetting:
    """A padding mode and its buckets."""

    mode: str = ""
    """A :class:`Padding`; empty: as the resource has it."""
    buckets: tuple[int, ...] = ()
    """The buckets of Bucketed, the longest row last."""

    def __str__(self) -> str:
        return f"{self.mode} {', '.join(map(str, self.buckets))}".strip()


def merge_patch(document: Any, patch: Any) -> Any:
    """Return a document with a merge patch (RFC 7396) applied; neither is modified."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def document_of(pipeline: InferencePipeline) -> dict[str, Any]:
    """Return the resource as its user wrote it."""
    document: dict[str, Any] = pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return document


def patch_pipeline(pipeline: InferencePipeline, patch: Mapping[str, Any]) -> InferencePipeline:
    """Return the resource with a patch applied.

    Raises:
        ValueError: The result is not a valid resource; the message says why.
    """
    parsed, findings = parse(merge_patch(document_of(pipeline), patch))
    if parsed is None or findings:
        raise ValueError("; ".join(str(finding) for finding in findings))
    return parsed


def padding_fields(pipeline: InferencePipeline, padded: PaddingSetting) -> dict[str, Any]:
    """Return a padding as fields of ``spec.tokenizer`` in a merge patch.

    Buckets that the resource has and the padding does not are removed.
    """
    written = pipeline.spec.tokenizer is not None and bool(pipeline.spec.tokenizer.buckets)
    buckets: dict[str, Any] = (
        {"buckets": list(padded.buckets)}
        if padded.buckets
        else {"buckets": None}
        if written
        else {}
    )
    return {"padding": padded.mode} | buckets
