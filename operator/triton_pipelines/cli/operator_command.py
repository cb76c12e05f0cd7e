"""``tritonpipe operator``: run the operator in its container."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from typing import Any, Final

from triton_pipelines.app.composition import build_reconcile
from triton_pipelines.app.config import OperatorConfig, OperatorConfigError, load_config
from triton_pipelines.app.log_setup import configure_logging, toggle_debug
from triton_pipelines.app.main import run_operator
from triton_pipelines.autoscaling.metrics.connections_file import ConnectionsError
from triton_pipelines.cluster.leader_election import LeadershipLostError
from triton_pipelines.cluster.login import LoginError, load_configuration

from .errors import EXIT_FAILED, EXIT_USAGE, CommandError
from .operator_options import given_fields, option_parameters
from .option_groups import with_parameters

# Allocated objects until a garbage collection, and collections until one of an older generation.
# Python's default, 700, collects so often that it takes 6 % of the CPU time: each decoded object of
# the API server has hundreds of parts, most of which are neither garbage nor in a cycle.
GC_THRESHOLDS: Final = (20_000, 10, 10)


@with_parameters(option_parameters())
def operator(**options: Any) -> None:
    """Run the operator, as the chart does.

    Every option can also be set in the environment as TRITONPIPE_OPTION, lists separated by
    commas.
    """
    try:
        config = load_config(given_fields(options))
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
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, toggle_debug, config.log_level)
    # A full garbage collection visits every object and stops the process meanwhile. Most objects
    # are those of the imports, which stay.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # The usual soft limit is for programs that use select(2), and too low for many connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        await run_operator(config, build_reconcile)
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
