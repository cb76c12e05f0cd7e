"""gRPC endpoints of simulated pods, each with its own address on loopback and Triton's port."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc

from tests.support.soak.pods import SERVICE, Addresses, Answers
from triton_pipelines.api.names import PORT_GRPC


@contextmanager
def serve_pods(healthy: int, hung: int) -> Iterator[tuple[list[str], list[str]]]:
    """Serve pods in a process of its own; return the addresses of healthy and of hung ones.

    A hung pod accepts connections and never answers.
    """
    # Other benchmarks on this machine use other blocks.
    block = random.randint(64, 250)
    free = Addresses(block)
    addresses = [free.next() for _ in range(healthy + hung)]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(theirs, addresses[:healthy], addresses[healthy:]), daemon=True
    )
    process.start()
    try:
        ours.recv()
        yield addresses[:healthy], addresses[healthy:]
    finally:
        process.terminate()
        process.join(10)


def _run(pipe: Connection, healthy: list[str], hung: list[str]) -> None:
    async def serve() -> None:
        servers = [(grpc.aio.server(), healthy, False), (grpc.aio.server(), hung, True)]
        for server, addresses, hangs in servers:
            server.add_generic_rpc_handlers((_Answers(hangs=hangs),))
            for address in addresses:
                server.add_insecure_port(f"{address}:{PORT_GRPC}")
            await server.start()
        pipe.send("ready")
        await asyncio.Event().wait()

    asyncio.run(serve())


class _Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the calls of a probe as a healthy Triton does, or never."""

    def __init__(self, *, hangs: bool) -> None:
        self._hangs = hangs
        self._answers = Answers()

    def service(self, details: Any) -> Any:
        method = details.method.removeprefix(SERVICE)

        async def once(request: bytes, context: Any) -> bytes:
            if self._hangs:
                await asyncio.Event().wait()
            return self._answers.to(method, request)

        return grpc.unary_unary_rpc_method_handler(once)
