"""The real operator process with the chart's settings and rights on a real API server.

Nothing that it requests is refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.local import api
from hack import chart
from tests.support.controlplane import ControlPlane
from tests.support.installed import DEADLINE_SECONDS, InstalledOperator, installed_operator
from tests.support.operators import CRD_FILE
from triton_pipelines.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_PIPELINES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SAMPLE = yaml.safe_load((chart.MANIFESTS / "samples" / "sentiment.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """Start a control plane with a scheduler.

    The scheduler reports, for lack of nodes, that pods do not fit, and the operator then lists the
    nodes. The CRD is installed before the garbage collector starts, which looks for new kinds only
    every 30 s.
    """
    with ControlPlane(controllers=True, scheduler=True, crds=(CRD_FILE,)) as plane:
        yield plane


def tell_a_story(operator: InstalledOperator, namespace: str) -> dict[str, Any]:
    """Create a pipeline, change it, delete one of its children, then delete it.

    The operator reacts to each step. Returns the pipeline's last status.
    """
    connection = operator.connection
    path = INFERENCE_PIPELINES.path(namespace, NAME)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = connection.get(path).json().get("status", {})
        return found

    api.apply(connection, path, SAMPLE)
    api.wait_for(
        "WaitingForGPU or alike",
        lambda: "Waiting" in str(status().get("conditions")),
        DEADLINE_SECONDS,
    )
    revision = status()["revision"]
    changed = {
        **SAMPLE,
        "spec": {**SAMPLE["spec"], "tokenizer": {**SAMPLE["spec"]["tokenizer"], "maxLength": 64}},
    }
    api.apply(connection, path, changed)
    api.wait_for("the next revision", lambda: status()["revision"] != revision, DEADLINE_SECONDS)
    live = CONFIG_MAPS.path(namespace, f"{NAME}-live")
    api.wait_for(
        "the live ConfigMap", lambda: connection.get(live).status_code == 200, DEADLINE_SECONDS
    )
    uid = connection.get(live).json()["metadata"]["uid"]
    connection.delete(live).raise_for_status()
    api.wait_for(
        "its repair",
        lambda: connection.get(live).json().get("metadata", {}).get("uid", uid) != uid,
        DEADLINE_SECONDS,
    )
    last = status()
    connection.delete(path).raise_for_status()
    deployment = DEPLOYMENTS.path(namespace, NAME)
    api.wait_for(
        "children gone", lambda: connection.get(deployment).status_code == 404, DEADLINE_SECONDS
    )
    return last


def test_cluster_wide_operator_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    with installed_operator(cluster, tmp_path, "wide") as operator:
        tell_a_story(operator, "default")
        assert operator.refused() == set()
        assert "orbidden" not in operator.log.read_text()


def test_namespaced_operator_is_refused_nodes_alone(cluster: ControlPlane, tmp_path: Path) -> None:
    with api.client(cluster.kubeconfig) as connection:
        api.apply(
            connection,
            "/api/v1/namespaces/team",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
        )
    with installed_operator(
        cluster, tmp_path, "scoped", "--set", "watch.namespaces={team}"
    ) as operator:
        tell_a_story(operator, "team")
        assert operator.refused() == {("list", "nodes")}
