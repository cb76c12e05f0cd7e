"""A served pipeline with tracing, and a real OpenTelemetry Collector that gets its spans."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.collector import Collector, Span, collecting
from tests.support.recorder import until
from tests.support.serving import SAMPLES, sample_sources, served

pytestmark = pytest.mark.integration
STEPS = ("model", "postprocess")
REQUESTS, SAMPLE_EVERY = 6, 2


def traced_sample(name: str, folder: Path, collector: Collector) -> Path:
    """The sample with tracing to the collector."""
    document = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    document["spec"]["observability"] = {
        "tracing": {"otlpEndpoint": collector.endpoint, "sampleEvery": SAMPLE_EVERY}
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def traces(spans: list[Span]) -> dict[str, dict[str, Span]]:
    """Trace id → span id → span."""
    found: dict[str, dict[str, Span]] = defaultdict(dict)
    for span in spans:
        found[span.body["traceId"]][span.body["spanId"]] = span
    return found


def is_whole(trace: dict[str, Span]) -> bool:
    """Whether Triton's root span and a span of each Python step have arrived."""
    names = {span.body["name"] for span in trace.values()}
    return {"InferRequest", *(f"{step} execute" for step in STEPS)} <= names


@pytest.mark.proves("spec.observability.tracing", "behaviour")
async def test_python_steps_are_children_of_tritons_spans(tmp_path: Path) -> None:
    async with collecting(tmp_path) as collector:
        file = traced_sample("sentiment", tmp_path, collector)
        with served(file, *sample_sources(), log=tmp_path / "serve.log") as running:
            for number in range(REQUESTS):
                body = {
                    "inputs": [
                        {
                            "name": "TEXT",
                            "shape": [1, 1],
                            "datatype": "BYTES",
                            "data": [f"{number}"],
                        }
                    ]
                }
                answer = await asyncio.to_thread(
                    httpx.post, f"{running.model_url}/infer", json=body
                )
                answer.raise_for_status()
            sampled = REQUESTS // SAMPLE_EVERY
            await until(
                lambda: sum(map(is_whole, traces(collector.spans()).values())) == sampled,
                f"{sampled} whole traces",
                30,
            )
        for trace in traces(collector.spans()).values():
            check_steps(trace)


def check_steps(trace: dict[str, Span]) -> None:
    """Each step has one span, inside that of the model which Triton reports for it."""
    for step in STEPS:
        (own,) = [span for span in trace.values() if span.body["name"] == f"{step} execute"]
        assert own.service == ("default", "sentiment")
        parent = trace[own.body["parentSpanId"]]
        assert parent.attributes["triton.model_name"] == step
        assert parent.service == own.service
        assert own.attributes["tritonpipe.requests"] == "1"
        assert int(own.body["startTimeUnixNano"]) <= int(own.body["endTimeUnixNano"])
        assert "code" not in own.body.get("status", {})
