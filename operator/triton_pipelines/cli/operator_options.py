"""Options of ``tritonpipe operator``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .options import LoaderImage

# Options whose fields in the configuration have another name.
_FIELDS: Final = {"namespace": "namespaces", "image": "images"}


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Fields of :class:`~triton_pipelines.app.config.OperatorConfig`, which has their defaults."""

    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Namespace to watch. Repeatable. Default: all namespaces."
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="kubeconfig context to use outside a cluster. Default: the current context.",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Maximum number of pipelines that are reconciled at the same time. Default: 8.",
        ),
    ] = None
    resync_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval between two reconciles of an unchanged pipeline. Default: 600.",
        ),
    ] = None
    relist_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help=(
                "Interval at which watched objects are compared with a list from the API "
                "server. Default: 300."
            ),
        ),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /metrics. Default: 8080.")
    ] = None
    liveness_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /healthz. Default: 8081.")
    ] = None
    metrics_authentication: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help=(
                "Authentication for /metrics: none (the default), or token, which admits only "
                "clients with a permitted bearer token."
            ),
        ),
    ] = None
    metrics_tls_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Directory with tls.crt and tls.key for /metrics. Default: no TLS.",
        ),
    ] = None
    operator_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace in which the operator runs.")
    ] = None
    operator_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the operator key.")
    ] = None
    operator_key_secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the Secret with the operator key.")
    ] = None
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY=IMAGE",
            help="Triton image of a platform family (vllm, tensorrtllm). Use default=IMAGE for "
            "all other platforms. Repeatable.",
        ),
    ] = None
    loader_image: LoaderImage = None
    image_pull_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Pull policy of these images: IfNotPresent (the default), Always or Never.",
        ),
    ] = None
    source_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX=TARGET",
            help="Read sources whose URI starts with PREFIX from TARGET instead. Repeatable.",
        ),
    ] = None
    substitute_runner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLATFORM",
            help="Platform that runs on the CPU fallback backend if the server does not "
            "contain its backend. Repeatable.",
        ),
    ] = None
    custom_code: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Whether pipelines can contain custom code: allow (the default) or forbid.",
        ),
    ] = None
    pod_template: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help=(
                "Pod settings that pipelines can use: allow, restricted (the default) or forbid."
            ),
        ),
    ] = None
    service_accounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Service account that pipelines can use in addition to default. Repeatable.",
        ),
    ] = None
    inference_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Additional namespace whose pods can send inference requests to pipelines "
            "without inferenceFrom. * means every client. Repeatable.",
        ),
    ] = None
    metrics_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Additional namespace whose pods can read metrics of pipelines without "
            "metricsFrom. * means every client. Repeatable.",
        ),
    ] = None
    default_service_account: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Service account, in the pipeline's namespace, that the operator impersonates "
            "to write the pipeline's objects. Default: the operator's own account.",
        ),
    ] = None
    impersonated_service_accounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Additional service account that spec.serviceAccountName can name. Repeatable.",
        ),
    ] = None
    pod_metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Label or annotation that a restricted podTemplate can set in addition. * "
            "matches any text. Repeatable.",
        ),
    ] = None
    max_concurrent_rollouts: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help=(
                "Maximum number of simultaneous rollouts that are not caused by a spec change. "
                "Default: 5."
            ),
        ),
    ] = None
    metrics_connections: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Named Prometheus connections (YAML). Default: the operator scrapes the pods "
            "directly.",
        ),
    ] = None
    prometheus_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of the connection named default, if it needs no other settings.",
        ),
    ] = None
    monitoring_labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help=(
                "Label that is added to the pipelines' PodMonitors and PrometheusRules. Repeatable."
            ),
        ),
    ] = None
    monitoring_auto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECT",
            help="Objects that Auto creates for a pipeline: podMonitor, prometheusRule or "
            "none. Default: both. Repeatable.",
        ),
    ] = None
    docs_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of this project's docs directory, used as the prefix of runbook links "
            "in alerts.",
        ),
    ] = None
    leader_elect: Annotated[
        bool | None,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Reconcile only while this process holds the Lease. Required for more than "
            "one replica. Default: no.",
        ),
    ] = None
    leader_elect_lease: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the Lease.")
    ] = None
    leader_elect_lease_duration_seconds: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            help=(
                "Time that other replicas wait after the leader's last renewal before they "
                "take over. Default: 15."
            ),
        ),
    ] = None
    leader_elect_renew_deadline_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time without a renewal after which the leader stops. Default: 10.",
        ),
    ] = None
    leader_elect_retry_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval between renewals, and between attempts to take over. Default: 2.",
        ),
    ] = None
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="Log level: debug, info (the default), warning or error."
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the values that were given by field of the configuration."""
        values = {
            _FIELDS.get(item.name, item.name): getattr(self, item.name) for item in fields(self)
        }
        return {name: value for name, value in values.items() if value not in (None, [])}
