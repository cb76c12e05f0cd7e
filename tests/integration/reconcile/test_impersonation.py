"""Objects are written in the name of a service account of the pipeline's namespace.

A real API server decides what the account may do: the author of a pipeline gains no right through
the operator that the account does not have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.local import api
from hack import chart
from tests.support import builders
from tests.support.chart import account_kubeconfig
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import (
    Running,
    apply_any,
    eventually,
    make_namespace,
    operator,
    repeated,
)
from tests.support.permissions import (
    ACCOUNTS,
    RBAC,
    everything_it_does,
    gone,
    rights_of_the_chart,
)
from tests.support.simulated_nodes import grant_cpu, serve_pods
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, SECRETS, SERVICES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
    pytest.mark.proves("spec.serviceAccountName", "behaviour"),
]
ACCOUNT = "pipeline-writer"
DEADLINE_SECONDS = 60.0
# What the operator writes with its own account: the status and its events.
OWN_WRITES = {("inferencepipelines", "status"), ("events", "")}


def role(namespace: str, release: str) -> Object:
    """The role for such accounts in the namespace, as the chart makes it."""
    rendered = chart.render(
        *("--set", f"operator.defaultServiceAccount={ACCOUNT}"),
        *("--set", f"watch.namespaces={{{namespace}}}"),
        release=release,
    )
    return next(item for item in rendered if item["metadata"]["name"].endswith("-writer"))


async def bind(
    admin: Client, where: str, rules: list[Any], subject: dict[str, str] | None = None
) -> None:
    """Give a role with these rules to the account, or to another subject."""
    subjects = [subject or {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": where}]
    group, version = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"
    metadata = {"name": "test-writer", "namespace": where}
    await apply_any(
        admin,
        RBAC["Role"],
        {"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules},
    )
    reference = {"apiGroup": group, "kind": "Role", "name": "test-writer"}
    await apply_any(
        admin,
        RBAC["RoleBinding"],
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": subjects,
        },
    )


async def create_account(admin: Client, namespace: str) -> None:
    metadata = {"name": ACCOUNT, "namespace": namespace}
    await apply_any(
        admin, ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    )


@asynccontextmanager
async def operator_with_chart_rights(
    admin: Client,
    plane: ControlPlane,
    folder: Path,
    namespace: str,
    *values: str,
    **options: Any,
) -> AsyncIterator[tuple[Running, str]]:
    """The operator with the account and roles of the chart; with it, the account's user name."""
    release = f"acting-{namespace}"[:40].rstrip("-")
    settings = ["--set", "fullnameOverride=acting", *values]
    await rights_of_the_chart(
        admin, release, "--set", f"watch.namespaces={{{namespace}}}", *settings
    )
    with api.client(plane.kubeconfig) as connection:
        kubeconfig = account_kubeconfig(
            connection, plane.kubeconfig, folder / "account", release, "acting"
        )
    async with (
        FaultProxy(kubeconfig) as proxy,
        operator(
            proxy,
            folder,
            namespace,
            operator_namespace=release,
            operator_key_file=folder / "new",
            **options,
        ) as running,
    ):
        yield running, f"system:serviceaccount:{release}:acting"


def document(namespace: str, account: str | None = None) -> Object:
    found = builders.document(name="p", namespace=namespace)
    found["metadata"].pop("uid")
    if account:
        found["spec"]["serviceAccountName"] = account
    return found


async def condition(admin: Client, namespace: str, kind: str = "Ready") -> dict[str, Any]:
    status = (await admin.get(INFERENCE_PIPELINES, namespace, "p")).get("status") or {}
    return next((item for item in status.get("conditions", ()) if item["type"] == kind), {})


async def refused_for(admin: Client, namespace: str, reason: str, *words: str) -> str:
    """Wait for the reason, and return the message."""

    async def reached() -> str:
        found = await condition(admin, namespace)
        message = str(found.get("message", ""))
        is_told = found.get("reason") == reason and all(word in message for word in words)
        return message if is_told else ""

    return str(await eventually(f"{reason} is reported with {words}", reached, DEADLINE_SECONDS))


@asynccontextmanager
async def operator_with_default_account(
    admin: Client, plane: ControlPlane, folder: Path, namespace: str
) -> AsyncIterator[tuple[Running, str]]:
    """The same with a default account that exists and has the rights of the chart's role."""
    await create_account(admin, namespace)
    await bind(admin, namespace, role(namespace, "acting")["rules"])
    async with operator_with_chart_rights(
        admin,
        plane,
        folder,
        namespace,
        *("--set", f"operator.defaultServiceAccount={ACCOUNT}"),
        default_service_account=ACCOUNT,
    ) as running:
        yield running


async def exists(admin: Client, namespace: str) -> bool:
    return not await gone(admin, DEPLOYMENTS, namespace, "p")


