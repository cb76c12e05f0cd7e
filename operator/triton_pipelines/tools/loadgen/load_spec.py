"""Describe a load: the target, the requests, their rate and duration."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

Array = np.ndarray[Any, Any]

WINDOWS = 3
"""Windows into which the measured time is divided; they must agree for it to count as stable."""


class LoadGeneratorError(Exception):
    """A load cannot be run: its specification is wrong, or the server cannot be reached."""


class InferenceProtocol(enum.StrEnum):
    """How requests are sent: HTTP with binary tensors (KServe v2), or gRPC."""

    HTTP = "http"
    GRPC = "grpc"


class Arrivals(enum.StrEnum):
    """When requests of an open loop are due: like independent users, or at equal intervals."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True)
class ClientTls:
    """How a gRPC client verifies the server, and identifies itself."""

    authorities: bytes | None = None
    """Trusted certificate authorities, PEM; ``None``: those that gRPC comes with."""
    certificate: bytes | None = None
    """Certificate of the client, PEM; ``None`` without mutual TLS."""
    key: bytes | None = field(default=None, repr=False)
    """Its private key, PEM."""
    server_name: str = ""
    """Host name in the server's certificate, if it is not that of the address."""


@dataclass(frozen=True)
class LoadTarget:
    """A model and the requests to send to it, in turn and starting over after the last one."""

    url: str
    """``http://host:port`` or ``https://…`` (a path before ``/v2`` is kept); gRPC: ``host:port``.
    """
    model: str
    """Name of the model."""
    requests: Sequence[Mapping[str, Array]] = field(repr=False)
    """Arrays by input name, one mapping for each request.

    Rows come first if the model batches. Texts are object arrays of bytes.
    """
    protocol: InferenceProtocol = InferenceProtocol.HTTP
    """How the requests are sent."""
    rows: int | None = None
    """Rows in each request (1 if the model does not batch).

    ``None``: the length of each request's longest first axis.
    """
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers (HTTP) or metadata (gRPC); never logged."""
    path: str = ""
    """Path to post ``bodies`` to."""
    tls: ClientTls | None = None
    """TLS for gRPC; ``None``: plaintext."""
    bodies: Sequence[bytes] = field(default=(), repr=False)
    """Bodies to post instead of ``requests``, to a server other than Triton (HTTP only)."""

    def __post_init__(self) -> None:
        if not self.requests and not self.bodies:
            raise LoadGeneratorError("there are no requests to send")
        if self.bodies and (
            self.requests
            or self.protocol is not InferenceProtocol.HTTP
            or not self.path.startswith("/")
        ):
            raise LoadGeneratorError(
                "bodies cannot be combined with requests; they need protocol HTTP and a path"
                " starting with /"
            )
        if self.protocol is InferenceProtocol.HTTP and (
            urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname
        ):
            raise LoadGeneratorError(f"{self.url!r} is not a server address; use http://HOST:PORT")

    def rows_of(self, number: int) -> int:
        """Return the number of rows of one of the requests."""
        if self.rows is not None or self.bodies:
            return self.rows or 1
        return max(
            (len(array) for array in self.requests[number].values() if array.ndim), default=1
        )


@dataclass(frozen=True)
class LoadSpec:
    """One load; exactly one of ``concurrency``, ``rate`` and ``schedule`` is given."""

    concurrency: int = 0
    """Closed loop: number of requests that are always in flight.

    Each is followed by the next one when it is answered.
    """
    rate: float = 0.0
    """Open loop: requests/s, sent when they are due, however late the answers are.

    Latency counts from when a request was due.
    """
    arrivals: Arrivals = Arrivals.POISSON
    """Arrivals of an open loop with a rate."""
    schedule: Sequence[float] = field(default=(), repr=False)
    """Open loop by a trace: seconds since the begin at which requests are due, ascending.

    The load lasts ``warmup_s + duration_s`` like any other.
    """
    duration_s: float = 10.0
    """Seconds of the measured time."""
    warmup_s: float = 1.0
    """Seconds of the same load before the measured time, which do not count."""
    extend: int = 0
    """Maximum number of further windows if the last three do not agree.

    Each window is a third of ``duration_s``; only the last three count.
    """
    timeout_s: float = 30.0
    """Seconds after which a request is given up and its connection closed."""
    seed: int = 0
    """Seed of the arrivals: the same seed gives the same times."""
    connections: int = 512
    """Maximum connections of an open loop over HTTP; each carries one request at a time."""
    pending: int = 20_000
    """Maximum requests of an open loop that wait or are in flight; others fail without being sent.
    """
    behind_s: float = math.inf
    """Open loop: seconds that the server may be behind before the load ends.

    A server is that far behind if as many requests wait as were due in that time. It is overloaded,
    and more of the same load would only show how latency grows. A load with ``pending`` requests
    ends as well. Requests that are not answered in three times as long from then on are given up.
    """
    statistics: bool = True
    """Whether to read Triton's statistics at the bounds of the windows."""

    def __post_init__(self) -> None:
        if (
            sum((self.concurrency > 0, self.rate > 0, len(self.schedule) > 0)) != 1
            or self.concurrency < 0
            or self.rate < 0
        ):
            raise LoadGeneratorError(
                "exactly one of concurrency, rate and schedule must be set, and it must be "
                "greater than 0"
            )
        for name, least in (
            ("duration_s", 0.0),
            ("timeout_s", 0.0),
            ("connections", 0),
            ("pending", 0),
        ):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) <= least:
                raise LoadGeneratorError(
                    f"{name} is {getattr(self, name)}; it must be greater than 0"
                )
        if not self.behind_s > 0:
            raise LoadGeneratorError(f"behind_s is {self.behind_s}; it must be greater than 0")
        for name in ("warmup_s", "extend"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise LoadGeneratorError(
                    f"{name} is {getattr(self, name)}; it must not be less than 0"
                )

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent when they are due, regardless of the answers."""
        return self.concurrency == 0

    @property
    def window_s(self) -> float:
        """Seconds of one window."""
        return self.duration_s / WINDOWS

    @property
    def name(self) -> str:
        """Name for output and as a key: ``concurrency 8``, ``200/s poisson``, ``a schedule``."""
        if self.concurrency:
            return f"concurrency {self.concurrency}"
        return f"{self.rate:g}/s {self.arrivals}" if self.rate else "a schedule"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load."""

    elapsed_s: float
    """Seconds since its begin."""
    total_s: float
    """Seconds to its end, as known now."""
    answered: int
    """Requests answered so far."""
    failed: int
    """Requests failed so far."""


OnProgress = Callable[[LoadProgress], None]
