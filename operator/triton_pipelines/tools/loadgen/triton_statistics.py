"""Where the time goes: Triton's statistics of each model, between two samples.

Pure except for :class:`StatisticsReader`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc
import httpx
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_pipelines.tools.loadgen.grpc_client import open_channel
from triton_pipelines.tools.loadgen.http_client import trusted_authorities
from triton_pipelines.tools.loadgen.load_spec import (
    InferenceProtocol,
    LoadGeneratorError,
    LoadTarget,
)

StatisticsSample = Mapping[str, "ModelStatisticsCounters"]
"""Counters by model at one time."""

_DURATIONS: Final = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
_PARTS: Final = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class ModelStatisticsCounters:
    """A model's counters since it was loaded, over all its versions."""

    rows: int = 0
    """Inferences (rows), without those answered from the cache."""
    executions: int = 0
    """Runs of the model, each over a batch."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Requests by duration: ``success``, ``fail``, ``queue``, ``compute_input``, …"""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by duration, as in ``counts``."""
    batches: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Rows of an execution → executions, and their total seconds (input, compute and output)."""


@dataclass(frozen=True)
class StepStatistics:
    """What one model (a step, or the ensemble itself) did between two samples.

    Times are means in seconds per request, except where noted. Each request is charged the compute
    time of its whole batch.
    """

    model: str
    """Name of the model."""
    requests: int
    """Answered requests."""
    failures: int
    """Failed requests."""
    rows: int
    """Computed rows."""
    executions: int
    """Runs of the model."""
    queue_s: float
    """Wait for an instance, and for the batch to fill."""
    input_s: float
    """Time to gather the batch."""
    infer_s: float
    """Time to compute the batch."""
    output_s: float
    """Time to distribute the answers."""
    rows_per_execution: float
    """Mean batch size in rows."""
    execution_s: float
    """Seconds of one execution (input, compute, output)."""
    busy: float
    """Mean number of busy instances: seconds of executions per second between the samples.

    Divided by the instance count, this is the utilization.
    """
    batches: Mapping[int, int]
    """Rows of an execution → executions."""
    batch_seconds: Mapping[int, float] = field(default_factory=dict)
    """Rows of an execution → mean seconds of an execution (input, compute, output)."""


def parse_statistics(models: Sequence[Mapping[str, Any]]) -> dict[str, ModelStatisticsCounters]:
    """Return the counters by model from the ``model_stats`` of Triton's statistics (JSON)."""
    result: dict[str, ModelStatisticsCounters] = {}
    for item in models:
        durations = item.get("inference_stats") or {}
        counts = {name: int((durations.get(name) or {}).get("count", 0)) for name in _DURATIONS}
        seconds = {name: int((durations.get(name) or {}).get("ns", 0)) / 1e9 for name in _DURATIONS}
        batches = {
            int(batch["batch_size"]): (
                int((batch.get("compute_infer") or {}).get("count", 0)),
                sum(int((batch.get(part) or {}).get("ns", 0)) for part in _PARTS) / 1e9,
            )
            for batch in item.get("batch_stats") or ()
        }
        one = ModelStatisticsCounters(
            int(item.get("inference_count", 0)),
            int(item.get("execution_count", 0)),
            counts,
            seconds,
            batches,
        )
        name = str(item["name"])
        result[name] = _add(result[name], one) if name in result else one
    return result


def step_statistics(
    before: StatisticsSample, after: StatisticsSample, elapsed_s: float
) -> dict[str, StepStatistics]:
    """Return what each model did between two samples.

    If the counters of a model went back, it was reloaded: it counts from its load.

    Args:
        before: The first sample, of :func:`parse_statistics`.
        after: The second sample.
        elapsed_s: Seconds between them.
    """
    return {
        name: _statistics_between(
            name, _subtract(before.get(name, ModelStatisticsCounters()), now), elapsed_s
        )
        for name, now in after.items()
    }


