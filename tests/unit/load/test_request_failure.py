"""Test how failures of requests are classified."""

import pytest

from triton_pipelines.tools.loadgen.request_failure import FailureKind, error_response


@pytest.mark.parametrize(
    ("message", "is_timeout", "kind"),
    [
        (
            "503 Unavailable: [request id] Exceeds maximum queue size",
            False,
            FailureKind.REJECTED,
        ),
        ("UNAVAILABLE: Request timeout expired", False, FailureKind.REJECTED),
        ("DEADLINE_EXCEEDED: Request timeout expired", True, FailureKind.REJECTED),
        ("DEADLINE_EXCEEDED: Deadline Exceeded", True, FailureKind.TIMED_OUT),
        ("500 Internal Server Error: no answer within 30 s", False, FailureKind.ERROR),
    ],
)
def test_an_error_response_is_classified(message: str, is_timeout: bool, kind: FailureKind) -> None:
    failure = error_response(message, is_timeout=is_timeout)
    assert (failure.message, failure.kind) == (message, kind)
    assert str(failure) == message
