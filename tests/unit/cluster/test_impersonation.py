"""Requests in the name of a service account, and why they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.messages import Messages
from tests.unit.cluster.test_client import CONFIG_MAP, Script, client, script, status
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import Forbidden, NamespaceTerminating, Unavailable
from triton_pipelines.cluster.impersonation import PermissionDenied, Writer
from triton_pipelines.cluster.resources import CONFIG_MAPS, JOBS, PODS, Resource

__all__ = ["client", "script"]
REFUSED = status(403, "Forbidden", "refused")


def review(allowed: bool) -> tuple[int, Any]:
    return 201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}


async def write(client: Client, resource: Resource = CONFIG_MAPS, subresource: str = "") -> None:
    writer = Writer.of(client, "n", "writer")
    async with writer.explaining(resource, "a", subresource):
        await writer.client.apply(CONFIG_MAP)


async def test_the_user_is_sent_and_groups_are_left_to_the_api_server(
    script: Script, client: Client
) -> None:
    script.answers += [(200, {}), (200, {}), (200, {})]
    await Writer.of(client, "n", "writer").client.apply(CONFIG_MAP)
    await Writer.of(client, "n", "").client.apply(CONFIG_MAP)
    await client.apply(CONFIG_MAP)
    users = [headers.get("Impersonate-User") for *_, headers in script.seen]
    assert users == ["system:serviceaccount:n:writer", None, None]
    assert not any("Impersonate-Group" in headers for *_, headers in script.seen)
    assert script.logins == 1, "the connections are shared"


async def test_missing_verbs_are_named(script: Script, client: Client, messages: Messages) -> None:
    script.answers += [REFUSED, review(True), review(False), review(False), review(True)]
    with pytest.raises(PermissionDenied) as caught:
        await write(client)
    assert "spec.serviceAccountName" in caught.value.message
    messages.check(caught.value.message)
    asked = [body["spec"]["resourceAttributes"] for _, _, _, body, _ in script.seen[1:]]
    assert [(one["verb"], one["name"], one["namespace"]) for one in asked] == [
        ("create", "", "n"),
        ("update", "a", "n"),
        ("patch", "a", "n"),
        ("delete", "a", "n"),
    ]
    users = {headers["Impersonate-User"] for *_, headers in script.seen}
    assert users == {"system:serviceaccount:n:writer"}


@pytest.mark.parametrize(
    ("resource", "subresource", "verbs", "words"),
    [
        (JOBS, "", 3, r"create, patch or delete jobs\.batch"),
        (PODS, "", 1, "delete pods"),
        (PODS, "resize", 1, "patch pods/resize"),
    ],
)
async def test_only_verbs_that_the_operator_uses_are_named(
    script: Script,
    client: Client,
    resource: Resource,
    subresource: str,
    verbs: int,
    words: str,
    messages: Messages,
) -> None:
    script.answers += [REFUSED, *[review(False)] * verbs]
    with messages.raises(PermissionDenied, match=words):
        await write(client, resource, subresource)


async def test_a_quota_is_not_taken_for_a_missing_permission(
    script: Script, client: Client
) -> None:
    script.answers += [REFUSED, *[review(True)] * 4]
    with pytest.raises(Forbidden, match="refused") as caught:
        await write(client)
    assert not isinstance(caught.value, PermissionDenied)


async def test_an_account_that_cannot_be_impersonated_is_named(
    script: Script, client: Client, messages: Messages
) -> None:
    script.answers += [REFUSED, REFUSED]
    with messages.raises(PermissionDenied, match="n/writer"):
        await write(client)


async def test_an_error_of_the_review_hides_no_error(script: Script, client: Client) -> None:
    script.answers += [REFUSED, status(500, "InternalError", "review failed")]
    with pytest.raises(Forbidden, match="refused"):
        await write(client)


async def test_nothing_is_asked_where_no_account_is_used(script: Script, client: Client) -> None:
    script.answers += [REFUSED, status(503, "ServiceUnavailable", "later")]
    own = Writer.of(client, "n", "")
    with pytest.raises(Forbidden, match="refused"):
        async with own.explaining(CONFIG_MAPS, "a"):
            await own.client.apply(CONFIG_MAP)
    assert len(script.seen) == 1
    with pytest.raises(Unavailable):
        async with own.explaining(CONFIG_MAPS, "a"):
            await own.client.create(CONFIG_MAP)


async def test_a_terminating_namespace_is_told_as_such(script: Script, client: Client) -> None:
    cause = {"reason": "NamespaceTerminating", "message": "being terminated"}
    script.answers += [status(403, "Forbidden", "gone soon", causes=[cause])]
    with pytest.raises(NamespaceTerminating):
        await write(client)
    assert len(script.seen) == 1
