"""Find differences between a manifest in Git and the object in the cluster.

The comparison works as people and GitOps controllers do it.

An operator that writes to the spec, or a schema that fills in defaults that a tool cannot expect,
makes Argo CD show OutOfSync forever. `differences` asks kubectl (client-side and server-side) and
the comparison code of Argo CD's own engine (three-way merge, structured merge, server-side dry
run). All of this changes nothing.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.local import binaries

ARGO_MANAGER = "argocd-controller"
TIMEOUT_SECONDS = 60
_ATTEMPTS = 10
_DIFF_FOUND = 1  # kubectl diff: 0 same, 1 different, more: it failed


@dataclass(frozen=True)
class Differences:
    """What each way of asking shows; empty text means no difference.

    Attributes:
        client_side: output of `kubectl diff`.
        server_side: output of `kubectl diff --server-side` as a controller that takes fields over
            by force (Argo CD, Flux).
        argo: per strategy of Argo CD (threeWay, structured, serverSide) the JSON merge patch it
            would show, by `kind/name`.
    """

    client_side: str
    server_side: str
    argo: Mapping[str, str]

    def found(self) -> dict[str, str]:
        """The ways that show a difference, with what they show."""
        ways = {"client-side": self.client_side, "server-side": self.server_side}
        return {
            way: text
            for way, text in {
                **ways,
                **{f"argo {name}": text for name, text in self.argo.items()},
            }.items()
            if text
        }


def differences(
    kubeconfig: Path,
    objects: Sequence[Mapping[str, Any]],
    *,
    kubectl: Path | None = None,
    context: str | None = None,
) -> Differences:
    """Compare manifests as written with the cluster.

    Args:
        kubeconfig: of the cluster; its user may get and dry-run apply the objects.
        objects: as in Git, each with `metadata.namespace` if its kind has one. They have to exist
            in the cluster.
        kubectl: default: the one of the tests' own cluster version.
        context: default: the kubeconfig's current one.

    Raises:
        RuntimeError: a tool failed (an object is missing or refused), with its own message; or the
            objects change all the time.
    """
    tool = kubectl or binaries.path_of("kubectl")
    access = [f"--kubeconfig={kubeconfig}", *([f"--context={context}"] if context else [])]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(tool), *access, *arguments, "--filename=-"],
            input=manifest,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def diff(*flags: str) -> str:
        # A plain recursive diff, whatever the user's own KUBECTL_EXTERNAL_DIFF says.
        done = run("diff", *flags, KUBECTL_EXTERNAL_DIFF="diff -u -N")
        if done.returncode > _DIFF_FOUND or (done.returncode == _DIFF_FOUND and not done.stdout):
            raise RuntimeError(f"kubectl diff {' '.join(flags)} failed: {done.stderr.strip()}")
        return done.stdout

    def versions() -> str:
        done = run("get", "--output=jsonpath={..resourceVersion}")
        if done.returncode != 0:
            raise RuntimeError(f"kubectl get failed: {done.stderr.strip()}")
        return done.stdout

    # Every way reads an object and then asks for a dry run: a status that is written in between
    # would show as a difference.
    for _ in range(_ATTEMPTS):
        before = versions()
        found = Differences(
            diff(),
            diff("--server-side", "--force-conflicts", f"--field-manager={ARGO_MANAGER}"),
            _argo(kubeconfig, objects, context),
        )
        if versions() == before:
            return found
    raise RuntimeError(f"the objects changed during each of {_ATTEMPTS} comparisons")


def _argo(
    kubeconfig: Path, objects: Sequence[Mapping[str, Any]], context: str | None
) -> dict[str, str]:
    """What Argo CD would show, by strategy."""
    command = [
        str(binaries.path_of("argodiff")),
        f"--kubeconfig={kubeconfig}",
        *([f"--context={context}"] if context else []),
    ]
    done = subprocess.run(
        command,
        input=json.dumps(list(objects)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"argodiff failed: {done.stderr.strip()}")
    shown: dict[str, list[str]] = {"threeWay": [], "structured": [], "serverSide": []}
    for item, patches in zip(objects, json.loads(done.stdout), strict=True):
        for strategy, patch in patches.items():
            if patch:
                shown[strategy].append(
                    f"{item['kind']}/{item['metadata']['name']}: "
                    f"{json.dumps(patch, sort_keys=True)}"
                )
    return {strategy: "\n".join(lines) for strategy, lines in shown.items()}
