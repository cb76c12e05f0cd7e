"""Which error the client raises for an answer of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from triton_pipelines.cluster.errors import Forbidden, NamespaceTerminating, from_response

MESSAGE = (
    'configmaps "a" is forbidden: unable to create new content in namespace n '
    "because it is being terminated"
)


def status(**details: Any) -> dict[str, Any]:
    return {"kind": "Status", "reason": "Forbidden", "message": MESSAGE, "details": details}


def test_a_terminating_namespace_is_told_by_its_cause() -> None:
    cause = {
        "reason": "NamespaceTerminating",
        "message": "namespace n is being terminated",
        "field": "metadata.namespace",
    }
    error = from_response(403, "Forbidden", status(causes=[cause]), None)
    assert type(error) is NamespaceTerminating
    assert error.causes[0].field == "metadata.namespace"


@pytest.mark.parametrize(
    "details", [{}, {"causes": None}, {"causes": [{"reason": "FieldValueForbidden"}]}]
)
def test_the_message_alone_is_not_parsed(details: dict[str, Any]) -> None:
    assert type(from_response(403, "Forbidden", status(**details), None)) is Forbidden
