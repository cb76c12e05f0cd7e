"""The native tokenizer in this process, without Triton: `native/fuzz` links it to a test server.

Models and batches can be recorded, and replayed by `native/fuzz/src/replay.rs`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from e2e.local import native

BACKEND_API = (1, 19)
"""Version of the test server, which is that of the oldest supported servers."""
# Data types as numbers of Triton's C API.
BYTES = 13
_INTEGERS = {8: np.int32, 9: np.int64}
# Entries of a recording.
_MODEL, _BATCH = 1, 2


@dataclass(frozen=True)
class NativeError:
    """The error that a request gets."""

    code: int
    message: str


Answer = dict[str, np.ndarray] | NativeError


class _Block(ctypes.Structure):
    _fields_ = (("data", ctypes.POINTER(ctypes.c_ubyte)), ("size", ctypes.c_size_t))


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native.testserver()))
    library.testserver_load.restype = ctypes.c_void_p
    library.testserver_load.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(_Block),
    ]
    library.testserver_execute.restype = None
    library.testserver_execute.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.POINTER(_Block),
    ]
    library.testserver_unload.restype = None
    library.testserver_unload.argtypes = [ctypes.c_void_p]
    library.testserver_api.restype = None
    library.testserver_api.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    library.testserver_free.restype = None
    library.testserver_free.argtypes = [_Block]
    return library


def _taken(block: _Block) -> bytes:
    try:
        return ctypes.string_at(block.data, block.size)
    finally:
        _library().testserver_free(block)


@contextlib.contextmanager
def backend_api(major: int, minor: int) -> Iterator[None]:
    """Let the test server claim another version of the backend API."""
    _library().testserver_api(major, minor)
    try:
        yield
    finally:
        _library().testserver_api(*BACKEND_API)


class NativeModel:
    """A native tokenizer with one instance."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        parameters: Mapping[str, str],
        recording: BinaryIO | None = None,
    ) -> None:
        """Load the model in ``folder``, which holds version 1.

        ``recording`` receives the model and its batches.

        Raises:
            ValueError: the backend's message.
        """
        values = {key: {"string_value": value} for key, value in parameters.items()}
        text = json.dumps({**config, "parameters": values})
        self._outputs = [output["name"] for output in config["output"]]
        error = _Block()
        self._loaded = _library().testserver_load(
            text.encode(), str(folder).encode(), ctypes.byref(error)
        )
        refusal = b"" if self._loaded else _taken(error)
        self._recording = recording
        if recording is not None:
            recording.write(_model_entry(folder, text, refusal))
        if refusal:
            raise ValueError(refusal.decode())
        self._unload = weakref.finalize(self, _library().testserver_unload, self._loaded)

    def execute(self, requests: Sequence[Mapping[str, np.ndarray]]) -> list[Answer]:
        """Answer requests of BYTES tensors as one batch."""
        data = b"".join(
            (struct.pack("<q", len(requests)), *(self._request(one) for one in requests))
        )
        answers = _Block()
        _library().testserver_execute(self._loaded, data, len(data), ctypes.byref(answers))
        answered = _taken(answers)
        if self._recording is not None:
            self._recording.write(struct.pack("<q", _BATCH) + _block(data) + _block(answered))
        reader = _Reader(answered)
        return [reader.answer() for _ in requests]

    def close(self) -> None:
        """Unload the model; otherwise, the garbage collector does."""
        self._unload()

    def _request(self, inputs: Mapping[str, np.ndarray]) -> bytes:
        parts = [struct.pack("<q", len(inputs))]
        for name, rows in inputs.items():
            shape = struct.pack(f"<{rows.ndim + 1}q", rows.ndim, *rows.shape)
            content = b"".join(_elements(rows))
            parts += (_block(name.encode()), struct.pack("<q", BYTES), shape)
            parts += (struct.pack("<q", 1), _block(content))
        parts += (
            struct.pack("<q", len(self._outputs)),
            *map(_block, map(str.encode, self._outputs)),
        )
        return b"".join(parts)


def _elements(rows: np.ndarray) -> Iterator[bytes]:
    for row in rows.flat:
        yield struct.pack("<I", len(row)) + row


def _model_entry(folder: Path, config: str, refusal: bytes) -> bytes:
    files = sorted((folder / "1").iterdir())
    parts = [struct.pack("<qq", _MODEL, len(files))]
    parts += [_block(file.name.encode()) + _block(file.read_bytes()) for file in files]
    return b"".join((*parts, _block(config.encode()), _block(refusal)))


def _block(content: bytes) -> bytes:
    return struct.pack("<q", len(content)) + content


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _number(self) -> int:
        (value,) = struct.unpack_from("<q", self._data, self._at)
        self._at += 8
        return int(value)

    def _block(self) -> bytes:
        size = self._number()
        self._at += size
        return self._data[self._at - size : self._at]

    def answer(self) -> Answer:
        code = self._number()
        if code >= 0:
            return NativeError(code, self._block().decode())
        arrays = {}
        for _ in range(self._number()):
            name, data_type = self._block().decode(), self._number()
            shape = [self._number() for _ in range(self._number())]
            arrays[name] = np.frombuffer(self._block(), _INTEGERS[data_type]).reshape(shape)
        return arrays


def outputs_of(answer: Answer) -> dict[str, np.ndarray]:
    """Return the outputs of a request that was answered."""
    assert not isinstance(answer, NativeError), answer
    return answer


def error_of(answer: Answer) -> NativeError:
    """Return the error of a request that was rejected."""
    assert isinstance(answer, NativeError), f"answered with {sorted(answer)}"
    return answer
