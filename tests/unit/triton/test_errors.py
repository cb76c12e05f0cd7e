"""Triton's and gRPC's words, as seen from Triton 2.51.0, become the right type of error."""

from __future__ import annotations

import pytest

from tests.support.messages import Messages
from triton_pipelines.triton import errors


@pytest.mark.parametrize(
    ("status", "detail", "kind"),
    [
        ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded", errors.DeadlineError),
        (
            "StatusCode.UNAVAILABLE",
            "failed to connect to all addresses; last error: connection refused",
            errors.UnreachableError,
        ),
        ("StatusCode.UNAVAILABLE", "Socket closed", errors.UnreachableError),
        ("StatusCode.CANCELLED", "the connection was closed", errors.UnreachableError),
        (
            "StatusCode.UNAVAILABLE",
            "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'",
            errors.RestrictedError,
        ),
        ("StatusCode.UNAVAILABLE", "Exceeds maximum queue size", errors.OverloadedError),
        (
            "StatusCode.UNAVAILABLE",
            "in ensemble 'p', Request timeout expired",
            errors.OverloadedError,
        ),
        (
            "StatusCode.NOT_FOUND",
            "Request for unknown model: 'x' is not found",
            errors.NotReadyError,
        ),
        (
            "StatusCode.UNAVAILABLE",
            "Request for unknown model: 'x' has no available versions",
            errors.NotReadyError,
        ),
        (
            "StatusCode.INVALID_ARGUMENT",
            "unexpected inference input 'OTHER' for model 'p'",
            errors.RejectedError,
        ),
        (
            "StatusCode.INTERNAL",
            "failed to load 'x', failed to poll from model repository",
            errors.RejectedError,
        ),
        (
            "StatusCode.INTERNAL",
            "in ensemble 'p', Failed to increase the shared memory pool size for key"
            " 'triton_python_backend_shm_region_1' to 1048576 bytes. If you are running Triton"
            " inside docker, use '--shm-size' flag to control the shared memory region size. Error:"
            " No space left on device",
            errors.SharedMemoryFullError,
        ),
        (
            "StatusCode.INTERNAL",
            "Unable to initialize shared memory key 'triton_python_backend_shm_region_1' to"
            " requested size (1048576 bytes). Each Python backend model instance requires at least"
            " 1 MB of shared memory. Error: No space left on device",
            errors.SharedMemoryFullError,
        ),
        ("", "", errors.RejectedError),
    ],
)
def test_translation(
    status: str, detail: str, kind: type[errors.TritonError], messages: Messages
) -> None:
    error = errors.translate("loading model 'x'", "10.0.0.1:8001", status, detail)
    assert type(error) is kind
    assert "8001" in str(error)
    messages.check(str(error))


def test_a_rejection_carries_tritons_reason() -> None:
    error = errors.translate(
        "inference on 'p'",
        "h:1",
        "StatusCode.INVALID_ARGUMENT",
        "row 1 is not valid UTF-8\nAt: model.py(3)",
    )
    assert isinstance(error, errors.RejectedError)
    assert error.reason == "row 1 is not valid UTF-8"


def test_a_reason_that_triton_keeps_to_its_log_is_pointed_at(messages: Messages) -> None:
    error = errors.translate(
        "loading model 'x'",
        "h:1",
        "StatusCode.INTERNAL",
        "failed to load 'x', failed to poll from model repository",
    )
    messages.check(str(error))
