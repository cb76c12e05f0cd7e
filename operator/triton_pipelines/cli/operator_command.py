"""``tritonpipe operator``: run the operator in its container."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Annotated

import typer

from triton_pipelines.app.composition import build_reconcile, classify
from triton_pipelines.app.config import OperatorConfig, OperatorConfigError, load_config
from triton_pipelines.app.log_setup import configure_logging
from triton_pipelines.app.main import run_operator
from triton_pipelines.autoscaling.metrics.connections_file import ConnectionsError
from triton_pipelines.cluster.leader_election import LeadershipLostError
from triton_pipelines.cluster.login import LoginError, load_configuration

from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .options import LoaderImage


def operator(
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Namespace to watch; repeatable. Default: the whole cluster."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="kubeconfig context, outside a cluster. Default: the current context.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="Pipelines reconciled at the same time. Default 8."),
    ] = None,
    resync_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval after which every pipeline is reconciled again. Default 600.",
        ),
    ] = None,
    relist_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval after which watches are compared with a list. Default 300.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /metrics. Default 8080.")
    ] = None,
    liveness_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of /healthz. Default 8081.")
    ] = None,
    metrics_authentication: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="none (default), or token: only permitted bearer tokens may read /metrics.",
        ),
    ] = None,
    metrics_tls_folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder with tls.crt and tls.key for /metrics. Default: no TLS."
        ),
    ] = None,
    operator_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace of the operator itself.")
    ] = None,
    operator_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the operator key.")
    ] = None,
    operator_key_secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the Secret with the operator key.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY=IMAGE",
            help="Triton image of a platform family (vllm, tensorrtllm);"
            " default=IMAGE for all others. Repeatable.",
        ),
    ] = None,
    loader_image: LoaderImage = None,
    image_pull_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Pull policy of these images: IfNotPresent (default), Always or Never.",
        ),
    ] = None,
    source_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX=TARGET",
            help="Read sources below PREFIX from TARGET instead; repeatable.",
        ),
    ] = None,
    substitute_runner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLATFORM",
            help="Platform to run on the CPU fallback backend, if the server lacks its backend;"
            " repeatable.",
        ),
    ] = None,
    custom_code: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="allow (default) or forbid custom code in pipelines."),
    ] = None,
    pod_template: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="What pipelines may set in their pods: allow, restricted (default) or forbid.",
        ),
    ] = None,
    service_accounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Service account that pipelines can use in addition to default; repeatable.",
        ),
    ] = None,
    inference_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Additional namespace whose pods can send inference requests to pipelines "
            "without inferenceFrom; * for every client. Repeatable.",
        ),
    ] = None,
    metrics_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Additional namespace whose pods can read metrics of pipelines without "
            "metricsFrom; * for every client. Repeatable.",
        ),
    ] = None,
    default_service_account: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Service account, in the pipeline's namespace, that the operator impersonates "
            "to write the pipeline's objects. Default: the operator's own account.",
        ),
    ] = None,
    impersonated_service_accounts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another service account that spec.serviceAccountName can name; repeatable.",
        ),
    ] = None,
    pod_metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Label or annotation that a restricted podTemplate can also set; * matches any "
            "text. Repeatable.",
        ),
    ] = None,
    max_concurrent_rollouts: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="Simultaneous rollouts that are not caused by a spec change. Default 5.",
        ),
    ] = None,
    metrics_connections: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Named Prometheus connections (YAML). Default: the operator scrapes the pods "
            "directly.",
        ),
    ] = None,
    prometheus_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of the connection named default, if it needs no other settings.",
        ),
    ] = None,
    monitoring_labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Label for the pipelines' PodMonitors and PrometheusRules; repeatable.",
        ),
    ] = None,
    monitoring_auto: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECT",
            help="Objects that Auto creates for a pipeline: podMonitor, prometheusRule"
            " (default both), or none; repeatable.",
        ),
    ] = None,
    docs_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of this project's docs folder; links of alerts to the runbooks start"
            " with it.",
        ),
    ] = None,
    leader_elect: Annotated[
        bool | None,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Reconcile only while holding a Lease; needed for more than one replica."
            " Default: no.",
        ),
    ] = None,
    leader_elect_lease: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the Lease.")
    ] = None,
    leader_elect_lease_duration_seconds: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            help="How long other replicas wait after the leader's last renewal. Default 15.",
        ),
    ] = None,
    leader_elect_renew_deadline_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time without a renewal after which the leader stops. Default 10.",
        ),
    ] = None,
    leader_elect_retry_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Interval between renewals, and between attempts to take over. Default 2.",
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info (default), warning or error.")
    ] = None,
) -> None:
    """Run the operator, as the chart does.

    Every option can also be set in the environment as TRITONPIPE_OPTION, lists separated by
    commas.
    """
    given = {
        "namespaces": namespace,
        "context": context,
        "workers": workers,
        "resync_seconds": resync_seconds,
        "relist_seconds": relist_seconds,
        "metrics_port": metrics_port,
        "liveness_port": liveness_port,
        "metrics_authentication": metrics_authentication,
        "metrics_tls_folder": metrics_tls_folder,
        "operator_namespace": operator_namespace,
        "operator_key_file": operator_key_file,
        "operator_key_secret": operator_key_secret,
        "images": image,
        "loader_image": loader_image,
        "image_pull_policy": image_pull_policy,
        "source_map": source_map,
        "substitute_runner": substitute_runner,
        "custom_code": custom_code,
        "pod_template": pod_template,
        "service_accounts": service_accounts,
        "inference_namespaces": inference_namespaces,
        "metrics_namespaces": metrics_namespaces,
        "default_service_account": default_service_account,
        "impersonated_service_accounts": impersonated_service_accounts,
        "pod_metadata": pod_metadata,
        "max_concurrent_rollouts": max_concurrent_rollouts,
        "metrics_connections": metrics_connections,
        "prometheus_url": prometheus_url,
        "monitoring_labels": monitoring_labels,
        "monitoring_auto": monitoring_auto,
        "docs_url": docs_url,
        "leader_elect": leader_elect,
        "leader_elect_lease": leader_elect_lease,
        "leader_elect_lease_duration_seconds": leader_elect_lease_duration_seconds,
        "leader_elect_renew_deadline_seconds": leader_elect_renew_deadline_seconds,
        "leader_elect_retry_seconds": leader_elect_retry_seconds,
        "log_level": log_level,
    }
    try:
        config = load_config(
            {key: value for key, value in given.items() if value not in (None, [])}
        )
        _ = config.connections  # report errors in them before anything runs
    except (OperatorConfigError, ConnectionsError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    configure_logging(config.log_level)
    asyncio.run(_run(config))


async def _run(config: OperatorConfig) -> None:
    """Run the operator.

    Without credentials it exits at once: waiting or retrying does not bring a kubeconfig.
    """
    try:
        await load_configuration(config.kubeconfig, config.context)
    except LoginError as error:
        raise CommandError(f"no cluster: {error.message}") from error
    # A full garbage collection visits every object and stops the process meanwhile. Most objects
    # are those of the imports, which stay.
    gc.freeze()
    try:
        await run_operator(config, build_reconcile, classify=classify)
    except ExceptionGroup as failure:
        lost = failure.subgroup(LeadershipLostError)
        if lost is None:
            raise
        raise CommandError(f"leadership lost: {_first(lost)}", EXIT_FAILED) from failure


def _first(group: ExceptionGroup[LeadershipLostError]) -> LeadershipLostError:
    error: BaseException = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LeadershipLostError)
    return error
