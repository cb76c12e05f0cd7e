"""Options of ``tritonpipe operator``: fields of its configuration, which has their types."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import typer

from triton_pipelines.app.config import OperatorConfig

# Fields whose options have another name.
_NAMES: Final = {"namespaces": "namespace", "images": "image"}
# Placeholder and help of the option of each field.
_OPTIONS: Final[Mapping[str, tuple[str | None, str]]] = {
    "namespaces": ("NAME", "Namespace to watch. Repeatable. Default: all namespaces."),
    "context": (
        "NAME",
        "kubeconfig context to use outside a cluster. Default: the current context.",
    ),
    "workers": (
        "COUNT",
        "Maximum number of pipelines that are reconciled at the same time. Default: 8.",
    ),
    "resync_seconds": (
        "SECONDS",
        "Interval between two reconciles of an unchanged pipeline. Default: 600.",
    ),
    "relist_seconds": (
        "SECONDS",
        "Interval at which watched objects are compared with a list from the API server. "
        "Default: 300.",
    ),
    "metrics_port": ("PORT", "Port of /metrics. Default: 8080."),
    "liveness_port": ("PORT", "Port of /healthz. Default: 8081."),
    "metrics_authentication": (
        "MODE",
        "Authentication for /metrics: none (the default), or token, which admits only "
        "clients with a permitted bearer token.",
    ),
    "metrics_tls_folder": (
        "FOLDER",
        "Directory with tls.crt and tls.key for /metrics. Default: no TLS.",
    ),
    "operator_namespace": ("NAME", "Namespace in which the operator runs."),
    "operator_key_file": ("FILE", "File with the operator key."),
    "operator_key_secret": ("NAME", "Name of the Secret with the operator key."),
    "images": (
        "FAMILY=IMAGE",
        "Triton image of a platform family (vllm, tensorrtllm). Use default=IMAGE for all "
        "other platforms. Repeatable.",
    ),
    "loader_image": ("IMAGE", "Image of the init container, which is the operator's image."),
    "image_pull_policy": (
        "POLICY",
        "Pull policy of these images: IfNotPresent (the default), Always or Never.",
    ),
    "source_map": (
        "PREFIX=TARGET",
        "Read sources whose URI starts with PREFIX from TARGET instead. Repeatable.",
    ),
    "substitute_runner": (
        "PLATFORM",
        "Platform that runs on the CPU fallback backend if the server does not contain its "
        "backend. Repeatable.",
    ),
    "custom_code": (
        "MODE",
        "Whether pipelines can contain custom code: allow (the default) or forbid.",
    ),
    "pod_template": (
        "MODE",
        "Pod settings that pipelines can use: allow, restricted (the default) or forbid.",
    ),
    "service_accounts": (
        "NAME",
        "Service account that pipelines can use in addition to default. Repeatable.",
    ),
    "inference_namespaces": (
        "NAMESPACE",
        "Additional namespace whose pods can send inference requests to pipelines without "
        "inferenceFrom. * means every client. Repeatable.",
    ),
    "metrics_namespaces": (
        "NAMESPACE",
        "Additional namespace whose pods can read metrics of pipelines without metricsFrom."
        " * means every client. Repeatable.",
    ),
    "default_service_account": (
        "NAME",
        "Service account, in the pipeline's namespace, that the operator impersonates to "
        "write the pipeline's objects. Default: the operator's own account.",
    ),
    "impersonated_service_accounts": (
        "NAME",
        "Additional service account that spec.serviceAccountName can name. Repeatable.",
    ),
    "pod_metadata": (
        "KEY",
        "Label or annotation that a restricted podTemplate can set in addition. * matches "
        "any text. Repeatable.",
    ),
    "max_concurrent_rollouts": (
        "COUNT",
        "Maximum number of simultaneous rollouts that are not caused by a spec change. Default: 5.",
    ),
    "metrics_connections": (
        "FILE",
        "Named Prometheus connections (YAML). Default: the operator scrapes the pods directly.",
    ),
    "prometheus_url": (
        "URL",
        "URL of the connection named default, if it needs no other settings.",
    ),
    "monitoring_labels": (
        "LABEL=VALUE",
        "Label that is added to the pipelines' PodMonitors and PrometheusRules. Repeatable.",
    ),
    "monitoring_auto": (
        "OBJECT",
        "Objects that Auto creates for a pipeline: podMonitor, prometheusRule or none. "
        "Default: both. Repeatable.",
    ),
    "docs_url": (
        "URL",
        "URL of this project's docs directory, used as the prefix of runbook links in alerts.",
    ),
    "leader_elect": (
        None,
        "Reconcile only while this process holds the Lease. Required for more than one "
        "replica. Default: no.",
    ),
    "leader_elect_lease": ("NAME", "Name of the Lease."),
    "leader_elect_lease_duration_seconds": (
        "SECONDS",
        "Time that other replicas wait after the leader's last renewal before they take "
        "over. Default: 15.",
    ),
    "leader_elect_renew_deadline_seconds": (
        "SECONDS",
        "Time without a renewal after which the leader stops. Default: 10.",
    ),
    "leader_elect_retry_seconds": (
        "SECONDS",
        "Interval between renewals, and between attempts to take over. Default: 2.",
    ),
    "log_level": ("LEVEL", "Log level: debug, info (the default), warning or error."),
}


def option_parameters() -> list[inspect.Parameter]:
    """Return the options. They have no defaults: those of the configuration hold."""
    return [
        inspect.Parameter(
            _NAMES.get(field, field),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_type(field) | None, typer.Option(metavar=metavar, help=text)],
        )
        for field, (metavar, text) in _OPTIONS.items()
    ]


def given_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were given by field of the configuration."""
    fields = {_NAMES.get(field, field): field for field in _OPTIONS}
    return {fields[name]: value for name, value in options.items() if value not in (None, [])}


def _type(field: str) -> Any:
    """Return the type of a field's option: what the configuration parses itself is text."""
    annotation: Any = OperatorConfig.model_fields[field].annotation
    if get_origin(annotation) in (tuple, frozenset, Mapping):
        return list[str]
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in (bool, int, float, Path) if kind in kinds), str)
