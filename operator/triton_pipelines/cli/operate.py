"""The two container entry points: ``tritonpipe operator`` and ``tritonpipe load``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from triton_pipelines.app.config import ConfigError, load_config
from triton_pipelines.app.logs import configure_logging
from triton_pipelines.app.main import run_operator
from triton_pipelines.app.wire import build_reconcile, classify
from triton_pipelines.loader.main import exit_on_sigterm
from triton_pipelines.loader.main import run as run_loader

from .failure import EXIT_USAGE, Failure

LOADER_SETTINGS: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


def operator(
    namespace: Annotated[list[str] | None, typer.Option(help="Namespace to work in; repeatable. None: the whole cluster.")] = None,
    context: Annotated[str | None, typer.Option(help="kubeconfig context, outside a cluster.")] = None,
    workers: Annotated[int | None, typer.Option(help="Pipelines worked on at a time.")] = None,
    resync_seconds: Annotated[float | None, typer.Option(help="Every pipeline is looked at again after about this time.")] = None,
    relist_seconds: Annotated[float | None, typer.Option(help="Watches are compared with lists after about this time.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /metrics.")] = None,
    liveness_port: Annotated[int | None, typer.Option(help="Port of /healthz.")] = None,
    operator_namespace: Annotated[str | None, typer.Option(help="Namespace of the operator itself.")] = None,
    operator_key_file: Annotated[Path | None, typer.Option(help="The operator key, as mounted.")] = None,
    operator_key_secret: Annotated[str | None, typer.Option(help="Name of the Secret of the operator key.")] = None,
    image: Annotated[list[str] | None, typer.Option(help="FAMILY=IMAGE: Triton image per platform family; family default is the default.")] = None,
    loader_image: Annotated[str | None, typer.Option(help="Image of the init container: the operator's own.")] = None,
    image_pull_policy: Annotated[str | None, typer.Option(help="Pull policy of these images.")] = None,
    source_map: Annotated[list[str] | None, typer.Option(help="PREFIX=TARGET: mirror of sources; repeatable.")] = None,
    substitute_runner: Annotated[
        list[str] | None, typer.Option(help="Platform that runs on the project's runner, for servers without its backend.")
    ] = None,
    custom_code: Annotated[str | None, typer.Option(help="allow or forbid own code in pipelines.")] = None,
    max_concurrent_rollouts: Annotated[int | None, typer.Option(help="Rollouts at a time that no spec change asked for.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the operator. Every option can also be given as TRITONPIPE_<OPTION> in the environment."""
    given = {
        "namespaces": namespace,
        "context": context,
        "workers": workers,
        "resync_seconds": resync_seconds,
        "relist_seconds": relist_seconds,
        "metrics_port": metrics_port,
        "liveness_port": liveness_port,
        "operator_namespace": operator_namespace,
        "operator_key_file": operator_key_file,
        "operator_key_secret": operator_key_secret,
        "images": image,
        "loader_image": loader_image,
        "image_pull_policy": image_pull_policy,
        "source_map": source_map,
        "substitute_runner": substitute_runner,
        "custom_code": custom_code,
        "max_concurrent_rollouts": max_concurrent_rollouts,
        "log_level": log_level,
    }
    try:
        config = load_config({key: value for key, value in given.items() if value not in (None, [])})
    except ConfigError as error:
        raise Failure(str(error), EXIT_USAGE) from error
    configure_logging(config.log_level)
    asyncio.run(run_operator(config, build_reconcile, classify=classify))


def load(context: typer.Context) -> None:
    """Fetch the sources of a revision and lay out its model repository (the init container). See `tritonpipe load --help`."""
    exit_on_sigterm()
    raise typer.Exit(run_loader(context.args))
