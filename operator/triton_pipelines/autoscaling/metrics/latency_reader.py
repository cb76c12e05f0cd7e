"""Read the latency of one model from Triton's summaries on a pod's own metrics page.

A summary covers one pod and its last minute. Summaries cannot be added up over pods, and
Prometheus' copy is older than the page. They are therefore read from the pods, even if Prometheus
provides the counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import aiohttp

from .metrics_client import TIMEOUT_SECONDS, MetricsClient
from .metrics_page import CHECK_PORT, MetricsPageError, check_format, samples_of, sane
from .samples import COUNTER_MAX

SUMMARY: Final = "nv_inference_request_summary_us"
QUANTILE: Final = 0.99
_COUNT: Final = f"{SUMMARY}_count"
_NAMES: Final = {written: name for name in (SUMMARY, _COUNT) for written in (name, f"{name} ")}


@dataclass(frozen=True, slots=True)
class ModelLatency:
    """Latency of one model in one pod."""

    p99: float | None
    """p99 over Triton's sliding window in milliseconds; ``None`` without requests in it."""
    requests: float
    """Requests since the server started."""


def latency_of(text: str, model: str) -> ModelLatency | None:
    """Return the latency of a model on a metrics page; ``None`` if the page has no p99 for it.

    Of several versions the worst is returned. Only the lines of the summary are parsed.

    Raises:
        MetricsPageError: The page is not in the text format, or a counter has an impossible value.
    """
    found: list[float] = []
    requests = 0.0
    for name, labels, value in samples_of(text, _NAMES):
        if labels.get("model") != model:
            continue
        if name == _COUNT:
            requests += sane(name, value)
        elif _quantile(labels) == QUANTILE:
            found.append(value / 1000)
    if not found:
        check_format(text)
        return None
    return ModelLatency(
        max((value for value in found if 0 <= value <= COUNTER_MAX), default=None), requests
    )


def _quantile(labels: Mapping[str, str]) -> float:
    try:
        return float(labels.get("quantile", "nan"))
    except ValueError as error:
        raise MetricsPageError(
            "the page is not in the Prometheus text format", "a quantile is not a number"
        ) from error


class LatencyReader:
    """Read the latency of models from pods; an async context manager."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = MetricsClient(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def read(self, address: str, model: str, namespace: str) -> ModelLatency | str:
        """Return the latency of a model in the pod at ``host:port``, or why it is unknown.

        The same cause gives the same text.
        """
        try:
            found = latency_of(await self._client.page(address, namespace), model)
        except (TimeoutError, aiohttp.ClientError):
            return (
                "the metrics pages of the pods cannot be read; check that the operator can "
                "reach port 8002 (NetworkPolicy, --allow-metrics)"
            )
        except MetricsPageError as error:
            return f"a metrics page cannot be used: {error.problem}; {CHECK_PORT}"
        if found is None:
            return (
                f"Triton reports no {SUMMARY} with quantile {QUANTILE} for model {model}; check"
                " spec.server.args"
            )
        return found
