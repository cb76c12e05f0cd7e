"""The operator as the chart starts it, for tests without a node.

Its settings come from the rendered pod, its rights from its own account.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml


def operator_container(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The one container of the one Deployment among rendered objects."""
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(
    objects: Sequence[Mapping[str, Any]], *, namespace: str, pod: str
) -> dict[str, str]:
    """The operator's environment as the kubelet would set it in a pod of that name."""
    fields = {"metadata.namespace": namespace, "metadata.name": pod}
    found: dict[str, str] = {}
    for item in operator_container(objects)["env"]:
        source = item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[item["name"]] = fields[source] if source else item["value"]
    return found


def account_kubeconfig(
    connection: httpx.Client, admin: Path, target: Path, namespace: str, account: str
) -> Path:
    """Write a kubeconfig with a service account token that is valid for one hour.

    The cluster is that of the administrator's kubeconfig.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    answer = connection.post(path, json=request)
    answer.raise_for_status()
    config = yaml.safe_load(admin.read_text())
    cluster = config["clusters"][0]["cluster"]
    assert base64.b64decode(cluster["certificate-authority-data"])
    config["users"][0]["user"] = {"token": answer.json()["status"]["token"]}
    target.write_text(yaml.safe_dump(config))
    return target
