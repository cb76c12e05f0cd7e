"""The inputs of a tuning run: its options, its server, its progress callback. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.tools.loadgen import TextLengths

from .errors import NotTunableError


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """What to tune for and how much to measure."""

    mode: TuningMode = TuningMode.QUICK
    """Quick or thorough."""
    slo_ms: float | None = None
    """p99 SLO in milliseconds; ``None``: ``spec.slo.p99Milliseconds``."""
    rate: float | None = None
    """Requests/s that the pipeline receives; ``None``: as many as it can serve."""
    texts: tuple[str, ...] = ()
    """Texts of the real traffic."""
    lengths: TextLengths | None = None
    """Lengths of generated texts if there are no ``texts``; ``None``: the default distribution."""
    rows: int = 1
    """Rows of a request."""
    cores: float = 2.0
    """CPU cores that the pod may use."""
    seconds: float | None = None
    """Length of a measured point; ``None``: the default of the mode."""


def slo_and_latency_budget(
    pipeline: InferencePipeline, options: TuningOptions
) -> tuple[float, float]:
    """Return the p99 SLO and the latency budget (SLO minus network and queue), in seconds.

    Raises:
        NotTunableError: There is no SLO, or nothing of it is left.
    """
    declared = pipeline.spec.slo
    slo = options.slo_ms if options.slo_ms is not None else declared.p99_milliseconds
    if slo is None:
        raise NotTunableError(
            "spec.slo.p99Milliseconds: tuning requires a latency target; set this field, or "
            "use --slo"
        )
    network_and_queue = declared.network_and_queue_budget_milliseconds
    budget = slo - network_and_queue
    if budget <= 0:
        raise NotTunableError(
            f"spec.slo.networkAndQueueBudgetMilliseconds: {network_and_queue:g} ms leaves "
            f"no latency budget within the SLO of {slo:g} ms; lower the budget, or raise the SLO"
        )
    return slo / 1e3, budget / 1e3


@dataclass(frozen=True, slots=True)
class TuningTarget:
    """A Triton without other clients: `tritonpipe serve`, or a pod outside the Service."""

    address: str
    """host:port of its gRPC API."""
    rebuild: Callable[[InferencePipeline], Graph] = field(repr=False)
    """Compile a changed resource with the options with which the server's own graph was compiled.
    """
    control_key: str | None = field(default=None, repr=False)
    """Key of the model control API, if it is restricted."""
    url: str = ""
    """Base of its HTTP API, which costs the load generator less CPU; empty: use gRPC."""
    own: bool = False
    """Whether it was started for this run and ends with it."""


class ProgressCallback(Protocol):
    """Called with the progress of a run."""

    def __call__(self, done: float, text: str) -> None:
        """Report progress.

        Args:
            done: Share of the whole run, 0 to 1.
            text: The current activity.
        """


def silent(done: float, text: str) -> None:
    """Ignore progress."""
