"""Reading and writing ONNX files in little memory: a loader has 2 GiB, and models come close to that."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import onnx

_GRAPH: Final = 7
"""Field number of ``ModelProto.graph`` (onnx.proto)."""
_INITIALIZER: Final = 5
"""Field number of ``GraphProto.initializer``."""
_RAW_DATA: Final = 9
"""Field number of ``TensorProto.raw_data``."""
_BYTES: Final = 2
"""Wire type of a message or bytes: their length, then they (protobuf encoding)."""


def load(path: Path) -> Any:
    """The ``onnx.ModelProto`` of a file, without external data. Raises :class:`google.protobuf.message.DecodeError`.

    The file is mapped and not read: parsing bytes would hold every weight twice.
    """
    model: Any = onnx.ModelProto()
    with path.open("rb") as file:
        if path.stat().st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                model.ParseFromString(view)
    return model


def save(model: Any, path: Path) -> None:
    """Write a model tensor by tensor, and **empty it**: serializing it whole takes four times its size at the peak (measured with upb).

    A message may stand in parts that every parser of protobuf joins (encoding, "Last One Wins": embedded messages are merged): the
    model without its weights comes first, then each weight as another part of its graph.
    """
    with path.open("wb") as file:
        file.write(_without_weights(model).SerializeToString())
        for tensor in model.graph.initializer:
            _write_initializer(file, tensor)


def skeleton(model: Any) -> Any:
    """A copy of a model whose initializers have names and types and no elements: enough for the checker, which holds what it checks twice."""
    bare = _without_weights(model)
    for tensor in model.graph.initializer:
        bare.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0], raw_data=b"")
    return bare


def _without_weights(model: Any) -> Any:
    """A copy of the model but for its initializers."""
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
    # Present and empty is a tensor without elements, and not the same as absent.
    present, raw = tensor.HasField("raw_data"), tensor.raw_data
    tensor.ClearField("raw_data")
    head = tensor.SerializeToString()
    tail = _tag(_RAW_DATA) + _varint(len(raw)) if present else b""
    body = len(head) + len(tail) + len(raw)
    start = _tag(_INITIALIZER) + _varint(body)
    for part in (_tag(_GRAPH), _varint(len(start) + body), start, head, tail, raw):
        file.write(part)


def _tag(field: int) -> bytes:
    return _varint(field << 3 | _BYTES)


def _varint(value: int) -> bytes:
    return bytes(_groups(value))


def _groups(value: int) -> Iterator[int]:
    """A number in groups of 7 bits, the lowest first, all but the last with the high bit (protobuf encoding, "Base 128 Varints")."""
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
