"""Read the latency of one model from Triton's summaries on a pod's own metrics page.

A summary covers one pod and its last minute. Summaries cannot be added up over pods, and
Prometheus' copy is older than the page. They are therefore read from the pods, even if Prometheus
provides the counters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .metrics_client import TIMEOUT_SECONDS, MetricsClient
from .metrics_page import MetricsPageError

SUMMARY: Final = "nv_inference_request_summary_us"
QUANTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """Latency of one model in one pod."""

    p99: float | None
    """p99 over Triton's sliding window in milliseconds; ``None`` without requests in it."""
    requests: float
    """Requests since the server started."""


def latency_of(text: str, model: str) -> ModelLatency | None:
    """Return the latency of a model on a metrics page; ``None`` if the page has no p99 for it.

    Of several versions the worst is returned.

    Raises:
        MetricsPageError: The page is not in the text format.
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
    """Read the latency of models from pods; an async context manager."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = MetricsClient(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
