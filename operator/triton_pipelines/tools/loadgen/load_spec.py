"""Describe a load: the target, the requests, their rate and duration."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

Array = np.ndarray[Any, Any]

WINDOWS = 3
"""Windows that must agree for a measurement to be stable; the measured time is divided into as
many.
"""

# How the messages of requests begin that were too late, not wrong.
GIVEN_UP: Final = "given up"
NOT_SENT: Final = "not sent"
NO_ANSWER: Final = "no answer within"
NO_CONNECTION: Final = "no free connection within"


class LoadGeneratorError(Exception):
    """The load cannot be put on: a wrong specification, or a server that cannot be asked.

    Says what is wrong.
    """


class InferenceProtocol(enum.StrEnum):
    """How requests are sent: HTTP with binary tensors (KServe v2), or gRPC."""

    HTTP = "http"
    GRPC = "grpc"


class Arrivals(enum.StrEnum):
    """When requests of an open loop are due: like independent users, or at equal intervals."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True)
class LoadTarget:
    """A model and the requests to send to it, one after the other and again from the first.

    Attributes:
        url: ``http://host:port`` or ``https://…`` (a path before ``/v2`` is kept); for gRPC
            ``host:port``.
        model: its name.
        requests: arrays by input name, one mapping for each request; rows first where the model
            batches. Texts are object arrays of bytes.
        protocol: how they are sent.
        rows: rows in each request (1 where the model does not batch); None: the length of each
            request's longest first axis.
        outputs: the outputs asked for; none: all of them.
        headers: further headers (HTTP) or metadata (gRPC); never logged.
        path, bodies: instead of ``requests``, what is posted to a server that is no Triton (HTTP
            alone).
    """

    url: str
    model: str
    requests: Sequence[Mapping[str, Array]] = field(repr=False)
    protocol: InferenceProtocol = InferenceProtocol.HTTP
    rows: int | None = None
    outputs: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: str = ""
    bodies: Sequence[bytes] = field(default=(), repr=False)

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
            raise LoadGeneratorError(f"{self.url}: is not a server address; write http://HOST:PORT")

    def rows_of(self, number: int) -> int:
        """Rows of one of the requests."""
        if self.rows is not None or self.bodies:
            return self.rows or 1
        return max(
            (len(array) for array in self.requests[number].values() if array.ndim), default=1
        )


@dataclass(frozen=True)
class LoadSpec:
    """One load; exactly one of ``concurrency``, ``rate`` and ``schedule`` is given.

    Attributes:
        concurrency: closed loop: so many requests are always under way, each followed by the next
            when it is answered.
        rate: open loop: requests/s, sent when they are due, however late the answers are. Latency
            counts from when a request was due.
        arrivals: of an open loop with a rate.
        schedule: open loop by a trace: seconds since the begin at which requests are due,
            ascending; lasts ``warmup_s + duration_s`` like others.
        duration_s: seconds measured.
        warmup_s: seconds of the same load before, not counted.
        extend: while the last three windows (each a third of ``duration_s``) do not agree, go on
            for up to so many windows more; what counts are the last three.
        timeout_s: seconds after which a request is given up and its connection closed.
        seed: of the arrivals: the same seed, the same times.
        connections: most connections of an open loop over HTTP (a connection carries one request at
            a time).
        pending: most requests of an open loop waiting or under way; beyond it a request fails
            unsent.
        behind_s: seconds: an open loop on a server that is so far behind (as many requests wait as
            were due in so long) ends at once: it is overloaded, and more of the same load shows
            only how latency grows; so does one with ``pending`` requests. What is not answered in
            three times as long from then on is given up.
        statistics: read Triton's statistics at the bounds of the windows.
    """

    concurrency: int = 0
    rate: float = 0.0
    arrivals: Arrivals = Arrivals.POISSON
    schedule: Sequence[float] = field(default=(), repr=False)
    duration_s: float = 10.0
    warmup_s: float = 1.0
    extend: int = 0
    timeout_s: float = 30.0
    seed: int = 0
    connections: int = 512
    pending: int = 20_000
    behind_s: float = math.inf
    statistics: bool = True

    def __post_init__(self) -> None:
        if (
            sum((self.concurrency > 0, self.rate > 0, len(self.schedule) > 0)) != 1
            or self.concurrency < 0
            or self.rate < 0
        ):
            raise LoadGeneratorError(
                "exactly one of concurrency, rate and schedule must be given, and greater than 0"
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
        """Whether requests leave when they are due, answered or not."""
        return self.concurrency == 0

    @property
    def window_s(self) -> float:
        """Seconds of one window."""
        return self.duration_s / WINDOWS

    @property
    def name(self) -> str:
        """For people and as a key: ``concurrency 8``, ``200/s poisson``, ``a schedule``."""
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
