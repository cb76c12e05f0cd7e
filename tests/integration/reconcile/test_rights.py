"""The operator with exactly the rights that the chart gives its account, policies included.

The tests run cluster-wide and namespaced. Nothing that the operator does is refused, and no Secret
is ever read.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from e2e.local import api
from tests.support.chart import account_kubeconfig
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import operator, repeated
from tests.support.permissions import everything_it_does, rights_of_the_chart
from tests.support.simulated_nodes import grant_cpu, serve_pods
from triton_pipelines.cluster.client import Client

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]


@pytest.mark.parametrize("scope", ["cluster-wide", "namespaced"])
async def test_nothing_is_refused_under_the_charts_rights(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str, scope: str
) -> None:
    release = f"rights-{scope}-triton-pipelines"
    values = (
        ["--set", f"watch.namespaces={{{namespace}}}", "--set", "rbac.nodes=false"]
        if scope == "namespaced"
        else []
    )
    await rights_of_the_chart(admin, release, *values)
    with api.client(control_plane.kubeconfig) as connection:
        kubeconfig = account_kubeconfig(
            connection, control_plane.kubeconfig, tmp_path / "account", release, release
        )
    where = [namespace] if scope == "namespaced" else []
    async with (
        FaultProxy(kubeconfig) as proxy,
        operator(
            proxy, tmp_path, *where, operator_namespace=release, operator_key_file=tmp_path / "new"
        ) as running,
    ):
        async with repeated(
            partial(serve_pods, admin, namespace), partial(grant_cpu, admin, namespace)
        ):
            await everything_it_does(admin, namespace)
        codes = running.samples("api_requests_total")
        refused = {
            labels["resource"]
            for key, _ in codes.items()
            if (labels := dict(key))["code"] in ("401", "403")
        }
        assert refused <= ({"nodes"} if scope == "namespaced" else set())
        verbs = {(dict(key)["resource"], dict(key)["verb"]) for key in codes}
    assert {
        ("services", "replace"),
        ("services", "patch"),
        ("configmaps", "get"),
        ("replicasets", "get"),
        ("secrets", "delete"),
        ("networkpolicies", "delete"),
        ("jobs", "apply"),
        ("jobs", "delete"),
        ("pods", "resize"),
    } <= verbs
    assert {verb for resource, verb in verbs if resource == "secrets"} == {
        "create",
        "apply",
        "delete",
    }
    assert {verb for resource, verb in verbs if resource == "replicasets"} == {"get"}
    reads = [
        seen
        for seen in proxy.requests
        if "/secrets" in seen.target and seen.method in ("GET", "HEAD")
    ]
    assert reads == []
    user = f"system:serviceaccount:{release}:{release}"
    audited = [item for item in control_plane.audit_events() if item["user"]["username"] == user]
    assert audited
    assert [
        item["objectRef"] for item in audited if item["responseStatus"]["code"] in (401, 403)
    ] == []
