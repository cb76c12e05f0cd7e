"""State of what the status reports: the status shortens lists and has messages for people only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode

from .policy_state import PolicyState


@dataclass(frozen=True, slots=True)
class WarningsState(PolicyState):
    """Warnings that hold until what they are about is observed again."""

    mismatches: Sequence[str] = ()
    """How outputs differ from their declaration (:mod:`~.output_mismatch`)."""
    loader_revision: str = ""
    """The revision that the findings of the loader are about."""
    loader: Sequence[Finding] = ()
    """Findings of the loader."""
    unknown_latency: str = ""
    """Why the p99 of the pods is unknown."""
    monitoring: Sequence[Finding] = ()
    """Findings on PodMonitor and PrometheusRule."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document, without entries that cannot be read."""
        if not isinstance(document, Mapping):
            return cls()
        texts = {
            key: value
            for key in ("loader_revision", "unknown_latency")
            if isinstance(value := document.get(key), str)
        }
        return cls(
            mismatches=_texts(document.get("mismatches")),
            loader=_findings(document.get("loader"), FindingCode.LOADER_WARNING),
            monitoring=_findings(document.get("monitoring"), FindingCode.MONITORING_NOT_APPLIED),
            **texts,
        )

    def to_document(self) -> dict[str, Any]:
        """Return the fields that are not empty."""
        document = super(WarningsState, self).to_document()
        for key in {"loader", "monitoring"} & document.keys():
            document[key] = [{"path": one.path, "message": one.message} for one in document[key]]
        return document


@dataclass(frozen=True, slots=True)
class ScalingReportState(PolicyState):
    """What the status reports about scaling, in a form that can be compared."""

    metrics_source: str = ""
    """Where metrics are read from; empty if unknown, or while they are not usable."""
    limited: Sequence[str] = ()
    """What the limitations of scaling are about: steps, pods, cpu."""
    topics: Sequence[str] = ()
    """What its messages are about, apart from verdicts and figures."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document, without entries that cannot be read."""
        if not isinstance(document, Mapping):
            return cls()
        source = document.get("metrics_source")
        return cls(
            source if isinstance(source, str) else "",
            _texts(document.get("limited")),
            _texts(document.get("topics")),
        )


def _texts(items: Any) -> tuple[str, ...]:
    return tuple(item for item in _items(items) if isinstance(item, str))


def _findings(items: Any, code: FindingCode) -> tuple[Finding, ...]:
    """Rebuild stored warnings, which all have the same code."""
    return tuple(
        Finding(item["path"], item["message"], Severity.WARNING, code=code)
        for item in _items(items)
        if isinstance(item, Mapping)
        and isinstance(item.get("path"), str)
        and isinstance(item.get("message"), str)
    )


def _items(items: Any) -> list[Any]:
    return items if isinstance(items, list) else []
