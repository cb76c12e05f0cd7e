"""What tuning is given and what it gives back: knobs, settings, the server to measure on, the load engine, the report. Pure.

Names: a *setting* is one choice of all :class:`Knobs`; a *point* is a setting measured (or predicted) at one request rate; the *wall*
is the SLO's p99 less the share of network and queues in front of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from triton_pipelines.api.v1alpha1 import InferencePipeline, TuningMode
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen.texts import Lengths

Array = np.ndarray[Any, Any]


class TuneError(Exception):
    """The measurement failed, by the server's doing; the message says what to do."""


class NotTunableError(TuneError):
    """The pipeline as it is written cannot be tuned; the message names the field and what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Knobs:
    """One setting. ``queue_delay``: microseconds; instances are those of one pod (``tokenizer_instances`` 0: no tokenizer); ``padding``:
    where it is another than the resource's own."""

    max_batch_size: int
    queue_delay: int = 0
    model_instances: int = 1
    tokenizer_instances: int = 0
    padding: PaddingSetting = PaddingSetting()  # noqa: RUF009  (frozen)

    def __str__(self) -> str:
        tokenizers = (
            f", {self.tokenizer_instances} tokenizer{'s' * (self.tokenizer_instances != 1)}"
            if self.tokenizer_instances
            else ""
        )
        models = f"{self.model_instances} model instance{'s' * (self.model_instances != 1)}"
        padding = f", padding {self.padding}" if self.padding.mode else ""
        return f"batch {self.max_batch_size}, delay {self.queue_delay / 1000:g} ms, {models}{tokenizers}{padding}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What to tune for.

    ``slo_ms``, ``budget_ms``: the promise and what is subtracted first (``None``: as ``spec.slo`` says). ``rate``: requests/s that the
    pipeline gets (``None``: as much as it carries). ``texts``: texts of the real traffic; ``lengths``: else made-up texts of these
    lengths (``None``: :class:`Lengths`' default). ``rows``: rows of a request. ``cores``: CPU cores that the pod may use. ``seconds``: of one measured point.
    """

    mode: TuningMode = TuningMode.QUICK
    slo_ms: float | None = None
    budget_ms: float | None = None
    rate: float | None = None
    texts: tuple[str, ...] = ()
    lengths: Lengths | None = None
    rows: int = 1
    cores: float = 2.0
    seconds: float | None = None
    seed: int = 0


def wall_of(pipeline: InferencePipeline, settings: Settings) -> tuple[float, float]:
    """The SLO and the wall, in seconds.

    Raises:
        NotTunableError: there is none.
    """
    slo = settings.slo_ms if settings.slo_ms is not None else pipeline.spec.slo.p99_milliseconds
    if slo is None:
        raise NotTunableError(
            "spec.slo.p99Milliseconds: is not set; tuning needs the latency to keep: write it, or give --slo"
        )
    budget = pipeline.spec.slo.latency_budget_milliseconds(slo, settings.budget_ms)
    if budget is None or budget <= 0:
        taken = slo - (budget or 0.0)
        raise NotTunableError(
            f"spec.slo.networkAndQueueBudgetMilliseconds: {taken:g} ms leave nothing of an SLO of {slo:g} ms for the pipeline; lower it, or raise the SLO"
        )
    return slo / 1e3, budget / 1e3


@dataclass(frozen=True, slots=True)
class TuneTarget:
    """A Triton that serves nobody else: ``tritonpipe serve``'s, or a canary pod outside the Service.

    ``address``: host:port of gRPC; ``control_key``: for loads, where these are restricted; ``rebuild``: the graph of a changed resource,
    with the options with which the server's own was made; ``url``: base of its HTTP API, over which load costs the client less ("": gRPC);
    ``own``: it was started for this run and ends with it.
    """

    address: str
    rebuild: Callable[[InferencePipeline], Graph] = field(repr=False)
    control_key: str | None = field(default=None, repr=False)
    url: str = ""
    own: bool = False


class Progress(Protocol):
    """Told of what goes on."""

    def __call__(self, done: float, text: str) -> None:
        """``done``: share of the whole run, 0 to 1; ``text``: what is done now."""


def silent(done: float, text: str) -> None:
    """A :class:`Progress` that tells nobody."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of load gave: latencies of answered requests (seconds, by the end of each), ``sent``, ``failed``, the ``seconds`` in which
    these were answered (few stragglers left out), and the requests/s that were ``offered`` in truth (0: not told): random arrivals of some seconds are never as many
    as asked for. ``late``: of the failed, those that waited too long under a load that the server did not keep up with, or were turned away by
    a full queue: no fault.
    ``ended``: seconds after which the load was ended, since the server was far behind (0: it was not). ``arrivals``: seconds at which requests
    were due, ascending, those of the warm-up among them (empty: not told)."""

    latencies: Array
    sent: int
    failed: int
    seconds: float
    first_error: str = ""
    offered: float = 0.0
    late: int = 0
    ended: float = 0.0
    arrivals: Array = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def faults(self) -> int:
        """Requests that failed for another reason than the load."""
        return self.failed - self.late

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return len(self.latencies) / self.seconds if self.seconds > 0 else 0.0

    @property
    def p99(self) -> float:
        """Seconds within which 99 of 100 requests were answered; infinity where more than one in a hundred failed."""
        if self.sent == 0 or self.failed > 0.01 * self.sent or len(self.latencies) == 0:
            return float("inf")
        return float(np.percentile(self.latencies, 99))

    @property
    def p50(self) -> float:
        """Half were answered within so many seconds."""
        return float(np.percentile(self.latencies, 50)) if len(self.latencies) else float("inf")


class Outcome(StrEnum):
    """What a point showed."""

    WITHIN = "WithinSLO"
    BREAKS = "BreaksSLO"
    PREDICTED = "Predicted"


@dataclass(frozen=True, slots=True)
class Point:
    """A setting at a rate. ``rate``: requests/s offered; ``carried``: answered per second (0: not measured); times in seconds."""

    name: str
    knobs: Knobs
    rate: float
    carried: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    predicted_p99: float = 0.0
    failed: int = 0
    outcome: Outcome = Outcome.PREDICTED

    @property
    def measured(self) -> bool:
        """Whether it was measured."""
        return self.outcome is not Outcome.PREDICTED


@dataclass(frozen=True, slots=True)
class StepProfile:
    """How long a step takes: ``fixed`` + ``per_row``·rows + ``per_token``·tokens (seconds), ``residual`` of that fit (share), and the table
    (rows of an execution, tokens of a row, seconds) that it was made from. ``fitted``: false where the table is used instead.
    ``busy``: share of time that the step's instances computed at the highest rate that was measured within the wall."""

    step: str
    fixed: float
    per_row: float
    per_token: float
    residual: float
    fitted: bool
    table: tuple[tuple[float, float, float], ...] = ()
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Throughput against latency of one setting: (requests/s, p99 in seconds), ascending."""

    name: str
    knobs: Knobs
    points: tuple[tuple[float, float], ...]
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What tuning found.

    ``wall``, ``slo``: seconds. ``current`` and ``recommended`` are equal where nothing is proven to be better; then ``patch`` is empty.
    ``gain``: share of requests/s gained. ``ends``: the latency-first and the throughput-first setting, predicted. ``bound``: what limits.
    ``ended``: why the run ended before its time ("": it did not). ``failed_requests``: those that failed for no reason of the run's own;
    ``late_requests``: those that waited too long in loads beyond what the server carries, which a run needs, and were given up, or turned away by a full queue.
    ``padding``: the cheapest padding by the model step's measured cost, and the figures of the others ("": that cannot be told).
    """

    pipeline: str
    mode: TuningMode
    slo: float
    wall: float
    workload: str
    current: Knobs
    recommended: Knobs
    points: tuple[Point, ...]
    ends: tuple[Point, ...]
    curves: tuple[Curve, ...]
    steps: tuple[StepProfile, ...]
    patch: Mapping[str, Any]
    gain: float
    message: str
    bound: str
    advice: str
    notes: tuple[str, ...] = ()
    failed_requests: int = 0
    late_requests: int = 0
    seconds: float = 0.0
    stand_ins: tuple[str, ...] = ()
    ended: str = ""
    padding: str = ""
