"""Which error the client raises for an answer of the API server."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from triton_pipelines.cluster.errors import Forbidden, NamespaceTerminating, from_response
from triton_pipelines.cluster.sent_secrets import MESSAGE_MAX

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


KEY = 'k3y/with "quotes" and more'
ENCODED = base64.b64encode(KEY.encode()).decode()
METADATA = {"name": "a", "namespace": "n"}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": METADATA}


def deployment(name: str) -> dict[str, Any]:
    """A Deployment whose init container has an environment variable with the key."""
    loader = {"name": "load", "env": [{"name": "OTHER"}, {"name": name, "value": KEY}]}
    spec = {"template": {"spec": {"initContainers": [loader]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": METADATA, "spec": spec}


SENT = {
    "stringData of a Secret": {**SECRET, "stringData": {"admin-key": KEY}},
    "data of a Secret": {**SECRET, "data": {"admin-key": ENCODED, "binary": "//79"}},
    "an environment variable": deployment("AWS_SECRET_ACCESS_KEY"),
    "another one": deployment("HF_TOKEN"),
    "a token to review": {"kind": "TokenReview", "spec": {"token": KEY, "audiences": ["a"]}},
}


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
@pytest.mark.parametrize("text", [KEY, ENCODED, repr(KEY)[1:-1], KEY.replace('"', '\\"')])
def test_messages_do_not_repeat_credentials_that_were_sent(sent: Any, text: str) -> None:
    cause = {"reason": f"Invalid {text}", "message": f"Invalid value: {text}", "field": text}
    body = status(causes=[cause], name=text)
    body["reason"] = f"Forbidden {text}"
    body["message"] = f'admission webhook "w" denied the request: {text} is not allowed'
    error = from_response(403, "Forbidden", body, None, sent)
    shown = f"{error} {error.args} {error.causes} {error.reason}"
    assert text not in shown
    assert "k3y" not in shown
    assert ENCODED not in shown
    assert str(error).startswith('admission webhook "w" denied the request: *** is not allowed')


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "LOG_LEVEL"])
def test_other_values_stay_readable(name: str) -> None:
    body = {**status(), "message": f"Invalid value: {KEY}"}
    assert KEY in str(from_response(422, "Invalid", body, None, deployment(name)))


def test_credentials_in_urls_are_masked() -> None:
    body = {**status(), "message": "Post https://user:pass@host/path?sig=abc: refused"}
    error = from_response(500, "InternalError", body, None)
    assert str(error).startswith("Post https://***@host/path?*** refused")


def test_long_messages_are_cut() -> None:
    causes = [{"reason": "r" * 10_000, "field": "f" * 10_000, "message": "m" * 10_000}] * 1000
    body = {**status(causes=causes), "message": "m" * 1_000_000, "reason": "r" * 10_000}
    error = from_response(403, "Forbidden", body, None)
    assert len(error.message) == MESSAGE_MAX
    assert error.message.endswith("…")
    assert len(error.reason) < 1000
    assert sum(len(str(cause)) for cause in error.causes) < 500_000


def test_a_credential_at_the_cut_is_masked() -> None:
    body = {**status(), "message": "m" * (MESSAGE_MAX - 5) + KEY}
    sent = {**SECRET, "stringData": {"admin-key": KEY}}
    assert "k3y" not in str(from_response(403, "Forbidden", body, None, sent))
