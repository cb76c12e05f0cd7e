"""Ordinary clients; each client is one object with its own connections.

The kinds are gRPC, HTTP with a new connection per request, HTTP with kept connections, and gRPC
that distributes its requests over several addresses.

None of them tries a request again: a request that the server lost shows as an error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import tritonclient.grpc.aio
from grpc import ssl_channel_credentials
from tritonclient.utils import InferenceServerException

from e2e.suite.reach import Endpoint

SECONDS = 10.0
"""Deadline of a request."""
RESOLUTION_MILLISECONDS = 500
"""Shortest time between two resolutions of an endpoint's name."""

Answer = dict[str, np.ndarray[Any, Any]]
Ask = Callable[[str], Awaitable[Answer]]
"""Sends one text, gives the outputs by name, [1, ...] each. Raises `RequestError`."""
Client = Callable[[Endpoint, str], contextlib.AbstractAsyncContextManager[Ask]]

_TYPES = {"FP32": np.float32, "BYTES": np.object_}


class RequestError(Exception):
    """A request got no answer.

    The text is what the client saw, without the parts that differ from request to request.
    """


@contextlib.asynccontextmanager
async def grpc(endpoint: Endpoint, model: str) -> AsyncIterator[Ask]:
    """Send requests over one gRPC channel.

    The channel reconnects as gRPC does: when the server asks it to move, or when its connection
    breaks.
    """
    async with _grpc(endpoint, model) as ask:
        yield ask


@contextlib.asynccontextmanager
async def grpc_round_robin(endpoint: Endpoint, model: str) -> AsyncIterator[Ask]:
    """Send requests over one gRPC channel to all addresses of the endpoint in turn."""
    policy = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    options = (
        ("grpc.service_config", policy),
        ("grpc.dns_min_time_between_resolutions_ms", RESOLUTION_MILLISECONDS),
    )
    async with _grpc(endpoint, model, *options) as ask:
        yield ask


@contextlib.asynccontextmanager
async def _grpc(endpoint: Endpoint, model: str, *more: tuple[str, str | int]) -> AsyncIterator[Ask]:
    # Channels of one process normally share connections. These simulate clients in separate
    # processes.
    channel = [("grpc.use_local_subchannel_pool", 1), *more]
    credentials = None
    if endpoint.authorities:
        credentials = ssl_channel_credentials(endpoint.authorities)
        channel.append(("grpc.ssl_target_name_override", endpoint.server_name))
    client = tritonclient.grpc.aio.InferenceServerClient(
        endpoint.grpc, channel_args=channel, creds=credentials
    )

    async def ask(text: str) -> Answer:
        tensor = tritonclient.grpc.aio.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=np.object_))
        try:
            answer = await client.infer(model, [tensor], client_timeout=SECONDS)
        except InferenceServerException as error:
            raise RequestError(_plain(f"{error.status()}: {error.message()}", endpoint)) from error
        return {
            output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs
        }

    try:
        yield ask
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def http_new_connection(endpoint: Endpoint, model: str) -> AsyncIterator[Ask]:
    """Over HTTP, each request on a connection of its own, as `curl` does it."""
    async with _http(endpoint, model, aiohttp.TCPConnector(force_close=True)) as ask:
        yield ask


@contextlib.asynccontextmanager
async def http_keep_alive(endpoint: Endpoint, model: str) -> AsyncIterator[Ask]:
    """Over HTTP on one connection that is kept for as long as the server keeps it."""
    async with _http(endpoint, model, aiohttp.TCPConnector(limit=1, keepalive_timeout=600)) as ask:
        yield ask


CLIENTS: dict[str, Client] = {
    "grpc": grpc,
    "http-new-connection": http_new_connection,
    "http-keep-alive": http_keep_alive,
    "grpc-round-robin": grpc_round_robin,
}
ONE_ADDRESS = ("grpc", "http-new-connection", "http-keep-alive")
"""Kinds of clients for an endpoint of one address, such as a Service's."""


@contextlib.asynccontextmanager
async def _http(
    endpoint: Endpoint, model: str, connector: aiohttp.TCPConnector
) -> AsyncIterator[Ask]:
    url = f"{endpoint.http}/v2/models/{model}/infer"
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=SECONDS)
    ) as session:

        async def ask(text: str) -> Answer:
            body = {
                "inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]
            }
            try:
                async with session.post(url, json=body) as response:
                    if response.status != 200:
                        raise RequestError(
                            _plain(f"HTTP {response.status}: {await response.text()}", endpoint)
                        )
                    document = await response.json()
            except TimeoutError as error:
                raise RequestError(f"no answer within {SECONDS:.0f} s") from error
            except (aiohttp.ClientError, OSError) as error:
                cause = (
                    error.os_error
                    if isinstance(error, aiohttp.ClientOSError) and hasattr(error, "os_error")
                    else error
                )
                raise RequestError(
                    _plain(
                        f"{type(error).__name__}: {getattr(cause, 'strerror', None) or cause}",
                        endpoint,
                    )
                ) from error
            return {output["name"]: _array(output) for output in document["outputs"]}

        yield ask


def _array(output: dict[str, Any]) -> np.ndarray[Any, Any]:
    data = (
        [item.encode() for item in output["data"]]
        if output["datatype"] == "BYTES"
        else output["data"]
    )
    return np.array(data, dtype=_TYPES[output["datatype"]]).reshape(output["shape"])


def _plain(text: str, endpoint: Endpoint) -> str:
    """Return the text on one line without the Service's address.

    Equal failures then compare equal in every run.
    """
    host = endpoint.grpc.rpartition(":")[0]
    return " ".join(text.split()).replace(host, "SERVICE")[:200]
