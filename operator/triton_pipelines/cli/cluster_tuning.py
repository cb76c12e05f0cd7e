"""Asking for a tuning run in the cluster: the spec is the user's, so the command is printed and not carried out. Pure; the clock is passed in."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
from collections.abc import Mapping

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import TuningMode

from .errors import EXIT_USAGE, Failure

# Options of ``tritonpipe tune`` that a run in the cluster can be given; of some others the resource says the same.
CARRIED = frozenset({"file", "in_cluster", "namespace", "thorough"})
_INSTEAD = {
    "slo": "write spec.slo.p99Milliseconds",
    "cores": "spec.server.resources says what the pod may use",
    "plot": "run it on a server with --server for a plot",
    "report_file": "read status.tuning",
    "output": "read status.tuning",
}
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def asking(name: str, namespace: str | None, thorough: bool, now: dt.datetime) -> str:
    """The kubectl command that starts a run for the pipeline ``name``, and the one that follows it.

    Raises:
        Failure: ``name`` is none, such as the path of a file.
    """
    if not _NAME.fullmatch(name):
        raise Failure(
            f"{name}: --in-cluster takes the name of a pipeline in the cluster, not a file",
            EXIT_USAGE,
        )
    tuning = {
        "request": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "mode": (TuningMode.THOROUGH if thorough else TuningMode.QUICK).value,
    }
    where = [names.SINGULAR, name, *(["--namespace", namespace] if namespace else [])]
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
    return f"# Starts a run on a pod that serves nobody; the operator never writes the spec, so this is yours to run or to commit:\n{patch}\n# What it found:\n{follow}"


def refuse(given: Mapping[str, str]) -> None:
    """Refuse options that would be ignored. ``given``: parameters on the command line → options as they are written there.

    Raises:
        Failure: names the first option that a run in the cluster does not take.
    """
    for name, option in given.items():
        if name not in CARRIED:
            instead = _INSTEAD.get(name, "leave it out, or measure here or with --server")
            raise Failure(
                f"{option}: is not carried to a run in the cluster (--in-cluster); {instead}",
                EXIT_USAGE,
            )
