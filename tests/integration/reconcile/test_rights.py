"""The operator with exactly the rights that the chart gives its account in a namespaced install.

The policies of the chart are in force. Nothing that the operator does is refused, and no Secret is
ever read. `test_least_privilege.py` shows the same for a cluster-wide install.
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
from tests.support.permissions import (
    assert_nothing_is_refused,
    everything_it_does,
    rights_of_the_chart,
)
from tests.support.simulated_nodes import grant_cpu, serve_pods
from triton_pipelines.cluster.client import Client

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
RELEASE = "rights-triton-pipelines"


async def test_nothing_is_refused_under_the_charts_rights(
    admin: Client, control_plane: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    values = ["--set", f"watch.namespaces={{{namespace}}}", "--set", "rbac.nodes=false"]
    await rights_of_the_chart(admin, RELEASE, *values)
    with api.client(control_plane.kubeconfig) as connection:
        kubeconfig = account_kubeconfig(
            connection, control_plane.kubeconfig, tmp_path / "account", RELEASE, RELEASE
        )
    options = {"operator_namespace": RELEASE, "operator_key_file": tmp_path / "new"}
    async with (
        FaultProxy(kubeconfig) as proxy,
        operator(proxy, tmp_path, namespace, **options) as running,
    ):
        async with repeated(
            partial(serve_pods, admin, namespace), partial(grant_cpu, admin, namespace)
        ):
            await everything_it_does(admin, namespace)
        assert_nothing_is_refused(running, proxy, control_plane, RELEASE, except_for={"nodes"})