async def test_with_a_default_account_the_operator_writes_nothing_itself(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    async with (
        operator_with_default_account(admin, control_plane, tmp_path, namespace) as (_, user),
        repeated(partial(serve_pods, admin, namespace), partial(grant_cpu, admin, namespace)),
    ):
        await everything_it_does(admin, namespace)
    acting = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    audited = [item for item in control_plane.audit_events() if item["user"]["username"] == user]
    own = [item for item in audited if "impersonatedUser" not in item]
    written = {
        (item["objectRef"]["resource"], item["objectRef"].get("subresource", ""))
        for item in own
        if item["objectRef"].get("namespace") == namespace
    }
    assert written == OWN_WRITES
    impersonated = [item for item in audited if "impersonatedUser" in item]
    assert {item["impersonatedUser"]["username"] for item in impersonated} == {acting}
    assert {item["objectRef"]["resource"] for item in impersonated} >= {
        "deployments",
        "services",
        "configmaps",
        "secrets",
        "networkpolicies",
        "jobs",
        "pods",
    }
    refused = [
        item["objectRef"] for item in audited if item["responseStatus"]["code"] in (401, 403)
    ]
    assert refused == []


async def test_an_author_gains_no_right_that_the_account_lacks(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    await create_account(admin, namespace)
    rules = role(namespace, "acting")["rules"]
    without = [rule for rule in rules if "secrets" not in rule["resources"]]
    await bind(admin, namespace, without)
    async with operator_with_chart_rights(
        admin,
        control_plane,
        tmp_path,
        namespace,
        *("--set", f"operator.impersonatedServiceAccounts={{{ACCOUNT}}}"),
        impersonated_service_accounts=(ACCOUNT,),
    ):
        await apply_any(admin, INFERENCE_PIPELINES, document(namespace, ACCOUNT))
        # Rights are in force with a delay: until then, other objects are refused.
        missing = (
            f"service account {namespace}/{ACCOUNT} is not allowed to create, patch or delete "
            "secrets;"
        )
        message = await refused_for(admin, namespace, "PermissionDenied", missing)
        assert message.startswith("Secret p-")
        assert "to a role that allows this" in message
        assert not await exists(admin, namespace)
        await bind(admin, namespace, rules)
        await eventually(
            "the Deployment is created", partial(exists, admin, namespace), DEADLINE_SECONDS
        )


async def test_groups_of_the_namespace_count(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    """A role may be bound to all service accounts of the namespace."""
    await bind(
        admin,
        namespace,
        role(namespace, "acting")["rules"],
        {
            "kind": "Group",
            "apiGroup": "rbac.authorization.k8s.io",
            "name": f"system:serviceaccounts:{namespace}",
        },
    )
    async with operator_with_chart_rights(
        admin,
        control_plane,
        tmp_path,
        namespace,
        *("--set", f"operator.impersonatedServiceAccounts={{{ACCOUNT}}}"),
        impersonated_service_accounts=(ACCOUNT,),
    ):
        await apply_any(admin, INFERENCE_PIPELINES, document(namespace, ACCOUNT))
        await eventually(
            "the Deployment is created", partial(exists, admin, namespace), DEADLINE_SECONDS
        )


async def test_without_the_chart_setting_the_operator_may_not_impersonate(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    async with operator_with_chart_rights(
        admin,
        control_plane,
        tmp_path,
        namespace,
        impersonated_service_accounts=(ACCOUNT,),
    ):
        await apply_any(admin, INFERENCE_PIPELINES, document(namespace, ACCOUNT))
        missing = (
            f"the operator is not allowed to impersonate the service account {namespace}/{ACCOUNT}"
        )
        await refused_for(admin, namespace, "PermissionDenied", missing)
        assert not await exists(admin, namespace)


async def test_deleting_a_pipeline_needs_no_account(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    """After the account has gone, nothing is changed, and a deletion is complete all the same."""
    async with (
        operator_with_default_account(admin, control_plane, tmp_path, namespace),
        repeated(partial(serve_pods, admin, namespace)),
    ):
        pipeline = document(namespace)
        await apply_any(admin, INFERENCE_PIPELINES, pipeline)
        await eventually("it serves", partial(is_ready, admin, namespace), DEADLINE_SECONDS)
        before = (await admin.get(DEPLOYMENTS, namespace, "p"))["spec"]
        for kind in ("RoleBinding", "Role"):
            await admin.delete(RBAC[kind], namespace, "test-writer")
        await admin.delete(ACCOUNTS, namespace, ACCOUNT)
        pipeline["spec"]["tokenizer"]["maxLength"] = 64
        await apply_any(admin, INFERENCE_PIPELINES, pipeline)
        await refused_for(admin, namespace, "PermissionDenied", "is not allowed to", "configmaps")
        assert (await admin.get(DEPLOYMENTS, namespace, "p"))["spec"] == before
        assert (await condition(admin, namespace, "Available"))["status"] == "True"
        await admin.delete(INFERENCE_PIPELINES, namespace, "p")
        for resource in (DEPLOYMENTS, SERVICES):
            await eventually(
                f"the {resource.kind} goes",
                partial(gone, admin, resource, namespace, "p"),
                DEADLINE_SECONDS,
            )
        await eventually("the Secrets go", partial(no_secrets, admin, namespace), DEADLINE_SECONDS)


async def is_ready(admin: Client, namespace: str) -> bool:
    return (await condition(admin, namespace, "Ready")).get("status") == "True"


async def no_secrets(admin: Client, namespace: str) -> bool:
    return not (await admin.list(SECRETS, namespace)).items


async def test_another_namespace_does_not_lend_its_account(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    """An account of the same name in another namespace gives no right in this one."""
    other = await make_namespace(admin, f"{namespace}-b")
    await create_account(admin, other)
    await bind(
        admin,
        namespace,
        role(namespace, "acting")["rules"],
        {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": other},
    )
    async with operator_with_chart_rights(
        admin,
        control_plane,
        tmp_path,
        namespace,
        *("--set", f"operator.impersonatedServiceAccounts={{{ACCOUNT}}}"),
        impersonated_service_accounts=(ACCOUNT,),
    ):
        await apply_any(admin, INFERENCE_PIPELINES, document(namespace, ACCOUNT))
        await refused_for(admin, namespace, "PermissionDenied", f"{namespace}/{ACCOUNT}")
        assert not await exists(admin, namespace)
