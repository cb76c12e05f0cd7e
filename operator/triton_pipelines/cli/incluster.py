"""Asking for a tuning run in the cluster: the spec is the user's, so the command is printed and not carried out. Pure; the clock is passed in."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import TuningMode

from .failure import EXIT_USAGE, Failure

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def asking(name: str, namespace: str | None, thorough: bool, now: dt.datetime) -> str:
    """The kubectl command that starts a run for the pipeline ``name``, and the one that follows it.

    Raises:
        Failure: ``name`` is none, such as the path of a file.
    """
    if not _NAME.fullmatch(name):
        raise Failure(f"{name}: --in-cluster takes the name of a pipeline in the cluster, not a file", EXIT_USAGE)
    tuning = {"request": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "mode": (TuningMode.THOROUGH if thorough else TuningMode.QUICK).value}
    where = [names.SINGULAR, name, *(["--namespace", namespace] if namespace else [])]
    patch = shlex.join(["kubectl", "patch", *where, "--type", "merge", "--patch", json.dumps({"spec": {"tuning": tuning}})])
    follow = shlex.join(["kubectl", "get", *where, "--output", "jsonpath={.status.tuning}"])
    return f"# Starts a run on a pod that serves nobody; the operator never writes the spec, so this is yours to run or to commit:\n{patch}\n# What it found:\n{follow}"
