"""Which clusters the end-to-end suite may touch."""

from pathlib import Path

import pytest
import yaml

from e2e.suite.access import (
    AccessError,
    Images,
    choose,
    keep,
    own_cluster,
    require_one_worker,
)


def kubeconfig(folder: Path, context: str) -> dict[str, str]:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": context})
    )
    return {"KUBECONFIG": str(path)}


@pytest.mark.parametrize("context", ["kind-gpu", "tritonpipe-local"])
def test_disposable_clusters_are_used(tmp_path: Path, context: str) -> None:
    chosen = choose(kubeconfig(tmp_path, context))
    assert chosen is not None
    assert chosen.context == context
    assert chosen.local is None  # the file is not the local cluster's own


@pytest.mark.parametrize("context", ["production", "my-kind-cluster", "gke_kind-"])
def test_other_clusters_are_refused_with_the_variable_to_set(tmp_path: Path, context: str) -> None:
    with pytest.raises(
        AccessError, match=rf"context '{context}' is not on .* set E2E_CONTEXTS={context}$"
    ):
        choose(kubeconfig(tmp_path, context))


def test_the_allow_list_replaces_the_default(tmp_path: Path) -> None:
    environment = kubeconfig(tmp_path, "staging-eu") | {"E2E_CONTEXTS": " other, staging-* "}
    assert choose(environment) is not None
    with pytest.raises(AccessError):
        choose(kubeconfig(tmp_path, "kind-gpu") | {"E2E_CONTEXTS": "staging-*"})


def test_without_kubeconfig_the_suite_makes_its_own() -> None:
    assert choose({}) is None
    assert choose({"KUBECONFIG": ""}) is None


def test_each_worker_starts_a_cluster_of_its_own() -> None:
    workers = ({}, {"PYTEST_XDIST_WORKER": "gw0"}, {"PYTEST_XDIST_WORKER": "gw1"})
    assert [own_cluster(environment) for environment in workers] == ["e2e", "e2e-gw0", "e2e-gw1"]


def test_workers_do_not_share_a_given_cluster(tmp_path: Path) -> None:
    given = kubeconfig(tmp_path, "kind-gpu")
    with pytest.raises(AccessError, match=r"^KUBECONFIG=.* 2 workers; run it without -n"):
        require_one_worker(given, 2)
    require_one_worker(given, 0)
    require_one_worker({}, 2)


def test_an_unreadable_kubeconfig_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("{}")
    for name in ("missing", "empty"):
        with pytest.raises(AccessError, match=r"^KUBECONFIG=.*current context"):
            choose({"KUBECONFIG": str(tmp_path / name)})


def test_keep_and_images_follow_the_environment() -> None:
    assert keep({"KEEP": "1"})
    assert not keep({"KEEP": "0"})
    assert not keep({})
    assert (
        Images.of({"E2E_TRITON_IMAGE": "nvcr.io/nvidia/tritonserver:24.10-py3"}).triton
        == "nvcr.io/nvidia/tritonserver:24.10-py3"
    )
