"""Admission rejects the operator's writes in one namespace for as long as the test runs.

Users make the pipelines due all the time meanwhile. The operator must not repeat the rejected
writes as often, must report why they fail without repeating credentials, and must serve others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import builders
from tests.support.operators import apply_any, eventually, patch
from tests.support.tenants import Place, Tenants
from triton_pipelines.api import names
from triton_pipelines.app import control_key
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    EVENTS,
    INFERENCE_PIPELINES,
    SECRETS,
    SERVICES,
    Resource,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]
GROUP = "admissionregistration.k8s.io"
POLICIES, BINDINGS, WEBHOOKS = (
    Resource(GROUP, "v1", kind, plural, namespaced=False)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    )
)
PIPELINES = 12
"""More than the operator has workers."""
RECONCILES = 25
"""Of each pipeline."""


@dataclass(frozen=True)
class Rejection:
    """What is rejected in the attacker's namespace."""

    resource: Resource
    subresource: str = ""
    is_webhook: bool = False
    """Rejected by a webhook that cannot be called, instead of by a policy."""
    message: str = "'not here'"
    """Text of the policy, as a CEL expression."""
    reason: str = "Forbidden"
    """Reason of the policy's answers."""

    @property
    def path(self) -> str:
        """Return what the path of a rejected request contains."""
        return f"/{self.resource.plural}/"

    def rule(self) -> Object:
        """Return the rule of a policy or a webhook."""
        kind = "/".join(filter(None, (self.resource.plural, self.subresource)))
        return {
            "apiGroups": [self.resource.group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [kind],
        }


REJECTIONS = {
    "Services, as invalid": Rejection(SERVICES, reason="Invalid"),
    "ConfigMaps, by a webhook that cannot be called": Rejection(CONFIG_MAPS, is_webhook=True),
    "statuses, by a policy": Rejection(INFERENCE_PIPELINES, "status"),
}


@contextlib.asynccontextmanager
async def rejected(admin: Client, rejection: Rejection, namespace: str) -> AsyncIterator[None]:
    """Reject writes in a namespace; the policy or webhook is in force when this is entered."""
    name = f"reject-{namespace}"
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    items: list[tuple[Resource, Mapping[str, Any]]]
    if rejection.is_webhook:
        webhook = {
            "name": "never.example.com",
            "rules": [rejection.rule()],
            "namespaceSelector": selector,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        items = [(WEBHOOKS, {"webhooks": [webhook]})]
    else:
        validation = {
            "expression": "false",
            "messageExpression": rejection.message,
            "reason": rejection.reason,
        }
        spec = {
            "matchConstraints": {"resourceRules": [rejection.rule()]},
            "validations": [validation],
        }
        binding = {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        }
        items = [(POLICIES, {"spec": spec}), (BINDINGS, {"spec": binding})]
    for resource, body in items:
        item = {"apiVersion": f"{GROUP}/v1", "kind": resource.kind, "metadata": {"name": name}}
        await apply_any(admin, resource, {**item, **body})
    try:
        await eventually("the rejection", lambda: is_rejected(admin, rejection, namespace))
        yield
    finally:
        for resource, _ in items:
            await admin.delete(resource, None, name)


async def is_rejected(admin: Client, rejection: Rejection, namespace: str) -> bool:
    """Return whether a write is rejected now."""
    metadata = {"name": "trial", "namespace": namespace}
    resource = rejection.resource
    item: Object = {"apiVersion": resource.api_version, "kind": resource.kind}
    if rejection.subresource:
        document = builders.document(**metadata)
        document["metadata"].pop("uid")
        await apply_any(admin, resource, document)
        try:
            body = {"status": {"revision": "0123456789"}}
            await patch(admin, resource, namespace, "trial", body, "status")
        except ClusterError:
            return True
        return False
    if resource == SERVICES:
        item["spec"] = {"ports": [{"port": 80}]}
    try:
        await admin.apply({**item, "metadata": metadata}, dry_run=True)
    except ClusterError:
        return True
    return False


async def touch_all(tenants: Tenants, created: list[str], number: int) -> None:
    """Change an annotation of each pipeline."""
    body = {"metadata": {"annotations": {"number": str(number)}}}
    await asyncio.gather(
        *(
            patch(tenants.admin, INFERENCE_PIPELINES, tenants.hostile, name, body)
            for name in created
        )
    )


@pytest.mark.parametrize("rejection", REJECTIONS.values(), ids=REJECTIONS)
async def test_edits_do_not_repeat_rejected_writes(
    place: Place, rejection: Rejection, record_property: Any
) -> None:
    """The number of attempts depends on the time, not on the number of reconciles."""
    async with (
        place.running() as tenants,
        rejected(place.admin, rejection, place.hostile),
    ):
        created = [f"p{number:02d}" for number in range(PIPELINES)]
        for name in created:
            await tenants.create(tenants.hostile, name)

        def attempts() -> int:
            return sum(
                seen.method == "PATCH"
                and (seen.status or 0) >= 400
                and f"/{tenants.hostile}{rejection.path}" in seen.target
                for seen in place.proxy.requests
            )

        await eventually("first attempts", lambda: attempts() >= PIPELINES)
        passes, loop = tenants.running.passes(), asyncio.get_running_loop()
        begin, number = loop.time(), 0
        while tenants.running.passes() < passes + RECONCILES * PIPELINES:
            number += 1
            await touch_all(tenants, created, number)
        await tenants.others_are_served("beside")
        seconds, reconciles = loop.time() - begin, tenants.running.passes() - passes
        record_property(
            "figures", f"{attempts()} attempts, {reconciles:g} reconciles in {seconds:.0f} s"
        )
        # Each attempt of a failing webhook is sent up to four times.
        per_attempt = 4 if rejection.is_webhook else 1
        # 0.25 s, doubled up to 30 s: about 7 in the first 30 s, then 2 a minute.
        assert attempts() <= PIPELINES * per_attempt * (9 + seconds / 30)
        assert tenants.errors() == 0


async def test_messages_of_policies_reveal_no_control_key(place: Place) -> None:
    """A policy that repeats the object is a mistake, but easily made."""
    text = f"'rejected: ' + string(object.data['{names.KEY_CONTROL}'])"
    rejection = Rejection(SECRETS, message=text)
    async with place.running() as tenants, rejected(place.admin, rejection, place.hostile):
        await tenants.create(tenants.hostile, "p")

        async def is_reported() -> bool:
            return "rejected: ***" in str(await tenants.condition("Ready"))

        async def events() -> str:
            return json.dumps((await tenants.admin.list(EVENTS, tenants.hostile)).items)

        async def has_event() -> bool:
            return "rejected: ***" in await events()

        await eventually("the message", is_reported)
        await eventually("the event", has_event)
        assert tenants.running.services is not None
        secret = tenants.running.services.control_key
        pipeline = await tenants.admin.get(INFERENCE_PIPELINES, tenants.hostile, "p")
        uid, revision = pipeline["metadata"]["uid"], await revision_of(tenants)
        key = control_key.derive(secret, uid, revision)
        assert key not in json.dumps(pipeline)
        assert key not in await events()


async def revision_of(tenants: Tenants) -> str:
    """Return the revision whose ConfigMap the operator has created."""
    found = (await tenants.admin.list(CONFIG_MAPS, tenants.hostile)).items
    (revision,) = {
        item["metadata"]["labels"][names.LABEL_REVISION]
        for item in found
        if names.LABEL_REVISION in (item["metadata"].get("labels") or {})
    }
    return str(revision)
