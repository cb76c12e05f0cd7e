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
            metavar="NAME", help="Namespace to watch; repeatable. Default: the whole cluster."
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
            help=("Maximum number of pipelines that are reconciled at the same time. Default 8."),
        ),
    ] = None
    resync_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval between two reconciles of an unchanged pipeline. Default 600.",
        ),
    ] = None
    relist_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval between comparisons of the watches with a list. Default 300.",
        ),
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /metrics. Default 8080.")
    ] = None
    liveness_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /healthz. Default 8081.")
    ] = None
    metrics_authentication: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help=(
                "none (default), or token: only clients with a permitted bearer token can read "
                "/metrics."
            ),
        ),
    ] = None
    metrics_tls_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder with tls.crt and tls.key for /metrics. Default: no TLS."
        ),
    ] = None
    operator_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace of the operator itself.")
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
            help="Triton image of a platform family (vllm, tensorrtllm);"
            " default=IMAGE for all others. Repeatable.",
        ),
    ] = None
    loader_image: LoaderImage = None
    image_pull_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Pull policy of these images: IfNotPresent (default), Always or Never.",
        ),
    ] = None
    source_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX=TARGET",
            help="Read sources below PREFIX from TARGET instead; repeatable.",
        ),
    ] = None
    substitute_runner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLATFORM",
            help="Platform to run on the CPU fallback backend, if the server does not contain its "
            "backend; repeatable.",
        ),
    ] = None
    custom_code: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="allow (default) or forbid custom code in pipelines."),
    ] = None
    pod_template: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Which pod settings pipelines can use: allow, restricted (default) or forbid.",
        ),
    ] = None
    service_accounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Service account that pipelines can use in addition to default; repeatable.",
        ),
    ] = None
    inference_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Additional namespace whose pods can send inference requests to pipelines "
            "without inferenceFrom; * for every client. Repeatable.",
        ),
    ] = None
    metrics_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Additional namespace whose pods can read metrics of pipelines without "
            "metricsFrom; * for every client. Repeatable.",
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
            help="Another service account that spec.serviceAccountName can name; repeatable.",
        ),
    ] = None
    pod_metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Label or annotation that a restricted podTemplate can also set; * matches any "
            "text. Repeatable.",
        ),
    ] = None
    max_concurrent_rollouts: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help=(
                "Maximum number of simultaneous rollouts that are not caused by a spec change. "
                "Default 5."
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
            help="Label for the pipelines' PodMonitors and PrometheusRules; repeatable.",
        ),
    ] = None
    monitoring_auto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECT",
            help="Objects that Auto creates for a pipeline: podMonitor, prometheusRule"
            " (default both), or none; repeatable.",
        ),
    ] = None
    docs_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of this project's docs folder, used as the prefix of runbook links in "
            "alerts.",
        ),
    ] = None
    leader_elect: Annotated[
        bool | None,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Reconcile only while holding a Lease; needed for more than one replica."
            " Default: no.",
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
                "How long other replicas wait after the leader's last renewal before they take "
                "over. Default 15."
            ),
        ),
    ] = None
    leader_elect_renew_deadline_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time without a renewal after which the leader stops. Default 10.",
        ),
    ] = None
    leader_elect_retry_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval between renewals, and between attempts to take over. Default 2.",
        ),
    ] = None
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info (default), warning or error.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the values that were given by field of the configuration."""
        values = {
            _FIELDS.get(item.name, item.name): getattr(self, item.name) for item in fields(self)
        }
        return {name: value for name, value in values.items() if value not in (None, [])}
