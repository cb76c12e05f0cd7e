"""TLS Secrets on a real API server, with exactly the rights that the chart gives the operator."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from e2e.local import api
from tests.support import builders
from tests.support.certificates import Authority
from tests.support.chart import account_kubeconfig
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import FaultProxy
from tests.support.operators import apply_any, eventually, operator
from tests.support.permissions import rights_of_the_chart
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, SECRETS
from triton_pipelines.controllers.pipeline import tls_secret

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
AUTHORITY = Authority(dt.datetime.now(dt.UTC))
SECONDS = 60.0


def secret(namespace: str, name: str, content: Mapping[str, bytes]) -> Object:
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


async def is_reported(admin: Client, namespace: str, reason: str, words: str) -> bool:
    found = await admin.get(INFERENCE_PIPELINES, namespace, "p")
    return any(
        item["type"] == "Ready" and item["reason"] == reason and words in item["message"]
        for item in (found.get("status") or {}).get("conditions", ())
    )


async def certificates(admin: Client, namespace: str) -> list[str]:
    """What the Deployment's pods are created for."""
    return [
        item["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_CERTIFICATE]
        for item in (await admin.list(DEPLOYMENTS, namespace)).items
    ]


async def test_a_secret_is_read_if_the_chart_grants_its_name(
    admin: Client,
    control_plane: ControlPlane,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_secret, "POLL_SECONDS", 1.0)  # else 30 s for each change
    release = "tls-triton-pipelines"
    await rights_of_the_chart(
        admin, release, "--set", f"watch.namespaces={{{namespace}}}", "--set", "rbac.nodes=false"
    )
    with api.client(control_plane.kubeconfig) as connection:
        kubeconfig = account_kubeconfig(
            connection, control_plane.kubeconfig, tmp_path / "account", release, release
        )
    document = builders.document(
        name="p", namespace=namespace, server={"tls": {"secretName": "certs"}}
    )
    document["metadata"].pop("uid")
    waits = partial(is_reported, admin, namespace, "InvalidCertificate")
    async with (
        FaultProxy(kubeconfig) as proxy,
        operator(
            proxy,
            tmp_path,
            namespace,
            operator_namespace=release,
            operator_key_file=tmp_path / "new",
        ),
    ):
        await apply_any(admin, INFERENCE_PIPELINES, document)
        await eventually(
            "the missing right is reported",
            partial(waits, "add the Secret to rbac.tlsSecrets"),
            SECONDS,
        )
        await rights_of_the_chart(
            admin,
            release,
            *("--set", f"watch.namespaces={{{namespace}}}", "--set", "rbac.nodes=false"),
            *("--set", "rbac.tlsSecrets={certs}"),
        )
        await eventually(
            "the missing Secret is reported", partial(waits, "does not exist in"), 2 * SECONDS
        )
        mixed = AUTHORITY.secret() | {"tls.key": AUTHORITY.secret()["tls.key"]}
        await apply_any(admin, SECRETS, secret(namespace, "certs", mixed))
        await eventually(
            "the wrong key is reported", partial(waits, "tls.key does not match"), 2 * SECONDS
        )
        assert await certificates(admin, namespace) == []
        await apply_any(admin, SECRETS, secret(namespace, "certs", AUTHORITY.secret()))

        async def created() -> bool:
            return len(await certificates(admin, namespace)) == 1

        await eventually("the Deployment is created", created, 2 * SECONDS)
        (before,) = await certificates(admin, namespace)
        await apply_any(admin, SECRETS, secret(namespace, "certs", AUTHORITY.secret()))

        async def rolled() -> bool:
            return await certificates(admin, namespace) != [before]

        await eventually("the new certificate is rolled out", rolled, 2 * SECONDS)
    targets = {
        seen.target.split("?")[0]
        for seen in proxy.requests
        if "/secrets" in seen.target and seen.method == "GET"
    }
    assert targets == {f"/api/v1/namespaces/{namespace}/secrets/certs"}


async def test_no_other_secret_can_be_read(
    admin: Client, control_plane: ControlPlane, namespace: str
) -> None:
    release = "tls-other-triton-pipelines"
    await rights_of_the_chart(admin, release, "--set", "rbac.tlsSecrets={certs}")
    for name in ("certs", "other"):
        await apply_any(admin, SECRETS, secret(namespace, name, {"tls.crt": b"public"}))
    with api.client(control_plane.kubeconfig) as connection:
        connection.headers["Impersonate-User"] = f"system:serviceaccount:{release}:{release}"
        path = f"/api/v1/namespaces/{namespace}/secrets"
        assert connection.get(f"{path}/certs").status_code == 200
        for refused in (f"{path}/other", path, f"{path}?fieldSelector=metadata.name=other"):
            assert connection.get(refused).status_code == 403
