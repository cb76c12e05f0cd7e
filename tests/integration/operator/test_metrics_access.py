"""The operator's metrics with TLS and tokens: a real API server decides who may read them."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api
from e2e.local.pki import Authority
from e2e.local.processes import free_port
from tests.support.chart import account_kubeconfig
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, operator
from tests.support.permissions import ACCOUNTS, RBAC, rights_of_the_chart
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.login import load_configuration

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
RELEASE = "scraped-triton-pipelines"


async def account(admin: Client, plane: ControlPlane, folder: Path, name: str) -> str:
    """A token of a new service account."""
    metadata = {"name": name, "namespace": RELEASE}
    await apply_any(
        admin, ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    )
    with api.client(plane.kubeconfig) as connection:
        file = account_kubeconfig(connection, plane.kubeconfig, folder / name, RELEASE, name)
    token: str = yaml.safe_load(file.read_text())["users"][0]["user"]["token"]
    return token


async def test_only_permitted_tokens_read_the_metrics(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    authority = Authority(dt.datetime.now(dt.UTC))
    identity = authority.server("metrics", ("127.0.0.1",))
    (tmp_path / "tls.crt").write_bytes(identity.certificate)
    (tmp_path / "tls.key").write_bytes(identity.key)
    trusted = ssl.create_default_context(cadata=authority.identity.certificate.decode())
    port = free_port()
    async with Client(lambda: load_configuration(str(api_server.kubeconfig))) as admin:
        settings = ("--set", "metrics.authentication=token", "--set", "metrics.tlsSecret=x")
        await rights_of_the_chart(admin, RELEASE, *settings)
        stranger = await account(admin, api_server, tmp_path, "stranger")
        prometheus = await account(admin, api_server, tmp_path, "prometheus")
        version, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
        reader = {"apiGroup": group, "kind": "ClusterRole", "name": f"{RELEASE}-metrics-reader"}
        await apply_any(
            admin,
            RBAC["ClusterRoleBinding"],
            {
                "apiVersion": version,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"{RELEASE}-prometheus"},
                "roleRef": reader,
                "subjects": [
                    {"kind": "ServiceAccount", "name": "prometheus", "namespace": RELEASE}
                ],
            },
        )
        with api.client(api_server.kubeconfig) as connection:
            kubeconfig = account_kubeconfig(
                connection, api_server.kubeconfig, tmp_path / "operator", RELEASE, RELEASE
            )
        async with (
            FaultProxy(kubeconfig) as proxy,
            operator(
                proxy,
                tmp_path,
                operator_namespace=RELEASE,
                metrics_port=port,
                metrics_authentication="token",
                metrics_tls_folder=tmp_path,
            ),
            httpx.AsyncClient(verify=trusted, timeout=60, trust_env=False) as http,
        ):

            async def read(token: str | None) -> httpx.Response:
                headers: dict[str, Any] = {"Authorization": f"Bearer {token}"} if token else {}
                return await http.get(f"https://127.0.0.1:{port}/metrics", headers=headers)

            async def is_permitted() -> bool:
                return (await read(prometheus)).status_code == 200

            # The API server reads bindings with a delay.
            await eventually("the binding is in force", is_permitted, every=1.0)
            assert "tritonpipe_reconciles_total" in (await read(prometheus)).text
            for token, status in ((None, 401), ("forged", 401), (stranger, 403)):
                refused = await read(token)
                assert (refused.status_code, "tritonpipe_" in refused.text) == (status, False)
            with pytest.raises(httpx.RemoteProtocolError):
                async with httpx.AsyncClient(timeout=60, trust_env=False) as plain:
                    await plain.get(f"http://127.0.0.1:{port}/metrics")
