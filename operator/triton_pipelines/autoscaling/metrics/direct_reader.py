"""Read the metrics pages of pods directly, for use without Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import aiohttp

from triton_pipelines.pod_calls import PendingCalls

from .metrics_client import TIMEOUT_SECONDS, MetricsClient
from .metrics_page import MetricsPageError, parse_metrics_page
from .sample_quality import no_series, of_pods
from .samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodHistory,
    PodUsage,
)
from .scrape_history import PodKey, ScrapeHistories

SOURCE: Final = "the pods themselves"
# Read interval in seconds: as often as Triton polls its GPUs, and cheap (a page is about 10 KB).
INTERVAL_SECONDS: Final = 2.0
_CHECK_NETWORK: Final = (
    "check that the operator can reach port 8002 (NetworkPolicy, --allow-metrics)"
)
# After this many failures in a row, a pod is read only every UNREAD_SECONDS. A failed attempt costs
# as much as a page (measured: with 200 unreachable pods, the attempts took a quarter of a core).
MISSES_ALLOWED: Final = 2
UNREAD_SECONDS: Final = 10.0
# How long (seconds) pages are waited for. Those that take longer are used once they are read: one
# slow pod must not delay the scaling of all pipelines.
PATIENCE_SECONDS: Final = 1.0
_ERROR_CHARACTERS_MAX: Final = 300
_UNREAD: Final = f"no complete response yet; {_CHECK_NETWORK}"


@dataclass(frozen=True, slots=True)
class _Missed:
    """A pod that could not be read."""

    address: str
    """The address that was tried."""
    count: int
    """Failed attempts in a row."""
    at: float
    """Time of the last attempt, Unix seconds."""
    why: str
    """Why the last attempt failed."""


class DirectReader:
    """Read the metrics pages of pods; an async context manager. ``clock`` returns Unix seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.time, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self._clock = clock
        self._client = MetricsClient(timeout)
        self._histories = ScrapeHistories()
        self._missed: dict[PodKey, _Missed] = {}
        self._reads = PendingCalls[PodKey, str](PATIENCE_SECONDS)
        self._problems: dict[PodKey, str] = {}
        """Why the last attempt to read a pod failed; empty if it did not."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reads.cancel()
        await self._client.close()

    def permits(self, namespace: str) -> bool:
        """Return True: pods of every namespace are read directly."""
        return True

    async def collect(
        self, expected: Mapping[tuple[str, str], ExpectedPods]
    ) -> dict[tuple[str, str], PipelineSample | MetricsFailure]:
        """Read every pod of every pipeline (by namespace and name) once, concurrently.

        A pod whose page takes long has the result of the last attempt.
        """
        self._histories.keep((one.namespace, pod) for one in expected.values() for pod in one.pods)
        calls = {
            (one.namespace, pod): partial(
                self._read_unless_failing, (one.namespace, pod), address, one
            )
            for one in expected.values()
            for pod, address in one.pods.items()
        }
        self._missed = {pod: missed for pod, missed in self._missed.items() if pod in calls}
        # An error of one pod, such as an invalid address, must not affect the others.
        results = await self._reads.results(calls)
        known = {pod: self._problems.get(pod, _UNREAD) for pod in calls}
        self._problems = known | {pod: _words(result) for pod, result in results.items()}
        problems = {pod: why for pod, why in self._problems.items() if why}
        return {key: self._assess(one, problems) for key, one in expected.items()}

    async def _read_unless_failing(self, pod: PodKey, address: str, one: ExpectedPods) -> str:
        """Read a pod's page, unless it has failed recently; return why it is unread, or ""."""
        missed = self._missed.get(pod)
        if missed is not None and missed.address != address:
            missed = None
        if (
            missed is not None
            and missed.count >= MISSES_ALLOWED
            and 0 <= self._clock() - missed.at < UNREAD_SECONDS
        ):
            return missed.why
        why = await self._read(pod, address, one)
        if why:
            self._missed[pod] = _Missed(
                address, missed.count + 1 if missed is not None else 1, self._clock(), why
            )
        else:
            self._missed.pop(pod, None)
        return why

    async def _read(self, pod: PodKey, address: str, one: ExpectedPods) -> str:
        try:
            text = await self._client.page(address, one.namespace)
            at = self._clock()
            scrape, gpu = parse_metrics_page(text, at, one.models)
        except TimeoutError:
            return f"no complete response in time; {_CHECK_NETWORK}"
        except aiohttp.ClientResponseError as error:
            return (
                f"the metrics page returned HTTP {error.status}; check that the server is healthy"
            )
        except aiohttp.ClientPayloadError:
            return "the response ended early; check whether the server was restarted"
        except aiohttp.ClientError as error:
            return f"{_words(error)}; {_CHECK_NETWORK}"
        except MetricsPageError as error:
            return str(error)
        known = self._histories.scrapes(pod)
        if known and known[-1].at > at:
            # The clock was set back. Without this, no scrape would count as newer until it caught
            # up.
            self._histories.forget(pod)
        self._histories.add(pod, scrape, one.slow)
        self._histories.use(pod, PodUsage(at=at, gpu=gpu))
        return ""

    def _assess(
        self, one: ExpectedPods, problems: Mapping[PodKey, str]
    ) -> PipelineSample | MetricsFailure:
        """Return a sample of the pods whose page was just read and has every model, or a failure.

        A note names the other pods. Scaling lowers no count on the evidence of only some pods.
        """
        pods: dict[str, PodHistory] = {}
        bad: dict[str, tuple[MetricsProblem, str]] = {}
        for pod in one.pods:
            key = (one.namespace, pod)
            scrapes = self._histories.scrapes(key)
            if why := problems.get(key):
                bad[pod] = (MetricsProblem.MISSING, why)
            elif absent := sorted(one.models - set(scrapes[-1].models if scrapes else ())):
                bad[pod] = (
                    MetricsProblem.PARTIAL,
                    no_series(absent),
                )
            else:
                pods[pod] = PodHistory(scrapes, self._histories.usage(key))
        note = ""
        if bad:
            pod, (_, why) = min(bad.items())
            note = f"{of_pods(pod, len(bad), len(one.pods))} no usable samples: {why}"
        if not pods:
            problems_seen = {problem for problem, _ in bad.values()} or {MetricsProblem.MISSING}
            return MetricsFailure(
                problems_seen.pop() if len(problems_seen) == 1 else MetricsProblem.PARTIAL,
                note or "no pod is ready, so there is nothing to measure",
                SOURCE,
            )
        keys = [(one.namespace, pod) for pod in pods]
        return PipelineSample(
            pods,
            self._histories.interval(keys, INTERVAL_SECONDS),
            SOURCE,
            (note,) if note else (),
        )


def _words(error: str | BaseException) -> str:
    """Return why a pod is unread. Errors of the HTTP client contain what the pod sent."""
    if isinstance(error, str):
        return error
    detail = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{detail}"[:_ERROR_CHARACTERS_MAX]
