"""Send gRPC requests that were encoded beforehand; responses are not parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import grpc

from triton_pipelines.tools.loadgen.load_spec import ClientTls, LoadGeneratorError
from triton_pipelines.tools.loadgen.request_failure import OnRequestEnd, error_response

INFER_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_CALLS_PER_CHANNEL: Final = 16
_MAX_CHANNELS: Final = 8
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    (
        "grpc.use_local_subchannel_pool",
        1,
    ),  # otherwise all channels to one address share a connection
)


def channel_arguments(tls: ClientTls | None) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the credentials of a channel (``None`` for plaintext) and its options."""
    if tls is None:
        return None, [*_OPTIONS]
    credentials = grpc.ssl_channel_credentials(tls.authorities, tls.key, tls.certificate)
    name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    return credentials, [*_OPTIONS, *name]


def open_channel(address: str, tls: ClientTls | None) -> Any:
    """Return a channel to ``host:port``; ``tls``: ``None`` for plaintext."""
    credentials, options = channel_arguments(tls)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


class GrpcTransport:
    """Channels to one server.

    There is a connection for every 16 requests in flight, as several clients would have.

    Args:
        address: ``host:port``.
        timeout_s: Deadline of a request, in seconds.
        headers: Metadata sent with each request.
        tls: How to connect with TLS; ``None`` for plaintext.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        headers: Mapping[str, str],
        tls: ClientTls | None = None,
    ) -> None:
        self._address, self._tls = address, tls
        self._timeout_s = timeout_s
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._channels: list[Any] = []
        self._calls: list[Any] = []
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, concurrency: int) -> None:
        """Open the channels.

        Raises:
            LoadError: the server cannot be reached.
        """
        for _ in range(max(1, min(_MAX_CHANNELS, -(-concurrency // _CALLS_PER_CHANNEL)))):
            channel = open_channel(self._address, self._tls)
            self._channels.append(channel)
            self._calls.append(channel.unary_unary(INFER_METHOD))  # bytes out, bytes in
        try:
            async with asyncio.timeout(self._timeout_s):
                for channel in self._channels:
                    await channel.channel_ready()
        except TimeoutError:
            await self.close()
            how = "" if self._tls is None else " with TLS and these certificates"
            raise LoadGeneratorError(
                f"cannot connect to {self._address} over gRPC{how} within "
                f"{self._timeout_s:g} s; check that the server is running"
            ) from None

    def send(self, payload: bytes, done: OnRequestEnd) -> None:
        """Send now."""
        self._next = (self._next + 1) % len(self._calls)
        task = asyncio.get_running_loop().create_task(
            self._call(self._calls[self._next], payload, done)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the requests in flight and close the channels."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def _call(self, call: Any, payload: bytes, done: OnRequestEnd) -> None:
        try:
            await call(payload, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            message = f"{error.code().name}: {' '.join((error.details() or '').split())[:200]}"
            is_timeout = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            done(error_response(message, is_timeout=is_timeout))
        else:
            done(None)
