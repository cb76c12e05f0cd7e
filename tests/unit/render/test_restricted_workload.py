"""What a recorded pod template may not give the pods of a pipeline."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from tests.support.builders import built, options
from tests.support.golden import CASES, path_of
from triton_pipelines.api import names
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render.objects import deployment
from triton_pipelines.compile.render.preflight_objects import preflight_job
from triton_pipelines.compile.render.restricted_workload import unsafe_fields

REVISION = "0123456789"


def paths(workload: dict[str, Any], mode: PodTemplateMode = PodTemplateMode.RESTRICTED) -> set[str]:
    return {finding.path for finding in unsafe_fields(workload, options(pod_template=mode))}


def workload() -> dict[str, Any]:
    one = built()
    return deployment(one.pipeline, one.render().template, RolloutStrategy.SURGE, 1)


# The other one is rendered with --pod-template=allow.
@pytest.mark.parametrize("case", [case for case in CASES if case != "everything"])
def test_everything_that_is_rendered_is_safe(case: str) -> None:
    parts = path_of(case).read_text(encoding="utf-8").split("===== ")
    objects = [yaml.safe_load(part.split("\n", 1)[1]) for part in parts if "\nkind: " in part]
    (item,) = (item for item in objects if item["kind"] == "Deployment")
    accounts = (item["spec"]["template"]["spec"].get("serviceAccountName") or "default",)
    assert list(unsafe_fields(item, options(service_accounts=accounts))) == []


def test_a_preflight_is_safe() -> None:
    one = built()
    assert paths(preflight_job(one.pipeline, REVISION, one.render().template)) == set()


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"hostNetwork": True}, "spec.hostNetwork"),
    ({"serviceAccountName": "cluster-admin"}, "spec.serviceAccountName"),
    ({"automountServiceAccountToken": True}, "spec.automountServiceAccountToken"),
    ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "spec.volumes[x].hostPath"),
    (
        {"volumes": [{"name": "x", "secret": {"secretName": f"other-{REVISION}"}}]},
        "spec.volumes[x].secret.secretName",
    ),
    (
        {"containers": [{"name": "x", "securityContext": {"privileged": True}}]},
        "spec.containers[x].securityContext.privileged",
    ),
]


@pytest.mark.parametrize(("change", "path"), CHANGES)
def test_a_changed_template_is_found(change: dict[str, Any], path: str) -> None:
    changed = copy.deepcopy(workload())
    changed["spec"]["template"]["spec"] |= change
    assert paths(changed) == {f"spec.template.{path}"}
    assert paths(changed, PodTemplateMode.FORBID) == {f"spec.template.{path}"}
    assert paths(changed, PodTemplateMode.ALLOW) == set()


def test_labels_that_join_another_service_are_found() -> None:
    changed = copy.deepcopy(workload())
    changed["spec"]["template"]["metadata"]["labels"] |= {"app": "bank", names.LABEL_NAME: "x"}
    assert paths(changed) == {"spec.template.metadata.labels[app]"}
