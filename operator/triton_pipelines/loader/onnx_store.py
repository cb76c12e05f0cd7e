"""Read and write ONNX files in little memory: a loader has 2 GiB, and models may exceed that."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import onnx
from google.protobuf.message import DecodeError

_GRAPH: Final = 7
"""Field number of ``ModelProto.graph`` (onnx.proto)."""
_INITIALIZER: Final = 5
"""Field number of ``GraphProto.initializer``."""
_RAW_DATA: Final = 9
"""Field number of ``TensorProto.raw_data``."""
_BYTES: Final = 2
"""Wire type of a message or bytes: the length, then the content (protobuf encoding)."""
SMALL: Final = 4096
"""Bytes up to which a weight is kept in memory: axes, shapes and scales, which are read."""


@dataclass(frozen=True)
class Span:
    """A range of bytes of a file."""

    offset: int
    """First byte."""
    length: int
    """Number of bytes."""


@dataclass(frozen=True)
class Stored:
    """A model whose large weights stay in its file.

    The initializers in ``weights`` have their name, type and dims, and no elements.
    """

    model: Any
    """An ``onnx.ModelProto``."""
    path: Path
    """The file."""
    weights: dict[int, Span] = field(default_factory=dict)
    """Place among the initializers → where the data is in the file."""


def load(path: Path) -> Any:
    """Return the ``onnx.ModelProto`` of a file, without external data.

    The file is mapped and not read: parsing bytes would hold every weight twice.

    Raises:
        google.protobuf.message.DecodeError: the file is not a model.
    """
    model: Any = onnx.ModelProto()
    with mapped(path) as view:
        model.ParseFromString(view)
    return model


def load_without_weights(path: Path) -> Stored:
    """Return the model of a file without its large weights, whatever their size.

    Raises:
        google.protobuf.message.DecodeError: the file is not a model.
    """
    model: Any = onnx.ModelProto()
    stored = Stored(model, path)
    around, inside = bytearray(), bytearray()
    with mapped(path) as view:
        for number, part, value in _fields(view, Span(0, len(view))):
            if number != _GRAPH or value is None:
                around += view[part.offset : part.offset + part.length]
                continue
            for inner, whole, tensor in _fields(view, value):
                if inner != _INITIALIZER or tensor is None:
                    inside += view[whole.offset : whole.offset + whole.length]
                    continue
                _initializer(view, tensor, stored)
        model.MergeFromString(memoryview(around))
        if inside:
            model.graph.MergeFromString(memoryview(inside))
    return stored


def _initializer(view: memoryview, tensor: Span, stored: Stored) -> None:
    head, data = bytearray(), None
    for number, part, value in _fields(view, tensor):
        if number == _RAW_DATA and value is not None and value.length > SMALL:
            data = value
        else:
            head += view[part.offset : part.offset + part.length]
    if data is not None:
        stored.weights[len(stored.model.graph.initializer)] = data
    stored.model.graph.initializer.add().MergeFromString(bytes(head))


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map the bytes of a file: pages are read on access, and the kernel may drop them."""
    if not path.stat().st_size:
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages,
        memoryview(pages) as view,
    ):
        yield view


def save(model: Stored | Any, path: Path) -> None:
    """Write a model tensor by tensor, and **empty it**.

    To serialize it as a whole takes four times its size at the peak (measured with upb). A message
    may consist of parts that every protobuf parser joins (encoding, "Last One Wins": embedded
    messages are merged): the model without its weights comes first, then each weight as another
    part of its graph. Weights that were left in a file are copied from there.
    """
    stored = model if isinstance(model, Stored) else Stored(model, path)
    if not stored.weights:
        _save(stored, memoryview(b""), path)
        return
    with mapped(stored.path) as view:
        _save(stored, view, path)


def _save(stored: Stored, view: memoryview, path: Path) -> None:
    with path.open("wb") as file:
        file.write(_without_weights(stored.model).SerializeToString())
        for number, tensor in enumerate(stored.model.graph.initializer):
            left = stored.weights.get(number)
            if left is None:
                _write_initializer(file, tensor)
            else:
                with view[left.offset : left.offset + left.length] as data:
                    _write_tensor(file, tensor, data)


def skeleton(model: Any) -> Any:
    """Return a copy of a model whose initializers have names and types, but no elements.

    That is enough for the checker, which holds twice what it checks.
    """
    bare = _without_weights(model)
    for tensor in model.graph.initializer:
        bare.graph.initializer.add(
            name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b""
        )
    return bare


def _without_weights(model: Any) -> Any:
    """Return a copy of the model without its initializers."""
    bare = onnx.ModelProto()
    for descriptor, value in model.ListFields():
        if descriptor.name == "graph":
            _copy_but(value, bare.graph, "initializer")
        else:
            _copy_field(bare, descriptor, value)
    return bare


def _copy_but(source: Any, target: Any, left_out: str) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name != left_out:
            _copy_field(target, descriptor, value)


def _copy_field(target: Any, descriptor: Any, value: Any) -> None:
    if descriptor.is_repeated:
        getattr(target, descriptor.name).extend(value)
    elif descriptor.message_type is not None:
        getattr(target, descriptor.name).CopyFrom(value)
    else:
        setattr(target, descriptor.name, value)


def _write_initializer(file: BinaryIO, tensor: Any) -> None:
    # A field that is present and empty is a tensor without elements; that differs from absent.
    raw = tensor.raw_data if tensor.HasField("raw_data") else None
    tensor.ClearField("raw_data")
    _write_tensor(file, tensor, raw)


def _write_tensor(file: BinaryIO, head: Any, raw: bytes | memoryview | None) -> None:
    start = head.SerializeToString()
    tail = b"" if raw is None else _tag(_RAW_DATA) + _varint(len(raw))
    body = len(start) + len(tail) + len(raw or b"")
    opening = _tag(_INITIALIZER) + _varint(body)
    for part in (_tag(_GRAPH), _varint(len(opening) + body), opening, start, tail, raw or b""):
        file.write(part)


def _fields(view: memoryview, message: Span) -> Iterator[tuple[int, Span, Span | None]]:
    """Yield the fields of a message.

    Each has its number, the place of the whole field, and the place of its bytes if it has that
    wire type.
    """
    place, end = message.offset, message.offset + message.length
    while place < end:
        begin = place
        tag, place = _read_varint(view, place, end)
        if not tag >> 3:
            # No field has the number 0. In a file of zeros, every two bytes decode to it.
            raise DecodeError(f"invalid field number at byte {begin}")
        value = None
        match tag & 7:
            case 0:
                _, place = _read_varint(view, place, end)
            case 1:
                place += 8
            case 5:
                place += 4
            case 2:
                length, place = _read_varint(view, place, end)
                value = Span(place, length)
                place += length
            case other:
                raise DecodeError(f"wire type {other} at byte {begin}")
        if place > end:
            raise DecodeError(f"the file ends within the field at byte {begin}")
        yield tag >> 3, Span(begin, place - begin), value


def _read_varint(view: memoryview, place: int, end: int) -> tuple[int, int]:
    """Return the number at ``place`` and the place after it."""
    value = shift = 0
    while place < end and shift < 70:
        byte = view[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise DecodeError(f"no number at byte {place}")


def _tag(field: int) -> bytes:
    return _varint(field << 3 | _BYTES)


def _varint(value: int) -> bytes:
    return bytes(_groups(value))


def _groups(value: int) -> Iterator[int]:
    """Yield a number in groups of 7 bits, lowest first (protobuf encoding, "Base 128 Varints").

    All groups but the last have the high bit set.
    """
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
