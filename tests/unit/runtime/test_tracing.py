"""Spans of a Python step, with a collector that records them."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.collector import Span, spans_of
from tests.support.web import LoopbackServer, Request, Response

NAME = "triton_pipelines.runtime.tracing"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = json.dumps({"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"})


class TracedRequest:
    """A request with a trace context, as Triton gives it."""

    def __init__(self, context: str | None) -> None:
        self._context = context

    def trace(self) -> TracedRequest:
        return self

    def get_context(self) -> str | None:
        return self._context


class Answer:
    """A response of a Python model."""

    def __init__(self, failed: bool) -> None:
        self._failed = failed

    def has_error(self) -> bool:
        return self._failed


class Step:
    """A step's own model: it answers with what the test gives it."""

    answer: Callable[[list[Any]], Any] = staticmethod(lambda requests: [Answer(False)])

    def execute(self, requests: list[Any]) -> Any:
        return type(self).answer(requests)


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The runtime file beside a step's ``model.py``."""
    step = types.ModuleType("model")
    step.TritonPythonModel = type("TritonPythonModel", (Step,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "model", step)
    sys.modules.pop(NAME, None)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


async def spans_after(
    tracing: types.ModuleType, answer: Callable[[list[Any]], Any], requests: list[Any]
) -> tuple[Any, list[Span]]:
    """The result of one call (or the error that it raised), and the spans sent until unloading."""
    tracing.Model.answer = staticmethod(answer)
    with LoopbackServer(lambda _: Response(200)) as collector:
        model = started(tracing, f"{collector.url}/v1/traces")
        try:
            result = model.execute(requests)
            if asyncio.iscoroutine(result):
                result = await result
        except ValueError as error:
            result = error
        model.finalize()
        return result, spans_of([request.body for request in collector.requests])


def started(tracing: types.ModuleType, endpoint: str) -> Any:
    """An initialized step that sends its spans to the endpoint."""
    parameters = {"endpoint": endpoint, "service": "sentiment", "namespace": "nlp"}
    config = {
        "parameters": {
            f"tritonpipe.trace_{key}": {"string_value": value} for key, value in parameters.items()
        }
    }
    model = tracing.TritonPythonModel()
    model.initialize(
        {
            "model_config": json.dumps(config),
            "model_name": "tokenizer",
            "model_version": "1",
            "model_instance_name": "tokenizer_0_1",
        }
    )
    return model


async def test_only_sampled_requests_of_a_call_have_a_span(tracing: types.ModuleType) -> None:
    answers = [Answer(False), Answer(False)]
    result, spans = await spans_after(
        tracing, lambda _: answers, [TracedRequest(None), TracedRequest(CONTEXT)]
    )
    assert result is answers
    (span,) = spans
    assert span.service == ("nlp", "sentiment")
    assert span.body["name"] == "tokenizer execute"
    assert (span.body["traceId"], span.body["parentSpanId"]) == (TRACE, PARENT)
    assert span.body["traceState"] == "vendor=1"
    assert span.attributes == {
        "triton.model_name": "tokenizer",
        "triton.model_version": "1",
        "tritonpipe.instance": "tokenizer_0_1",
        "tritonpipe.requests": "2",
    }
    assert span.body["status"] == {}


async def test_a_request_that_gets_an_error_has_a_span_with_an_error(
    tracing: types.ModuleType,
) -> None:
    requests = [TracedRequest(CONTEXT), TracedRequest(CONTEXT)]
    _, spans = await spans_after(tracing, lambda _: [Answer(True), Answer(False)], requests)
    assert [span.body["status"] for span in spans] == [{"code": 2}, {}]


async def test_an_exception_of_the_step_is_raised_and_marks_the_span(
    tracing: types.ModuleType,
) -> None:
    error = ValueError("no")

    def failing(_: list[Any]) -> Any:
        raise error

    result, (span,) = await spans_after(tracing, failing, [TracedRequest(CONTEXT)])
    assert result is error
    assert span.body["status"] == {"code": 2}


@pytest.mark.parametrize("failed", [False, True])
async def test_a_coroutine_is_awaited_within_the_span(
    tracing: types.ModuleType, failed: bool
) -> None:
    async def answer() -> list[Answer]:
        await asyncio.sleep(0)
        if failed:
            raise ValueError("no")
        return [Answer(False)]

    result, (span,) = await spans_after(tracing, lambda _: answer(), [TracedRequest(CONTEXT)])
    assert isinstance(result, ValueError) == failed
    assert span.body["status"] == ({"code": 2} if failed else {})


async def test_a_decoupled_step_has_a_span_too(tracing: types.ModuleType) -> None:
    result, spans = await spans_after(tracing, lambda _: None, [TracedRequest(CONTEXT)])
    assert result is None
    assert len(spans) == 1


@pytest.mark.parametrize("request_", [object(), TracedRequest('{"traceparent": "00"}')])
async def test_requests_without_a_usable_context_have_no_span(
    tracing: types.ModuleType, request_: Any
) -> None:
    """A request of an older Triton has no ``trace``."""
    _, spans = await spans_after(tracing, lambda _: [Answer(False)], [request_])
    assert spans == []


def test_a_collector_that_refuses_spans_is_reported_once_and_stops_nothing(
    tracing: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracing, "BATCH_SPANS", 1)
    codes = iter([503, 503, 200, 503])

    def answer(_: Request) -> Response:
        return Response(next(codes))

    with LoopbackServer(answer) as collector:
        model = started(tracing, f"{collector.url}/v1/traces")
        for _ in range(4):
            model.execute([TracedRequest(CONTEXT)])
        model.finalize()
        assert len(collector.requests) == 4
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert "cannot send spans to" in warnings[0]


async def test_a_full_queue_drops_spans(
    tracing: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "QUEUE_SPANS", 3)
    monkeypatch.setattr(tracing, "DELAY_S", 3600)
    _, spans = await spans_after(
        tracing, lambda _: [Answer(False)] * 5, [TracedRequest(CONTEXT) for _ in range(5)]
    )
    assert len(spans) == 3
