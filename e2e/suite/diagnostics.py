"""Diagnostics of a failed test in `out/e2e/<test>/`.

They contain the operator's log, objects, events and Triton's logs.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from e2e.suite.installation import NAMESPACE, Installation
from e2e.suite.kube import Kube
from triton_pipelines.api import names

FOLDER = Path(__file__).resolve().parents[2] / "out" / "e2e"
LOG_LINES = 400


def collect(test: str, installation: Installation, namespaces: list[str]) -> Path:
    """Write what is known now; returns the folder. A part that cannot be had is replaced by why."""
    kube = installation.kube
    folder = FOLDER / re.sub(r"[^A-Za-z0-9_.-]+", "-", test).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "operator.log", installation.operator_log)
    _write(
        folder / "operator-pods.txt",
        lambda: kube.kubectl("describe", "pods", f"--namespace={NAMESPACE}", check=False),
    )
    _write(folder / "nodes.txt", lambda: kube.kubectl("describe", "nodes", check=False))
    kinds = (
        f"{names.PLURAL},deployments,replicasets,pods,services,configmaps,networkpolicies,"
        f"poddisruptionbudgets"
    )
    questions = {
        "pipelines.yaml": ("get", names.PLURAL, "--output=yaml"),
        "objects.txt": ("get", kinds, "--output=wide"),
        "pods.yaml": ("get", "pods", "--output=yaml"),
        "events.txt": ("get", "events", "--sort-by=.metadata.creationTimestamp"),
    }
    for namespace in namespaces:
        for name, arguments in questions.items():
            _write(
                folder / f"{namespace}-{name}",
                partial(kube.kubectl, *arguments, f"--namespace={namespace}", check=False),
            )
        _logs(kube, namespace, folder)
    return folder


def _logs(kube: Kube, namespace: str, folder: Path) -> None:
    try:
        pods = [item["metadata"]["name"] for item in kube.objects("Pod", namespace)]
    except Exception as error:
        (folder / f"{namespace}-logs.txt").write_text(f"{type(error).__name__}: {error}\n")
        return
    for pod in pods:
        arguments = (
            "logs",
            f"--namespace={namespace}",
            pod,
            "--all-containers",
            "--prefix",
            f"--tail={LOG_LINES}",
        )
        _write(folder / f"{namespace}-{pod}.log", partial(kube.kubectl, *arguments, check=False))


def _write(path: Path, read: Callable[[], str]) -> None:
    try:
        text = read()
    except Exception as error:  # a diagnosis never hides the failure that it is about
        text = f"{type(error).__name__}: {error}\n"
    path.write_text(text)
