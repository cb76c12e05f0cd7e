"""What a promise (spec.slo) makes a real Triton tell, and how it is read.

The p99 of the public model, of a page that the operator reads.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import pipelines
from tests.support.builders import built
from tests.support.operators import eventually
from tests.support.python_backend import texts
from tests.support.triton import triton_server
from triton_pipelines.autoscaling.metrics.latency_reader import LatencyReader, ModelLatency
from triton_pipelines.compile.graph.server_settings import feature_arguments
from triton_pipelines.triton.client import TritonClient

pytestmark = pytest.mark.integration
REQUESTS = 40


@pytest.mark.proves("spec.slo.p99Milliseconds", "behaviour")
async def test_the_p99_of_the_ensemble_is_told_with_a_promise_alone(tmp_path: Path) -> None:
    pipelines.write_pipeline(tmp_path, padding="Ragged", truncation="LongestFirst", count=1)
    for promise in ({"p99Milliseconds": 50}, {}):
        one = built(slo=promise)
        with triton_server(
            tmp_path, [pipelines.ENSEMBLE], extra_args=feature_arguments(one.pipeline, one.graph)
        ) as server:
            async with TritonClient(server.grpc_address) as client, LatencyReader() as reader:
                address = f"127.0.0.1:{server.metrics_port}"
                before = await reader.read(address, pipelines.ENSEMBLE, "n")
                seen = []
                for _ in range(REQUESTS):
                    begin = time.perf_counter()
                    await client.infer(pipelines.ENSEMBLE, {"TEXT": texts("a text")})
                    seen.append(1000 * (time.perf_counter() - begin))

                async def counted(reader: LatencyReader = reader, address: str = address) -> Any:
                    """Triton counts a request only after it has sent the response."""
                    found = await reader.read(address, pipelines.ENSEMBLE, "n")
                    is_complete = isinstance(found, str) or found.requests >= REQUESTS
                    return found if is_complete else None

                after = await eventually("all requests are counted", counted, 10)
                (statistics,) = await client.statistics(pipelines.ENSEMBLE)
        if not promise:
            assert isinstance(after, str)
            assert "reports no nv_inference_request_summary_us" in after
            continue
        assert before == ModelLatency(None, 0)
        assert isinstance(after, ModelLatency)
        assert after.requests == REQUESTS
        assert after.p99 is not None
        # By the clients' clock and by Triton's other figures: not above the slowest, and all but
        # two of the requests are not slower than it.
        total = statistics.inference_stats.success.ns / 1e6
        assert (total - 2 * max(seen)) / (REQUESTS - 2) <= after.p99 <= max(seen)
