"""Test how failures of requests are classified."""

import pytest

from triton_pipelines.tools.loadgen.request_failure import RequestFailureKind, error_response


@pytest.mark.parametrize(
    ("message", "is_timeout", "kind"),
    [
        (
            "503 Unavailable: [request id] Exceeds maximum queue size",
            False,
            RequestFailureKind.REJECTED,
        ),
        ("UNAVAILABLE: Request timeout expired", False, RequestFailureKind.REJECTED),
        ("DEADLINE_EXCEEDED: Request timeout expired", True, RequestFailureKind.REJECTED),
        ("DEADLINE_EXCEEDED: Deadline Exceeded", True, RequestFailureKind.TIMED_OUT),
        ("500 Internal Server Error: no response within 30 s", False, RequestFailureKind.ERROR),
    ],
)
def test_an_error_response_is_classified(
    message: str, is_timeout: bool, kind: RequestFailureKind
) -> None:
    failure = error_response(message, is_timeout=is_timeout)
    assert (failure.message, failure.kind) == (message, kind)
    assert str(failure) == message
