"""Latency of one model as a pod tells it: Triton's summaries, read from the pod's own metrics page.

Summaries are of one pod and of its last minute; no server can add them up over pods, and what Prometheus has of them is older than the
page. So they are read from the pods, whoever else reads their counters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .metrics_client import TIMEOUT_SECONDS, MetricsClient
from .metrics_page import MetricsPageError

SUMMARY: Final = "nv_inference_request_summary_us"
QUANTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """p99 over Triton's sliding window in milliseconds (``None``: no request in it), and requests since the server's start."""

    p99: float | None
    requests: float


def latency_of(text: str, model: str) -> ModelLatency | None:
    """The latency of a model on a metrics page, over all its versions the worst; ``None`` where the page has no p99 of it.

    Raises:
        ExpositionError: not the text format.
    """
    found: list[float] = []
    requests = 0.0
    try:
        for family in text_string_to_metric_families(text):
            if family.name != SUMMARY:
                continue
            for sample in family.samples:
                if sample.labels.get("model") != model:
                    continue
                if sample.name == f"{SUMMARY}_count":
                    requests += sample.value
                elif (
                    sample.name == SUMMARY
                    and float(sample.labels.get("quantile", "nan")) == QUANTILE
                ):
                    found.append(sample.value / 1000)
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise MetricsPageError("is not Prometheus' text format", str(error)) from error
    if not found:
        return None
    return ModelLatency(
        max((value for value in found if math.isfinite(value)), default=None), requests
    )


class LatencyReader:
    """Reads pods; an async context manager."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = MetricsClient(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def read(self, address: str, model: str) -> ModelLatency | str:
        """Return the latency of a model in the pod at ``host:port``, or why it is unknown.

        The same cause gives the same text.
        """
        try:
            found = latency_of(await self._client.page(address), model)
        except (TimeoutError, httpx.HTTPError):
            return (
                "the metrics pages of the pods cannot be read; check that the operator may reach"
                " port 8002 (NetworkPolicy, --allow-metrics)"
            )
        except MetricsPageError as error:
            return f"a metrics page {error.problem}"
        if found is None:
            return (
                f"Triton reports no {SUMMARY} with quantile {QUANTILE} for model {model}; check"
                " spec.server.args"
            )
        return found
