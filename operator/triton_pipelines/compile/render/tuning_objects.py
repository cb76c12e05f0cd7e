"""Render the objects of a tuning run: a canary and the Job that measures it.

The canary is a pod of the revision outside the Service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.graph.quantities import millis
from triton_pipelines.compile.graph.server_settings import without_tls

from .network_policies import egress_fields, operator_peer
from .objects import owner, strategy
from .pod import UID, server_container
from .pod_volumes import mounted_tls

# Total time limit of a Job in seconds. Quick measures for less than three minutes; the rest is for
# a slow start of its image.
JOB_SECONDS = {TuningMode.QUICK: 900, TuningMode.THOROUGH: 5400}
# Neither pod serves clients, so neither has to drain. A serving pod may be waiting for the
# resources: a rollout that cannot place a pod for ten seconds stops an old one.
GRACE_SECONDS = 1
FILE_PIPELINE, FILE_OPTIONS, FILE_KEY = "pipeline.json", "operator.yaml", "admin-key"
VOLUME_CONTROL, VOLUME_TUNING = "control", "tuning"


def run_labels(pipeline: str, run: str, component: str) -> dict[str, str]:
    """Return the labels of a run's objects: the pipeline's, without those its Service selects."""
    return {**names.labels(pipeline), names.LABEL_COMPONENT: component, names.LABEL_RUN: run}


def _selector(pipeline: str, run: str, component: str) -> dict[str, str]:
    labels = run_labels(pipeline, run, component)
    return {
        key: labels[key] for key in (names.LABEL_PIPELINE, names.LABEL_COMPONENT, names.LABEL_RUN)
    }


def _object(
    pipeline: InferencePipeline, run: str, api_version: str, kind: str, component: str, **body: Any
) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": names.tuning_name(pipeline.name, run, component),
            "namespace": pipeline.namespace,
            "labels": run_labels(pipeline.name, run, component),
            "ownerReferences": [owner(pipeline)],
        },
        **body,
    }


def canary(
    pipeline: InferencePipeline, run: str, template: Mapping[str, Any], deadline_seconds: int
) -> dict[str, Any]:
    """Return a Deployment of one pod, created from the revision's own template.

    The pod has the same resources, GPUs and models, so that its figures hold for the other pods.
    It is a Deployment and not a bare pod because the operator may not create pods. It omits the
    template's priority class, so that it preempts no other pod and is the first to be preempted.
    """
    copy = deepcopy(dict(template))
    copy["metadata"] = {**copy.get("metadata", {})}
    copy["metadata"]["labels"] = {
        **copy["metadata"].get("labels", {}),
        **run_labels(pipeline.name, run, names.COMPONENT_CANARY),
    }
    copy["spec"]["terminationGracePeriodSeconds"] = GRACE_SECONDS
    copy["spec"].pop("priorityClassName", None)
    for container in copy["spec"]["containers"]:
        container.pop("lifecycle", None)
    _remove_tls(copy)
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": _selector(pipeline.name, run, names.COMPONENT_CANARY)},
        "strategy": strategy(RolloutStrategy.RECREATE),
        "progressDeadlineSeconds": deadline_seconds,
        "revisionHistoryLimit": 0,
        "template": copy,
    }
    return _object(pipeline, run, "apps/v1", "Deployment", names.COMPONENT_CANARY, spec=spec)


def _remove_tls(template: dict[str, Any]) -> None:
    """Let a pod serve in plaintext, and without the private key.

    Only the Job and the operator may reach it; the Job sends sample requests over HTTP.
    """
    tls, spec = mounted_tls(template), template["spec"]
    if tls is None:
        return
    spec["volumes"] = [item for item in spec["volumes"] if item["name"] != names.VOLUME_TLS]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        if mounts := container.get("volumeMounts"):
            kept = [item for item in mounts if item["name"] != names.VOLUME_TLS]
            container["volumeMounts"] = kept
        if container["name"] == names.CONTAINER_SERVER:
            container["args"] = without_tls(container["args"], tls.mode)


def inputs(
    pipeline: InferencePipeline,
    run: str,
    document: Mapping[str, Any],
    server_image: str,
    options: Options,
) -> dict[str, Any]:
    """Return the ConfigMap that the Job reads.

    It contains the resource, and the operator's options that it was rendered with.
    """
    # Options of the operator's configuration. With other ones, the Job would judge the resource
    # by other rules than the operator.
    used_options = {
        "images": {"default": server_image, **options.family_images},
        "loader_image": options.loader_image,
        "image_pull_policy": options.image_pull_policy,
        "source_map": list(options.source_map),
        "substitute_runner": sorted(options.substitute_runner),
        "custom_code": "allow" if options.custom_code_allowed else "forbid",
        "pod_template": options.pod_template.value,
        "service_accounts": list(options.service_accounts),
        "inference_namespaces": list(options.inference_namespaces),
        "metrics_namespaces": list(options.metrics_namespaces),
        "default_service_account": options.default_account,
        "impersonated_service_accounts": list(options.impersonated_accounts or ()),
        "pod_metadata": list(options.pod_metadata),
        "operator_key_secret": options.operator_key_secret,
        "operator_namespace": options.operator_namespace,
    }
    data = {
        FILE_PIPELINE: json.dumps(document, sort_keys=True, indent=1),
        FILE_OPTIONS: json.dumps(used_options, sort_keys=True),
    }
    return _object(pipeline, run, "v1", "ConfigMap", names.COMPONENT_CANARY, data=data)


def policies(
    pipeline: InferencePipeline, run: str, operator_namespace: str
) -> list[dict[str, Any]]:
    """Return the network policies of a tuning run; none if the pipeline has none either.

    The Job may reach only the canary. Only the Job and the operator may reach the canary, which may
    reach what the pipeline's pods may reach.
    """
    if pipeline.spec.server.network_policy.mode is Switch.DISABLED:
        return []
    egress = egress_fields(pipeline)
    ports = [{"port": port, "protocol": "TCP"} for port in ("http", "grpc", "metrics")]
    canary_pods, tuner_pods = (
        {"podSelector": {"matchLabels": _selector(pipeline.name, run, component)}}
        for component in (names.COMPONENT_CANARY, names.COMPONENT_TUNER)
    )
    to_canary = {
        **canary_pods,
        "policyTypes": ["Ingress", "Egress"] if egress else ["Ingress"],
        "ingress": [{"ports": ports, "from": [tuner_pods, operator_peer(operator_namespace)]}],
        **egress,
    }
    from_tuner = {
        **tuner_pods,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [{"ports": ports, "to": [canary_pods]}],
    }
    return [
        _object(
            pipeline,
            run,
            "networking.k8s.io/v1",
            "NetworkPolicy",
            names.COMPONENT_CANARY,
            spec=to_canary,
        ),
        _object(
            pipeline,
            run,
            "networking.k8s.io/v1",
            "NetworkPolicy",
            names.COMPONENT_TUNER,
            spec=from_tuner,
        ),
    ]


def job(
    pipeline: InferencePipeline,
    run: str,
    revision: str,
    address: str,
    template: Mapping[str, Any],
    options: Options,
) -> dict[str, Any]:
    """Return the Job that runs ``tritonpipe tune`` against the canary.

    The Job has no API token. The control key of the revision is mounted as a file, and the result
    goes into the termination message.

    Args:
        pipeline: The pipeline to tune.
        run: Name of the tuning run.
        revision: The revision that the canary runs.
        address: IP address of the canary.
        template: Pod template of the revision.
        options: Options of the operator.
    """
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_tuner(pipeline, address, template, options)],
        "volumes": _tuner_volumes(pipeline, run, revision),
    }
    if pull_secrets := (template.get("spec") or {}).get("imagePullSecrets"):
        pod["imagePullSecrets"] = list(pull_secrets)
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": JOB_SECONDS[_mode(pipeline)],
        "template": {
            "metadata": {"labels": run_labels(pipeline.name, run, names.COMPONENT_TUNER)},
            "spec": pod,
        },
    }
    return _object(pipeline, run, "batch/v1", "Job", names.COMPONENT_TUNER, spec=spec)


def _mode(pipeline: InferencePipeline) -> TuningMode:
    return pipeline.spec.tuning.mode or TuningMode.QUICK


def _tuner(
    pipeline: InferencePipeline, address: str, template: Mapping[str, Any], options: Options
) -> dict[str, Any]:
    """Return the container of the Job."""
    host = f"[{address}]" if ":" in address else address
    arguments = [
        "tune",
        f"{names.PATH_TUNING}/{FILE_PIPELINE}",
        f"--server={host}:{names.PORT_GRPC}",
        f"--control-key-file={names.PATH_CONTROL}/{FILE_KEY}",
        f"--operator-config={names.PATH_TUNING}/{FILE_OPTIONS}",
        f"--report-file={names.PATH_TERMINATION}",
        *([f"--cores={cores:g}"] if (cores := _cores(template)) else []),
        *(["--thorough"] if _mode(pipeline) is TuningMode.THOROUGH else []),
    ]
    return {
        "name": names.CONTAINER_TUNER,
        "image": options.loader_image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["tritonpipe"],
        "args": arguments,
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - an emptyDir of the pod
        "volumeMounts": [
            {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108
            {"name": VOLUME_TUNING, "mountPath": names.PATH_TUNING, "readOnly": True},
            {"name": VOLUME_CONTROL, "mountPath": names.PATH_CONTROL, "readOnly": True},
        ],
        # The tuner generates the load of many clients and must not be the bottleneck.
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": names.PATH_TERMINATION,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _tuner_volumes(pipeline: InferencePipeline, run: str, revision: str) -> list[dict[str, Any]]:
    key = {
        "secretName": names.revision_name(pipeline.name, revision),
        "items": [{"key": names.KEY_CONTROL, "path": FILE_KEY}],
    }
    return [
        {"name": names.VOLUME_TMP, "emptyDir": {}},
        {"name": VOLUME_TUNING, "configMap": {"name": names.tuning_name(pipeline.name, run)}},
        {"name": VOLUME_CONTROL, "secret": {**key, "defaultMode": 0o440}},
    ]


def _cores(template: Mapping[str, Any]) -> float:
    """Return the CPU cores that Triton may use in a pod; 0 without a limit."""
    resources = server_container(template).get("resources") or {}
    limit = (resources.get("limits") or {}).get("cpu")
    return millis(str(limit)) / 1000 if limit else 0.0
