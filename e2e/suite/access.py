"""Choose the cluster that the suite works on.

It is the one of `KUBECONFIG` if its context is allowed, else a local one of the suite. With several
workers (`pytest -n 2`), each starts a local cluster of its own: tests kill the operator, stop the
API server and take GPUs away, which tests on the same cluster would notice.

The suite creates and deletes namespaces, a CRD and cluster roles. A list of allowed contexts keeps
it off clusters that people use.
"""

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.local.cluster import Cluster
from e2e.local.images import OPERATOR_IMAGE, SAMPLES_IMAGE, TRITON_IMAGE

ENV_CONTEXTS = "E2E_CONTEXTS"
DEFAULT_CONTEXTS = ("tritonpipe-*", "kind-*")
"""Local clusters of this project and kind clusters, which hold nobody's work."""
ENV_KEEP = "KEEP"
ENV_WORKER = "PYTEST_XDIST_WORKER"


class AccessError(RuntimeError):
    """The suite must not or cannot use a cluster; the message says which variable to set."""


@dataclass(frozen=True)
class Access:
    """A cluster that the suite may use.

    Attributes:
        kubeconfig: file of the administrator.
        context: context in it.
        local: the local cluster behind it, if it is one.
        temporary: whether the run removes the cluster with everything in it at its end.
    """

    kubeconfig: Path
    context: str
    local: Cluster | None = None
    temporary: bool = False


def choose(environment: Mapping[str, str]) -> Access | None:
    """The cluster that `KUBECONFIG` names, or `None` when it names none.

    Raises:
        AccessError: the file cannot be read, has no current context, or its context is not allowed.
    """
    given = environment.get("KUBECONFIG", "")
    if not given:
        return None
    kubeconfig = Path(given)
    try:
        document = yaml.safe_load(kubeconfig.read_text())
        context = str(document["current-context"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise AccessError(
            f"KUBECONFIG={given}: cannot read a current context from it "
            f"({type(error).__name__}); name one file with one"
        ) from error
    allowed = contexts(environment)
    if not any(fnmatch.fnmatchcase(context, pattern) for pattern in allowed):
        raise AccessError(
            f"KUBECONFIG={given}: context {context!r} is not on the suite's allow list "
            f"({', '.join(allowed)}). The suite installs and removes"
            f" the operator, its CRD and namespaces there; if that is meant, set "
            f"{ENV_CONTEXTS}={context}"
        )
    name = context.removeprefix("tritonpipe-")
    local = (
        Cluster(name)
        if name != context and Cluster(name).kubeconfig == kubeconfig.resolve()
        else None
    )
    return Access(kubeconfig, context, local)


def contexts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return shell-style patterns of the allowed contexts.

    They come from `E2E_CONTEXTS` (separated by commas).
    """
    given = tuple(
        item.strip() for item in environment.get(ENV_CONTEXTS, "").split(",") if item.strip()
    )
    return given or DEFAULT_CONTEXTS


def require_one_worker(environment: Mapping[str, str], workers: int) -> None:
    """Refuse to share the cluster of `KUBECONFIG` between several workers.

    Raises:
        AccessError: `KUBECONFIG` names a cluster, and pytest starts workers.
    """
    given = environment.get("KUBECONFIG", "")
    if given and workers:
        raise AccessError(
            f"KUBECONFIG={given}: tests on one cluster run in turn, but pytest would start "
            f"{workers} workers; run it without -n, or unset KUBECONFIG: then each worker starts "
            f"a local cluster"
        )


def own_cluster(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the cluster that this process starts."""
    return "-".join(filter(None, ("e2e", environment.get(ENV_WORKER))))


def keep(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether everything stays after the run, to be looked at (`KEEP=1`)."""
    return environment.get(ENV_KEEP, "") not in ("", "0")


@dataclass(frozen=True)
class Images:
    """Images of the run; the nodes have to have them, or be able to pull them."""

    operator: str
    triton: str
    samples: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Images":
        """Return the images that the environment names.

        The variables are `E2E_OPERATOR_IMAGE`, `E2E_TRITON_IMAGE` and `E2E_SAMPLES_IMAGE`. The
        defaults are the images that the local cluster builds.
        """
        return cls(
            environment.get("E2E_OPERATOR_IMAGE") or OPERATOR_IMAGE,
            environment.get("E2E_TRITON_IMAGE") or TRITON_IMAGE,
            environment.get("E2E_SAMPLES_IMAGE") or SAMPLES_IMAGE,
        )
