"""Figures of scaled steps from the pods themselves, for a watch.

The status has figures too, but it is written at most once a minute.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kubernetes.aio.client import ApiClient

from triton_pipelines.api import names
from triton_pipelines.api.conditions import condition_of
from triton_pipelines.autoscaling.metrics.metrics_page import MetricsPageError, parse_metrics_page
from triton_pipelines.autoscaling.metrics.rates import ModelSeries, total
from triton_pipelines.autoscaling.metrics.samples import PodHistory
from triton_pipelines.autoscaling.metrics.scrape_history import ScrapeHistories
from triton_pipelines.cluster.client import Client, ClientOptions
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import PODS

from .output import escape_controls
from .port_forward import PortForwardError, read_page
from .scaling_view import scaled_steps, scaling_of

WINDOW_SECONDS: Final = 12.0
"""Rates are means over this time, as in the default fast window of scaling."""
PODS_MAX: Final = 64
"""Pods that are read; figures of more are those of the status."""
_AT_ONCE: Final = 8


@dataclass(slots=True)
class LiveFigures:
    """Reads the pods of a pipeline; an async context manager."""

    kubeconfig: str | None
    """``None``: the default file."""
    context: str | None
    """``None``: the current context."""
    clock: Callable[[], float] = time.time
    """Returns Unix seconds."""
    note: str = ""
    """Where the last figures came from, and why, for people."""
    _histories: ScrapeHistories = field(default_factory=ScrapeHistories)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _api: ApiClient | None = None
    _client: Client = field(init=False)

    async def __aenter__(self) -> Self:
        self._client = Client(
            lambda: load_configuration(self.kubeconfig, self.context),
            ClientOptions(attempts=1, timeout_seconds=5.0),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        if self._api is not None:
            await self._api.close()  # type: ignore[no-untyped-call]

    async def updated(self, pipeline: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the pipeline with figures of now in its status; unchanged if there are none."""
        steps = scaled_steps(pipeline)
        try:
            pods = await self._read_pods(pipeline["metadata"], steps) if steps else []
        except (ClusterError, PortForwardError, MetricsPageError) as error:
            reason = escape_controls(str(error))
            self.note = f"the pods cannot be read, so the values are from the status: {reason}"
            return pipeline
        figures = [
            found
            for step in steps
            if (found := step_figures(step, [series[step["modelName"]] for series in pods]))
        ]
        if not figures:
            self.note = "values are from the status until the pods have been read twice"
            return pipeline
        self.note = f"values are means over the last {WINDOW_SECONDS:.0f} s, read from the pods"
        at = dt.datetime.fromtimestamp(self.clock(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {**scaling_of(pipeline), "figures": figures, "figuresTime": at}
        return {**pipeline, "status": {**pipeline["status"], "scaling": state}}

    async def _read_pods(
        self, metadata: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, ModelSeries]]:
        """Return the samples of each ready pod by model."""
        namespace, selector = metadata["namespace"], names.selector(metadata["name"])
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        found = (await self._client.list(PODS, namespace, label_selector=labels)).items
        ready = [pod["metadata"]["name"] for pod in found if _is_ready(pod)]
        if not 0 < len(ready) <= PODS_MAX:
            raise PortForwardError(
                f"{len(ready)} pods are ready, but only 1 to {PODS_MAX} pods can be read"
            )
        self._histories.keep((namespace, pod) for pod in ready)
        models = {step["modelName"] for step in steps}
        if self._api is None:
            self._api = ApiClient(await load_configuration(self.kubeconfig, self.context))
        api = self._api
        await asyncio.gather(*(self._read_pod(api, (namespace, pod), models) for pod in ready))
        return [
            {model: ModelSeries(PodHistory(scrapes), model) for model in models}
            for pod in ready
            if (scrapes := self._histories.scrapes((namespace, pod)))
        ]

    async def _read_pod(self, api: ApiClient, pod: tuple[str, str], models: set[str]) -> None:
        async with self._slots:
            try:
                text = await read_page(api, *pod, names.PORT_METRICS, "/metrics")
                scrape, _ = parse_metrics_page(text, self.clock(), models)
            except (PortForwardError, MetricsPageError) as error:
                raise PortForwardError(f"{pod[1]}: {error}") from error
        self._histories.add(pod, scrape, WINDOW_SECONDS)


def step_figures(step: Mapping[str, Any], pods: Sequence[ModelSeries]) -> dict[str, Any] | None:
    """Return a step's figures, as the status has them; ``None`` before the second sample.

    The wait is that of the worst pod: queued requests divided by completions (Little's law).

    Args:
        step: the step in the status.
        pods: samples of its model, one series for each pod.
    """
    parts = [series.rates(WINDOW_SECONDS) for series in pods]
    rates = total(parts)
    if rates is None:
        return None
    waits = [
        (series.mean_pending(WINDOW_SECONDS) or 0.0) / part.throughput
        for series, part in zip(pods, parts, strict=True)
        if part is not None and part.throughput > 0
    ]
    instances = max(1, int(step.get("instances") or 1)) * len(pods)
    return {
        "step": step["name"],
        "requestsPerSecond": round(rates.arrivals),
        "busyPercent": round(100 * rates.busy / instances),
        "waitMilliseconds": round(1000 * max(waits, default=0.0)),
    }


def _is_ready(pod: Mapping[str, Any]) -> bool:
    is_ready = condition_of(pod.get("status"), "Ready").get("status") == "True"
    return is_ready and "deletionTimestamp" not in pod["metadata"]
