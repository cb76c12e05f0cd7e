"""Check responses from pods before they are decoded.

A pod controls the content of its responses, and two bytes of a response can become an object of a
hundred. So the size of a response does not bound the memory that it takes once it is decoded. Here
everything but the data of tensors is limited to :data:`DESCRIPTION_BYTES_MAX`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

DESCRIPTION_BYTES_MAX: Final = 512 * 1024
"""Largest config, index or statistics, and what an inference response has besides tensor data."""
FIELDS_MAX: Final = 10_000
"""Maximum number of fields of a response with tensors: more than any model has outputs."""
_LENGTH_DELIMITED: Final = 2
_FIXED_SIZES: Final[Mapping[int, int]] = {1: 8, 5: 4}
# Method → path of field numbers to the bytes of tensors (``raw_output_contents``), which are
# decoded without copies of their elements.
_TENSOR_FIELDS: Final[Mapping[str, tuple[int, ...]]] = {
    "ModelInfer": (6,),
    "ModelStreamInfer": (2, 6),
}


class UndecodedResponse:
    """Stands for a response that was not decoded. An exception would only be logged by gRPC."""

    # Attributes that the client library reads from responses itself.
    ready = live = False

    def __init__(self, reason: str) -> None:
        self.reason = reason


TOO_LARGE: Final = UndecodedResponse(
    f"the response has more than {DESCRIPTION_BYTES_MAX // 1024} KiB in addition to the tensor data"
)
UNREADABLE: Final = UndecodedResponse("the response is not a message of Triton's protocol")


class CheckedChannel:
    """A gRPC channel whose responses are checked before they are decoded."""

    def __init__(self, channel: Any, on_request: Callable[[int], None] | None) -> None:
        """Create the channel.

        Args:
            channel: The gRPC channel.
            on_request: If given, called with the size of each request in bytes before it is sent.
        """
        self._channel, self._on_request = channel, on_request

    def unary_unary(self, method: str, **options: Any) -> Any:
        """Return a call with one request and one response."""
        return self._channel.unary_unary(method, **self._checked(method, **options))

    def stream_stream(self, method: str, **options: Any) -> Any:
        """Return a call with streams in both directions."""
        return self._channel.stream_stream(method, **self._checked(method, **options))

    def _checked(
        self,
        method: str,
        *,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **options: Any,
    ) -> dict[str, Any]:
        on_request = self._on_request

        def encode(request: Any) -> bytes:
            data = request_serializer(request)
            if on_request is not None:
                on_request(len(data))
            return data

        return {
            **options,
            "request_serializer": request_serializer if on_request is None else encode,
            "response_deserializer": checked(method, response_deserializer),
        }


@dataclass(slots=True)
class ResponseShare:
    """What a client may receive, and has received."""

    bytes_max: int
    """Size limit of a response in bytes."""
    received: int = 0
    """Bytes that the client has received."""


@dataclass(slots=True)
class ResponseBudget:
    """Limits the memory and CPU time of concurrent clients, without making any client wait."""

    large: int
    """Number of further clients that may accept a large response."""
    large_bytes: int
    """Size limit of a large response in bytes."""
    small_bytes: int
    """Size limit for all other clients in bytes."""
    bytes_per_second: float
    """How fast each of the large responses may arrive, on average."""
    clock: Callable[[], float] = time.monotonic
    """Returns the current time in seconds."""
    _free_at: list[float] = field(default_factory=list)
    """When further clients may accept a large response again."""

    @contextmanager
    def share(self) -> Iterator[ResponseShare]:
        """Return what a client may receive while the context lasts.

        The client sets :attr:`ResponseShare.received`.
        """
        now = self.clock()
        self.large += sum(time <= now for time in self._free_at)
        self._free_at = [time for time in self._free_at if time > now]
        if self.large <= 0:
            yield ResponseShare(self.small_bytes)
            return
        self.large -= 1
        share = ResponseShare(self.large_bytes)
        try:
            yield share
        finally:
            self._free_at.append(now + share.received / self.bytes_per_second)


def checked(method: str, decode: Callable[[bytes], Any]) -> Callable[[bytes | None], Any]:
    """Return a function that decodes responses of a method, or returns an `UndecodedResponse`.

    Args:
        method: Full name of the gRPC method.
        decode: Decodes the bytes of a response.
    """
    path = _TENSOR_FIELDS.get(method.rpartition("/")[2], ())

    def decode_checked(data: bytes | None) -> Any:
        if data is None:  # a call that succeeded without a response
            return UNREADABLE
        try:
            if description_bytes(memoryview(data), path) > DESCRIPTION_BYTES_MAX:
                return TOO_LARGE
            return decode(data)
        except (DecodeError, IndexError):
            return UNREADABLE

    return decode_checked


def description_bytes(data: memoryview, path: tuple[int, ...]) -> int:
    """Return the number of bytes of a message besides the content of the field at ``path``.

    Counting stops above :data:`DESCRIPTION_BYTES_MAX`, and at more than :data:`FIELDS_MAX` fields,
    which take as long to count as a megabyte takes to receive.

    Raises:
        IndexError: The message ends within a number.
        DecodeError: It contains an unknown kind of field.
    """
    if not path:
        return len(data)
    described = position = fields = 0
    while position < len(data) and described <= DESCRIPTION_BYTES_MAX:
        fields += 1
        if fields > FIELDS_MAX:
            return DESCRIPTION_BYTES_MAX + 1
        start, content = position, 0
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH_DELIMITED:
            size, position = _varint(data, position)
            inside = data[position : position + size]
            position += size
            if number == path[0]:
                rest = path[1:]
                content = len(inside) - (description_bytes(inside, rest) if rest else 0)
        elif kind in _FIXED_SIZES:
            position += _FIXED_SIZES[kind]
        elif kind == 0:
            _, position = _varint(data, position)
        else:
            raise DecodeError(f"field {number} is of kind {kind}")
        described += position - start - content
    return described


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise DecodeError("a number is too long")
