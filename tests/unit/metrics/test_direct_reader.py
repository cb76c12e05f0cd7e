"""Test reading metrics directly from pods, over real HTTP on loopback.

A fake server returns a page in Triton's format; the integration tests use Triton itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.flows import NOW, TOKENIZER, limits, rested
from tests.support.loopback import listening
from tests.support.messages import Messages
from tests.unit.metrics.test_metrics_page import PAGE
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.direct_reader import DirectReader
from triton_pipelines.autoscaling.metrics.metrics_client import PAGE_BYTES_MAX
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    Scrape,
)
from triton_pipelines.autoscaling.metrics.scrape_history import ScrapeHistories
from triton_pipelines.autoscaling.types import ScalingState, StepState

KEY = ("default", "sentiment")
MODELS = frozenset({"tokenizer", "model"})


@asynccontextmanager
async def pages(answer: bytes, *, hang: bool = False) -> AsyncIterator[str]:
    """A server that answers every connection with these bytes; yields its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if hang:
            await reader.read()
        writer.close()

    async with listening(serve) as address:
        yield address


def page(text: str, status: str = "200 OK") -> bytes:
    body = text.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


def expected(**pods: str) -> dict[tuple[str, str], ExpectedPods]:
    return {KEY: ExpectedPods("default", pods, MODELS, 60.0)}


async def test_each_look_adds_a_scrape_with_its_own_time() -> None:
    now = [100.0]
    async with pages(page(PAGE)) as address, DirectReader(clock=lambda: now[0]) as reader:
        await reader.collect(expected(a=address))
        now[0] = 102.0
        sample = (await reader.collect(expected(a=address)))[KEY]
    assert isinstance(sample, PipelineSample)
    assert [scrape.at for scrape in sample.pods["a"].scrapes] == [100.0, 102.0]
    assert sample.interval == 2.0
    assert sample.pods["a"].usage is not None
    assert sample.pods["a"].usage.gpu == 0.75


async def test_after_the_clock_was_set_back_scrapes_count_from_then_on() -> None:
    now = [NOW]
    async with pages(page(PAGE)) as address, DirectReader(clock=lambda: now[0]) as reader:
        await reader.collect(expected(a=address))
        for now[0] in (NOW - 3600, NOW - 3598):
            sample = (await reader.collect(expected(a=address)))[KEY]
    assert isinstance(sample, PipelineSample)
    assert [scrape.at for scrape in sample.pods["a"].scrapes] == [NOW - 3600, NOW - 3598]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (page("no", "503 Service Unavailable"), "503"),
        (page("{}"), "text format"),
        (page("x" * (PAGE_BYTES_MAX + 1)), "longer"),
        (page(PAGE)[:-200], "the response ended early"),
        (page(PAGE.replace('model="model"', 'model="other"')), "model"),
    ],
)
async def test_a_bad_pod_is_left_out_and_named_and_nothing_falls_for_it(
    answer: bytes, words: str, messages: Messages
) -> None:
    now = [NOW]
    async with (
        pages(page(PAGE)) as good,
        pages(answer) as bad,
        DirectReader(clock=lambda: now[0]) as reader,
    ):
        alone = (await reader.collect(expected(b=bad)))[KEY]
        for now[0] in (NOW + 60, NOW + 62, NOW + 64):
            said = (await reader.collect(expected(a=good, b=bad)))[KEY]
    assert isinstance(said, PipelineSample)
    assert set(said.pods) == {"a"}
    (note,) = said.notes
    assert words in note
    assert "pod b has" in note
    assert isinstance(alone, MetricsFailure)
    assert words in alone.message
    messages.check(alone.message)
    # Both pods are idle as far as is known: for long, neither has needed its eight instances.
    state = rested(
        ScalingState(steps={TOKENIZER: StepState(desired=8, service=0.01)}), 1, now=now[0]
    )
    reported = {TOKENIZER: {"a": 8, "b": 8}}
    both, one = (
        decide(limits(), state, said, reported, ready, now[0]) for ready in (["a", "b"], ["a"])
    )
    assert both.steps[0].count == 8
    assert not both.fresh
    assert "b" in both.message
    assert one.fresh


async def test_a_pod_at_no_address_at_all_is_left_out_like_any_other() -> None:
    async with pages(page(PAGE)) as good, DirectReader() as reader:
        said = (await reader.collect(expected(a=good, b="[::1")))[KEY]
    assert isinstance(said, PipelineSample)
    assert set(said.pods) == {"a"}
    (note,) = said.notes
    assert "pod b has no usable samples: InvalidUrl" in note


async def test_a_pod_whose_page_cannot_be_read_once_is_back_with_the_next_look() -> None:
    async with (
        pages(page(PAGE)) as good,
        pages(page("no", "503 Service Unavailable")) as bad,
        DirectReader() as reader,
    ):
        await reader.collect(expected(a=good, b=good))
        broken = (await reader.collect(expected(a=good, b=bad)))[KEY]
        corrected = (await reader.collect(expected(a=good, b=good)))[KEY]
    assert isinstance(broken, PipelineSample)
    assert isinstance(corrected, PipelineSample)
    assert (set(broken.pods), set(corrected.pods)) == ({"a"}, {"a", "b"})
    assert len(corrected.pods["b"].scrapes) == 2
    assert corrected.notes == ()


async def test_an_unreachable_pod_is_read_less_often_until_its_address_changes() -> None:
    now, asked = [NOW], 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    async with (
        listening(refuse) as address,
        pages(page(PAGE)) as good,
        DirectReader(clock=lambda: now[0]) as reader,
    ):
        for now[0] in range(int(NOW), int(NOW) + 40, 2):
            said = (await reader.collect(expected(a=address)))[KEY]
            assert isinstance(said, MetricsFailure)
        # The HTTP client repeats a request once if its connection breaks.
        assert asked == 2 * 5, "twice, and then every ten seconds"
        assert isinstance((await reader.collect(expected(a=good)))[KEY], PipelineSample)


async def test_a_page_that_drips_is_given_up_and_others_go_on() -> None:
    async with (
        pages(page(PAGE)[:-5], hang=True) as bad,
        pages(page(PAGE)) as good,
        DirectReader(timeout=0.15) as reader,
    ):
        wanted = {
            **expected(a=bad),
            ("default", "other"): ExpectedPods("default", {"b": good}, MODELS, 60.0),
        }
        said = await reader.collect(wanted)
    missing = said[KEY]
    assert isinstance(missing, MetricsFailure)
    assert missing.problem is MetricsProblem.MISSING
    assert isinstance(said["default", "other"], PipelineSample)


def test_what_is_older_than_the_window_is_forgotten_and_gone_pods_too() -> None:
    histories = ScrapeHistories()
    for second in range(0, 200, 5):
        assert histories.add(("n", "a"), Scrape(float(second), {}), 60.0)
    assert not histories.add(("n", "a"), Scrape(195.0, {}), 60.0)
    times = [scrape.at for scrape in histories.scrapes(("n", "a"))]
    assert times[-1] == 195.0
    assert 195.0 - 60.0 - 20.0 <= times[0] <= 195.0 - 60.0
    assert histories.interval([("n", "a")], 9.0) == 5.0
    histories.keep([("n", "b")])
    assert histories.scrapes(("n", "a")) == ()
    assert histories.interval([("n", "a")], 9.0) == 9.0
