"""Test the faster helpers of the Python backend against what the backend's own ones return."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from triton_pipelines.runtime import backend_helpers


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x05\x00\x00\x00four",
        b"\x00\x00\x00\x00\x01\x00\x00\x00",
        b"\xff\xff\xff\xfftext",
        b"\x00\x00\x00",
    ],
)
def test_lengths_that_lie_are_an_error_as_with_the_backend(encoded: bytes) -> None:
    with pytest.raises(struct.error):
        backend_helpers.deserialize_bytes_tensor(encoded)


def test_texts_are_read_as_the_backend_reads_them() -> None:
    rows = [b"", b"one", "zwei\u00fc".encode(), b"\x00" * 5]
    encoded = b"".join(len(row).to_bytes(4, "little") + row for row in rows)
    found = backend_helpers.deserialize_bytes_tensor(encoded)
    assert found.dtype == np.object_
    assert found.shape == (4,)
    assert found.tolist() == rows
    assert backend_helpers.deserialize_bytes_tensor(b"").shape == (0,)


def test_helpers_are_replaced_once_and_only_where_they_are() -> None:
    class Backend:
        calls = 0

        @staticmethod
        def numpy_to_triton_type(data_type: Any) -> int:
            Backend.calls += 1
            return 9 if data_type == np.int64 else 8

    backend_helpers.quicken(Backend)
    backend_helpers.quicken(Backend)
    convert: Any = Backend.numpy_to_triton_type
    assert [convert(np.dtype(kind)) for kind in (np.int64, np.int32, np.int64, np.int32)] == [
        9,
        8,
        9,
        8,
    ]
    assert Backend.calls == 2
    assert not hasattr(Backend, "deserialize_bytes_tensor")
