"""The library's client of Triton's gRPC service, with less memory per connection.

The generated stub creates a call for each of the service's 20 methods. That takes 23 KiB per
connection, of which the operator keeps one to each pod; a probe uses four of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2_grpc
from tritonclient.grpc.aio import InferenceServerClient

from triton_pipelines.triton.response_limits import CheckedChannel


class _MethodRecorder:
    """Stands for a channel; its calls are the arguments that create them."""

    def unary_unary(self, method: str, **options: Any) -> tuple[str, str, Mapping[str, Any]]:
        return "unary_unary", method, options

    def stream_stream(self, method: str, **options: Any) -> tuple[str, str, Mapping[str, Any]]:
        return "stream_stream", method, options


_METHODS: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = vars(
    service_pb2_grpc.GRPCInferenceServiceStub(_MethodRecorder())
)


class ServiceStub:
    """Triton's gRPC service. Creates each call when it is first used, and checks its responses."""

    def __init__(
        self, channel: grpc.aio.Channel, on_request: Callable[[int], None] | None = None
    ) -> None:
        self._channel = CheckedChannel(channel, on_request)

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(f"Triton's gRPC service has no method {name}")
        kind, method, options = _METHODS[name]
        call = getattr(self._channel, kind)(method, **options)
        setattr(self, name, call)
        return call


class ServiceClient(InferenceServerClient):  # type: ignore[misc]
    """The library's client with :class:`ServiceStub` instead of the generated stub."""

    def __init__(
        self, channel: grpc.aio.Channel, on_request: Callable[[int], None] | None = None
    ) -> None:
        """Create the client.

        Args:
            channel: The channel, which the client closes.
            on_request: If given, called with the size of each request in bytes before it is sent.
        """
        # Not its own initializer, which creates the generated stub.
        super(InferenceServerClient, self).__init__()
        self._channel = channel
        self._client_stub = ServiceStub(channel, on_request)
        self._verbose = False
