"""Commands that start a tuning run in the cluster. Pure; the clock is passed in.

The spec belongs to the user, so the command is printed and not executed.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from collections.abc import Mapping

from triton_pipelines.api import names
from triton_pipelines.api.tuning import TuningMode

from .errors import EXIT_USAGE, CommandError
from .tune_options import ClusterRunOptions

# Options of ``tritonpipe tune`` that a run in the cluster supports. For some others, the
# resource has a field.
CARRIED = frozenset({"file", "in_cluster", "namespace", "kube_context", "thorough"})
_INSTEAD = {
    "slo": "set spec.slo.p99Milliseconds",
    "cores": "spec.server.resources limits the CPU of the pod",
    "plot": "to create a plot, measure a server with --server",
    "report_file": "read status.tuning",
    "output": "read status.tuning",
}
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def tuning_commands(
    name: str,
    cluster: ClusterRunOptions,
    thorough: bool,
    now: dt.datetime,
) -> str:
    """Return the kubectl command that starts a run for a pipeline, and the one that reads it.

    Args:
        name: name of the pipeline in the cluster.
        cluster: its namespace and the kubeconfig's context.
        thorough: whether to run in mode Thorough.
        now: current time, which names the request.

    Raises:
        CommandError: ``name`` is not a valid name, such as the path of a file.
    """
    if not _NAME.fullmatch(name):
        raise CommandError(
            f"{name}: --in-cluster takes the name of a pipeline in the cluster, not a file",
            EXIT_USAGE,
        )
    tuning = {
        "request": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "mode": (TuningMode.THOROUGH if thorough else TuningMode.QUICK).value,
    }
    where = [names.SINGULAR, name]
    where += ["--namespace", cluster.namespace] if cluster.namespace else []
    where += ["--context", cluster.kube_context] if cluster.kube_context else []
    patch = shlex.join(
        [
            "kubectl",
            "patch",
            *where,
            "--type",
            "merge",
            "--patch",
            json.dumps({"spec": {"tuning": tuning}}),
        ]
    )
    follow = shlex.join(["kubectl", "get", *where, "--output", "jsonpath={.status.tuning}"])
    return (
        "# To start a tuning run on a pod without client traffic, run this command, or commit the "
        "same change to the manifest:\n"
        f"{patch}\n# Show the result:\n{follow}"
    )


def check_options(given: Mapping[str, str]) -> None:
    """Refuse options that would be ignored.

    Args:
        given: parameters on the command line → options as they are written there.

    Raises:
        CommandError: an option is not supported by a run in the cluster.
    """
    for name, option in given.items():
        if name not in CARRIED:
            instead = _INSTEAD.get(
                name, "omit this option, or measure on this machine or with --server"
            )
            raise CommandError(
                f"{option} is not supported with --in-cluster; {instead}",
                EXIT_USAGE,
            )
