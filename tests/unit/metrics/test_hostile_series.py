"""Series that one tenant's pods put into Prometheus, next to the pods of other tenants.

A tenant chooses names, labels, times, values and kinds of its pods' metrics, and how many there
are. The Prometheus is simulated.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.messages import Messages
from tests.support.web import Request, Response
from tests.unit.metrics.answers import series
from tests.unit.metrics.test_collector import Stand, collector, failure, reply, sample
from triton_pipelines.autoscaling.metrics.collector import GAP_SECONDS_MIN
from triton_pipelines.autoscaling.metrics.isolated_queries import REJECTED_SECONDS
from triton_pipelines.autoscaling.metrics.prometheus_client import ANSWER_BYTES_MAX
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods

MODELS = frozenset({"model"})
NAMESPACES = ("a", "b", "c", "d", "evil", "f", "g", "h")
EVIL = ("evil", "p")
TOO_LARGE = Response(200, {}, b"#" * (ANSWER_BYTES_MAX + 1))
TOO_MANY = Response(
    422,
    {},
    b'{"status":"error","errorType":"execution","error":"query processing would load too many '
    b'samples into memory"}',
)


def expected() -> dict[tuple[str, str], ExpectedPods]:
    return {
        (namespace, "p"): ExpectedPods(namespace, {f"pod-{namespace}": ""}, MODELS, 60.0)
        for namespace in NAMESPACES
    }


def scrape(stand: Stand, *times: float) -> None:
    """Every pod is scraped at these times."""
    stand.series = [
        item
        for namespace in NAMESPACES
        for item in series(
            f"pod-{namespace}", "model", {at: at for at in times}, namespace=namespace
        )
    ]


def counter_queries(stand: Stand) -> list[str]:
    return [query for query in stand.queries if query.startswith("{__name__")]


@pytest.mark.parametrize("answer", [TOO_LARGE, TOO_MANY], ids=["too large", "too many samples"])
async def test_series_of_one_namespace_do_not_keep_others_from_being_scaled(
    stand: Stand, url: str, messages: Messages, answer: Response
) -> None:
    def before(request: Request, query: str) -> Response | None:
        return answer if query.startswith("{__name__") and "evil" in query else None

    stand.before = before
    scrape(stand, 990.0, 995.0, 1000.0)
    async with collector(url, stand) as made:
        found = await made.collect(expected())
        asked = len(counter_queries(stand))
        messages.check(failure(found.pop(EVIL)).message)
        for one in found.values():
            sample(one)
        stand.now += 5.0
        scrape(stand, 1000.0, 1005.0)
        later = await made.collect(expected())
        failure(later.pop(EVIL))
        for one in later.values():
            assert next(iter(sample(one).pods.values())).scrapes[-1].at == 1005.0
        (short,) = counter_queries(stand)[asked:]
        assert "evil" not in short, "the namespace at fault is not queried for a while"
        assert re.findall(r"\[(\d+)ms\]", short) == ["7500"], "others need no earlier samples"
        stand.now += REJECTED_SECONDS
        stand.before = lambda request, query: None
        scrape(stand, stand.now - 5.0, stand.now)
        sample((await made.collect(expected()))[EVIL])


async def test_no_samples_of_a_namespace_are_lost_while_its_queries_are_rejected(
    stand: Stand, url: str
) -> None:
    scrape(stand, 990.0, 995.0, 1000.0)
    async with collector(url, stand) as made:
        sample((await made.collect(expected()))[EVIL])
        stand.before = lambda request, query: TOO_MANY if "evil" in query else None
        for stand.now in range(1005, 1030, 5):
            failure((await made.collect(expected()))[EVIL])
        stand.before = lambda request, query: None
        stand.now = 1005.0 + REJECTED_SECONDS
        times = [990.0 + 5.0 * number for number in range(10)]
        scrape(stand, *times)
        found = sample((await made.collect(expected()))[EVIL])
    assert [one.at for one in found.pods["pod-evil"].scrapes] == times


async def test_a_fault_of_the_server_is_not_blamed_on_its_namespaces(
    stand: Stand, url: str
) -> None:
    scrape(stand, 995.0, 1000.0)
    stand.before = lambda request, query: TOO_MANY if query.startswith("{__name__") else None
    async with collector(url, stand) as made:
        for one in (await made.collect(expected())).values():
            failure(one)
        stand.before = lambda request, query: None
        for one in (await made.collect(expected())).values():
            sample(one)


async def test_a_native_histogram_is_the_problem_of_its_own_pod(stand: Stand, url: str) -> None:
    """It has the name and the labels of a counter of Triton, and no plain values."""
    scrape(stand, 995.0, 1000.0)
    histogram = {"count": "1", "sum": "1", "buckets": [[0, "0.1", "1", "1"]]}

    def before(request: Request, query: str) -> Response | None:
        if not query.startswith("{__name__"):
            return None
        result: list[dict[str, Any]] = []
        for item in stand.series:
            if item["metric"]["namespace"] == "evil":
                result.append({"metric": item["metric"], "histograms": [[1000.0, histogram]]})
            else:
                result.append(item)
        return reply("matrix", result)

    stand.before = before
    async with collector(url, stand) as made:
        found = await made.collect(expected())
    failure(found.pop(EVIL))
    for one in found.values():
        sample(one)


async def test_a_pod_that_writes_times_on_its_page_takes_little_memory(
    stand: Stand, url: str
) -> None:
    """Prometheus stores every sample of a page that has a time of its own."""
    scrape(stand, 990.0, 1000.0)
    often = {990.0 + number / 1000: float(number) for number in range(10_001)}
    others = [item for item in stand.series if item["metric"]["namespace"] != "evil"]
    stand.series = [*others, *series("pod-evil", "model", often, namespace="evil")]
    async with collector(url, stand) as made:
        found = await made.collect(expected())
    scrapes = sample(found[EVIL]).pods["pod-evil"].scrapes
    assert 2 < len(scrapes) <= 10.0 / GAP_SECONDS_MIN + 1
    for one in found.values():
        sample(one)
