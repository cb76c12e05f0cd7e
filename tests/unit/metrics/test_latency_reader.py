"""Test reading p99 from a pod's metrics page.

The page is from Triton (24.10, --metrics-config summary_latencies=true), cut to one family.
"""

from __future__ import annotations

import pytest

from tests.unit.metrics.test_direct_reader import page, pages
from triton_pipelines.autoscaling.metrics.latency_reader import (
    LatencyReader,
    ModelLatency,
    latency_of,
)
from triton_pipelines.autoscaling.metrics.metrics_page import MetricsPageError

PAGE = """\
# HELP nv_inference_request_summary_us Summary of inference request duration in microseconds \
(includes cached requests)
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="model",version="1"} 40
nv_inference_request_summary_us_sum{model="model",version="1"} 58200
nv_inference_request_summary_us{model="model",version="1",quantile="0.5"} 900
nv_inference_request_summary_us{model="model",version="1",quantile="0.99"} 1011
nv_inference_request_summary_us_count{model="idle",version="1"} 7
nv_inference_request_summary_us_sum{model="idle",version="1"} 0
nv_inference_request_summary_us{model="idle",version="1",quantile="0.5"} Nan
nv_inference_request_summary_us{model="idle",version="1",quantile="0.99"} Nan
nv_inference_request_summary_us_count{model="both",version="1"} 5
nv_inference_request_summary_us{model="both",version="1",quantile="0.99"} Nan
nv_inference_request_summary_us_count{model="both",version="2"} 6
nv_inference_request_summary_us{model="both",version="2",quantile="0.99"} 2928
nv_inference_request_summary_us_count{model="median",version="1"} 40
nv_inference_request_summary_us{model="median",version="1",quantile="0.5"} 900
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="model",version="1"} 40
"""


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("model", ModelLatency(1.011, 40)),
        ("idle", ModelLatency(None, 7)),
        ("both", ModelLatency(2.928, 11)),
        ("median", None),
        ("other", None),
    ],
)
def test_p99_in_milliseconds(model: str, found: ModelLatency | None) -> None:
    assert latency_of(PAGE, model) == found


def test_what_is_no_page() -> None:
    with pytest.raises(MetricsPageError, match="text format"):
        latency_of('nv_inference_request_summary_us{model="x', "x")


async def test_a_pod_is_read() -> None:
    async with pages(page(PAGE)) as address, LatencyReader() as reader:
        assert await reader.read(address, "model", "n") == ModelLatency(1.011, 40)
        missing = await reader.read(address, "other", "n")
        assert missing == (
            "Triton reports no nv_inference_request_summary_us with quantile 0.99 for model "
            "other; check spec.server.args"
        )


@pytest.mark.parametrize("answer", [page("", "404 Not Found"), b"nonsense\r\n\r\n"])
async def test_a_pod_that_cannot_be_read(answer: bytes) -> None:
    async with pages(answer) as address, LatencyReader() as reader:
        assert "cannot be read" in str(await reader.read(address, "model", "n"))


async def test_a_pod_that_does_not_answer_is_given_up() -> None:
    async with (
        pages(b"HTTP/1.1 200 OK\r\n\r\n", hang=True) as address,
        LatencyReader(timeout=0.1) as reader,
    ):
        assert "cannot be read" in str(await reader.read(address, "model", "n"))
