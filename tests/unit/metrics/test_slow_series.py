"""Series of one tenant that make the queries of a Prometheus connection slow.

The Prometheus is simulated. A slow query takes all the time that the operator allows it, and the
clock moves on by that.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.messages import Messages
from tests.support.web import Request, Response
from tests.unit.metrics.test_collector import Stand, collector, failure, sample
from tests.unit.metrics.test_hostile_series import EVIL, NAMESPACES, TOO_MANY, expected, scrape
from triton_pipelines.autoscaling.metrics.collector import PipelineKey, PrometheusCollector
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.isolated_queries import SHARES
from triton_pipelines.autoscaling.metrics.queries import FIGURE
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure, PipelineSample
from triton_pipelines.autoscaling.metrics.slow_namespaces import KEPT_SECONDS, RETRY_SECONDS

TIMEOUT = 3.0
TIMED_OUT = Response(
    503, {}, b'{"status":"error","errorType":"timeout","error":"query timed out in evaluation"}'
)
OTHERS = frozenset((namespace, "p") for namespace in NAMESPACES) - {EVIL}
Found = dict[PipelineKey, PipelineSample | MetricsFailure]


def is_counters(query: str) -> bool:
    return query.startswith("{__name__")


def is_usage(query: str) -> bool:
    return "container_" in query or "DCGM" in query


def slow(stand: Stand, is_slow: Callable[[str], bool]) -> None:
    """Let queries take all the time that they are allowed."""

    def before(request: Request, query: str) -> Response | None:
        if not is_slow(query):
            return None
        (allowed,) = parse_qs(urlsplit(request.path).query)["timeout"]
        stand.now += float(allowed.removesuffix("ms")) / 1000
        return TIMED_OUT

    stand.before = before


async def collected(made: PrometheusCollector, stand: Stand) -> tuple[Found, list[str], float]:
    """Collect 2 s later; return what was found, the queries and how long the collection took."""
    stand.now = float(round(stand.now)) + 2.0
    scrape(stand, stand.now - 5.0, stand.now)
    begin, first = stand.now, len(stand.queries)
    found = await made.collect(expected())
    return found, stand.queries[first:], stand.now - begin


def sampled(found: Found) -> frozenset[PipelineKey]:
    return frozenset(key for key, one in found.items() if isinstance(one, PipelineSample))


async def isolated(made: PrometheusCollector, stand: Stand) -> Found:
    """Collect until all others are sampled; the number of collections is bounded."""
    for _ in range(len(NAMESPACES).bit_length()):
        found, _, seconds = await collected(made, stand)
        assert seconds <= TIMEOUT
    assert sampled(found) == OTHERS
    return found


async def test_a_namespace_with_slow_series_delays_others_for_a_few_collections(
    stand: Stand, url: str, messages: Messages
) -> None:
    slow(stand, lambda query: is_counters(query) and "evil" in query)
    async with collector(url, stand) as made:
        found = await isolated(made, stand)
        messages.check(failure(found[EVIL]).message)
        retries = 0
        end = stand.now + 2 * RETRY_SECONDS
        while stand.now < end:
            found, queries, seconds = await collected(made, stand)
            assert sampled(found) == OTHERS
            slow_queries = [one for one in queries if is_counters(one) and "evil" in one]
            if slow_queries:
                retries += 1
                assert slow_queries == [one for one in queries if is_counters(one)][-1:]
                assert seconds <= TIMEOUT
            else:
                assert seconds == 0.0
        assert 1 <= retries <= 2
        slow(stand, lambda query: False)
        while EVIL not in sampled(found):
            assert stand.now < end + 2 * RETRY_SECONDS
            found, _, _ = await collected(made, stand)


async def test_slow_series_of_usage_do_not_affect_the_usage_of_others(
    stand: Stand, url: str
) -> None:
    stand.figures = figures()
    slow(stand, lambda query: is_usage(query) and "evil" in query)
    async with collector(url, stand) as made:
        for _ in range(21):
            found, _, seconds = await collected(made, stand)
            assert sampled(found) == OTHERS | {EVIL}
            assert seconds <= TIMEOUT
    for key in OTHERS:
        (pod,) = sample(found[key]).pods.values()
        assert pod.usage is not None
        assert not sample(found[key]).notes
    (pod,) = sample(found[EVIL]).pods.values()
    assert pod.usage is None


async def test_rejected_queries_for_usage_do_not_affect_the_usage_of_others(
    stand: Stand, url: str, messages: Messages
) -> None:
    stand.figures = figures()
    stand.before = lambda request, query: TOO_MANY if is_usage(query) and "evil" in query else None
    async with collector(url, stand) as made:
        found, _, _ = await collected(made, stand)
    for key in OTHERS:
        (pod,) = sample(found[key]).pods.values()
        assert pod.usage is not None
        assert not sample(found[key]).notes
    (note,) = sample(found[EVIL]).notes
    messages.check(note)


def figures() -> list[dict[str, object]]:
    """CPU usage of every pod."""
    return [
        {
            "metric": {FIGURE: "cpu", "namespace": namespace, "pod": f"pod-{namespace}"},
            "value": [1, "1.5"],
        }
        for namespace in NAMESPACES
        if namespace != "evil"
    ]


async def test_a_server_that_is_slow_for_everybody_gets_no_more_load(
    stand: Stand, url: str, messages: Messages
) -> None:
    slow(stand, is_counters)
    async with collector(url, stand) as made:
        for _ in range(12):
            found, queries, seconds = await collected(made, stand)
            assert not sampled(found)
            assert seconds <= TIMEOUT, "queries are sent one at a time, within the same time"
            assert len([one for one in queries if is_counters(one)]) <= SHARES
        messages.check(failure(found[EVIL]).message)
        slow(stand, lambda query: False)
        found, _, _ = await collected(made, stand)
        assert sampled(found) == OTHERS | {EVIL}, "no namespace was blamed"
        _, queries, _ = await collected(made, stand)
        assert len([one for one in queries if is_counters(one)]) == 1


async def test_a_single_namespace_always_has_all_the_time(stand: Stand, url: str) -> None:
    slow(stand, is_counters)
    only = {EVIL: expected()[EVIL]}
    async with collector(url, stand) as made:
        for _ in range(3):
            stand.now += 2.0
            begin = stand.now
            failure((await made.collect(only))[EVIL])
            assert stand.now - begin == pytest.approx(TIMEOUT, abs=0.01)


async def test_a_namespace_that_is_slow_now_and_then_is_queried_apart(
    stand: Stand, url: str
) -> None:
    is_slow = True
    slow(stand, lambda query: is_slow and is_counters(query) and "evil" in query)
    async with collector(url, stand) as made:
        await isolated(made, stand)
        is_slow = False
        end = stand.now + KEPT_SECONDS
        while EVIL not in (found := sampled((await collected(made, stand))[0])):
            assert stand.now < end
        is_slow = True
        found = sampled((await collected(made, stand))[0])
        assert found == OTHERS, "it is slow again, and delays no other"
        is_slow = False
        stand.now = end + RETRY_SECONDS
        await collected(made, stand)
        _, queries, _ = await collected(made, stand)
        assert len([one for one in queries if is_counters(one)]) == 1, "it is trusted again"


async def test_several_slow_namespaces_share_the_time(stand: Stand, url: str) -> None:
    guilty = {"a", "b", "evil", "f", "g"}

    def is_slow(query: str) -> bool:
        found = re.search(r'namespace=~?"([^"]*)"', query)
        return is_counters(query) and found is not None and bool(guilty & set(found[1].split("|")))

    slow(stand, is_slow)
    async with collector(url, stand) as made:
        for _ in range(8):
            found, _, seconds = await collected(made, stand)
            assert seconds <= TIMEOUT
        assert sampled(found) == {("c", "p"), ("d", "p"), ("h", "p")}


async def test_a_response_that_does_not_come_in_time_counts_as_slow(stand: Stand, url: str) -> None:
    """In real time: the server holds its response back."""
    released = threading.Event()
    held = Response(200, {}, b'{"status": "success"}', hold=(5, released))
    stand.before = lambda request, query: held if is_counters(query) and "evil" in query else None
    scrape(stand, 995.0, 1000.0)
    connection = Connection.model_validate({"url": url, "timeoutSeconds": 1})
    async with PrometheusCollector(connection, clock=lambda: stand.now) as made:
        for _ in range(len(NAMESPACES).bit_length()):
            found = await made.collect(expected())
        released.set()
    assert sampled(found) == OTHERS
