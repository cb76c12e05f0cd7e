"""Put one load on one model and record every request.

The engine uses one event loop, callbacks instead of tasks, requests that were encoded beforehand,
and responses that are not parsed. It needs little CPU per request (each summary reports how much),
so the server is measured and not the generator. Latency in an open loop counts from when a request
was due: a server that stalls is charged for every request that should have been sent meanwhile (no
coordinated omission).
"""

from __future__ import annotations

import asyncio

from triton_pipelines.tools.loadgen.event_loop import precise_event_loop
from triton_pipelines.tools.loadgen.grpc_client import GrpcTransport
from triton_pipelines.tools.loadgen.http_client import HttpTransport
from triton_pipelines.tools.loadgen.load_run import LoadRun
from triton_pipelines.tools.loadgen.load_spec import (
    InferenceProtocol,
    LoadSpec,
    LoadTarget,
    OnProgress,
)
from triton_pipelines.tools.loadgen.payloads import encode_requests
from triton_pipelines.tools.loadgen.summary import LoadResult
from triton_pipelines.tools.loadgen.triton_statistics import (
    StatisticsReader,
)

_FIRST_CONNECTIONS = 8
STATISTICS_SECONDS = 5.0
"""Timeout of one sample of the statistics.

It is unknown which time the statistics of a slower response describe.
"""


def run_blocking(
    target: LoadTarget, spec: LoadSpec, progress: OnProgress | None = None
) -> LoadResult:
    """Run :func:`run_load` in its own event loop, which keeps time to about 0.1 ms.

    asyncio's own loop wakes up to 1 ms late.
    """
    with asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(run_load(target, spec, progress))


async def run_load(
    target: LoadTarget, spec: LoadSpec, progress: OnProgress | None = None
) -> LoadResult:
    """Put a load on a model: warm-up, measured time, then a wait for the requests in flight.

    Args:
        target: The model and its requests.
        spec: The load.
        progress: Called a few times per second; must return quickly.

    Returns:
        Every request with its times. Failed requests are included and raise nothing.

    Raises:
        LoadGeneratorError: The server cannot be reached, the requests cannot be encoded, or there
            are more than :data:`.load_run.MAX_REQUESTS`.
        asyncio.CancelledError: The load was cancelled. Connections are closed and the requests in
            flight are dropped.
    """
    requests = encode_requests(target)
    rows = [target.rows_of(number) for number in range(len(requests))]
    transport: HttpTransport | GrpcTransport
    if target.protocol is InferenceProtocol.HTTP:
        transport = HttpTransport(target.url, spec.concurrency or spec.connections, spec.timeout_s)
    else:
        transport = GrpcTransport(target.url, spec.timeout_s, target.headers, target.tls)
    await transport.start(
        spec.concurrency
        or _FIRST_CONNECTIONS * (1 if target.protocol is InferenceProtocol.HTTP else 16)
    )
    try:
        async with StatisticsReader(target, min(spec.timeout_s, STATISTICS_SECONDS)) as reader:
            return await LoadRun(
                spec, requests, rows, transport.send, reader if spec.statistics else None, progress
            ).run()
    finally:
        await transport.close()
