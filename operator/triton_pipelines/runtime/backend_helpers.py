"""Two helpers of Triton's python backend in a quicker form.

The stub looks them up by name for every tensor of every request: `deserialize_bytes_tensor` for an input of texts (until the backend did it in C++),
`numpy_to_triton_type` for every output. The backend's own take some microseconds each, for a request of one text a tenth of all the CPU that a step takes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_LENGTH = struct.Struct("<I")


def quicken(backend: Any) -> None:
    """Put them in the place of the helpers of ``backend`` (``triton_python_backend_utils``), where it has these; once or several times."""
    if hasattr(backend, "deserialize_bytes_tensor"):
        backend.deserialize_bytes_tensor = deserialize_bytes_tensor
    slow = getattr(backend, "numpy_to_triton_type", None)
    if slow is not None and not isinstance(slow, _Types):
        backend.numpy_to_triton_type = _Types(slow)


def deserialize_bytes_tensor(encoded: bytes) -> np.ndarray[Any, Any]:
    """Elements of a BYTES tensor [elements], each behind its length in 4 bytes, as an array of bytes objects. Raises ``struct.error`` for lengths that lie."""
    encoded = bytes(encoded)  # no copy of what is bytes already
    elements, at, size = [], 0, len(encoded)
    while at < size:
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(encoded, at)[0]
        elements.append(encoded[begin:at])
    if at > size:
        raise struct.error(f"the last of {len(elements)} elements ends at byte {at}, and there are {size}")
    # Not by np.array, which takes longer to find out what it has got.
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


class _Types(dict[Any, Any]):
    """Number type of numpy -> Triton's number for it, asked once each."""

    def __init__(self, ask: Any) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, data_type: Any) -> Any:
        self[data_type] = self._ask(data_type)
        return self[data_type]

    def __call__(self, data_type: Any) -> Any:
        return self[data_type]