class StatisticsReader:
    """Reads a server's statistics during a load.

    Its connection is kept, and responses are parsed when the load is over.

    Args:
        target: The target of the load.
        timeout_s: Timeout of one sample.
    """

    def __init__(self, target: LoadTarget, timeout_s: float) -> None:
        self._target, self._timeout_s = target, timeout_s
        self._stack = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        target = self._target
        if target.protocol is InferenceProtocol.GRPC:
            self._channel = open_channel(target.url, target.tls)
        else:
            # Reading the CA certificates takes longer than many requests, and without TLS they are
            # not needed. The trusted authorities are those of the load itself.
            verify = trusted_authorities() if target.url.startswith("https") else False
            client = httpx.Client(
                verify=verify,
                timeout=self._timeout_s,
                trust_env=False,
                headers=dict(target.headers),
            )
            self._client = self._stack.enter_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stack.close()
        if self._target.protocol is InferenceProtocol.GRPC:
            await self._channel.close()

    async def sample(self) -> Callable[[], list[Any]]:
        """Read the counters; the result is a function that parses and returns them.

        Raises:
            LoadGeneratorError: The server does not return them.
        """
        target = self._target
        if target.protocol is InferenceProtocol.GRPC:
            call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelStatistics
            metadata = tuple((name.lower(), value) for name, value in target.headers.items())
            try:
                message = await call(
                    service_pb2.ModelStatisticsRequest(), timeout=self._timeout_s, metadata=metadata
                )
            except grpc.aio.AioRpcError as error:
                raise LoadGeneratorError(
                    f"cannot read the statistics of {target.url}: {error.code().name} "
                    f"{error.details()}"
                ) from None
            return lambda: list(
                MessageToDict(message, preserving_proto_field_name=True).get("model_stats", [])
            )
        url = f"{target.url.rstrip('/')}/v2/models/stats"
        try:
            # In a thread, so that the event loop continues to send.
            answer = (await asyncio.to_thread(self._client.get, url)).raise_for_status()
        except httpx.HTTPError as error:
            raise LoadGeneratorError(f"cannot read the statistics of {url}: {error}") from error

        def models() -> list[Any]:
            try:
                return list(answer.json()["model_stats"])
            except (ValueError, KeyError, TypeError) as error:
                raise LoadGeneratorError(
                    f"no model statistics in the response of {url}: {error!r}"
                ) from error

        return models


def _statistics_between(
    model: str, delta: ModelStatisticsCounters, elapsed_s: float
) -> StepStatistics:
    requests = delta.counts.get("success", 0)

    def mean(name: str) -> float:
        return delta.seconds.get(name, 0.0) / requests if requests else 0.0

    batched = sum(count for count, _ in delta.batches.values())
    computing = sum(seconds for _, seconds in delta.batches.values())
    return StepStatistics(
        model=model,
        requests=requests,
        failures=delta.counts.get("fail", 0),
        rows=delta.rows,
        executions=delta.executions,
        queue_s=mean("queue"),
        input_s=mean("compute_input"),
        infer_s=mean("compute_infer"),
        output_s=mean("compute_output"),
        rows_per_execution=delta.rows / delta.executions if delta.executions else 0.0,
        execution_s=computing / batched if batched else 0.0,
        busy=computing / elapsed_s if elapsed_s > 0 else 0.0,
        batches={rows: count for rows, (count, _) in sorted(delta.batches.items()) if count},
        batch_seconds={
            rows: seconds / count
            for rows, (count, seconds) in sorted(delta.batches.items())
            if count
        },
    )


def _add(one: ModelStatisticsCounters, other: ModelStatisticsCounters) -> ModelStatisticsCounters:
    return _combine(one, other, 1)


def _subtract(
    before: ModelStatisticsCounters, now: ModelStatisticsCounters
) -> ModelStatisticsCounters:
    return _combine(
        now,
        ModelStatisticsCounters()
        if now.executions < before.executions or now.rows < before.rows
        else before,
        -1,
    )


def _combine(
    one: ModelStatisticsCounters, other: ModelStatisticsCounters, sign: int
) -> ModelStatisticsCounters:
    sizes = one.batches.keys() | other.batches.keys()
    none = (0, 0.0)
    return ModelStatisticsCounters(
        rows=one.rows + sign * other.rows,
        executions=one.executions + sign * other.executions,
        counts={
            name: one.counts.get(name, 0) + sign * other.counts.get(name, 0) for name in _DURATIONS
        },
        seconds={
            name: one.seconds.get(name, 0.0) + sign * other.seconds.get(name, 0.0)
            for name in _DURATIONS
        },
        batches={
            size: (
                one.batches.get(size, none)[0] + sign * other.batches.get(size, none)[0],
                one.batches.get(size, none)[1] + sign * other.batches.get(size, none)[1],
            )
            for size in sizes
        },
    )
