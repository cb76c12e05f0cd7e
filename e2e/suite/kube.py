"""Access to a cluster for tests: apply, read, and wait for an observed condition.

kubectl is used where its own behavior is under test.
"""

import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from e2e.local import binaries
from triton_pipelines.cluster import resources
from triton_pipelines.cluster.resources import Resource

MANAGER = "e2e"
POLL_SECONDS = 0.2
KUBECTL_SECONDS = 180
REQUEST_SECONDS = 30
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)
KINDS: dict[str, Resource] = {
    resource.kind: resource
    for resource in (*resources.ALL, resources.SECRETS, resources.EVENTS, NAMESPACES, CRDS)
}

Object = dict[str, Any]
T = TypeVar("T")

# Its debug output repeats whole answers, Secrets among them.
logging.getLogger("kubernetes.client.rest").setLevel(logging.WARNING)


class NotYetError(AssertionError):
    """What was waited for did not come in time; the message has what was seen last."""


def wait_for(
    what: str,
    observe: Callable[[], T],
    holds: Callable[[T], object],
    deadline: float,
    show: Callable[[T], str] = str,
) -> T:
    """Observe until `holds` says yes to what is observed; returns that.

    Args:
        what: what is waited for, in words.
        observe: asks the cluster; errors of the connection and of a busy server count as "not yet".
        holds: judges an observation.
        deadline: in seconds from now.
        show: the observation in words, for the message.

    Raises:
        NotYetError: the deadline passed.
    """
    end = time.monotonic() + deadline
    tick = threading.Event()
    last = "nothing was observed"
    while True:
        try:
            seen = observe()
        except (HTTPError, OSError) as error:
            last = f"{type(error).__name__}: {error}"
        except ApiException as error:
            if error.status < 500 and error.status != 429:
                raise
            last = f"{error.status} {error.reason}"
        else:
            if holds(seen):
                return seen
            last = show(seen)
        if time.monotonic() > end:
            raise NotYetError(f"{what}: not within {deadline:.0f} s; last seen: {last}")
        tick.wait(POLL_SECONDS)


class Kube:
    """One cluster, as its administrator."""

    def __init__(self, kubeconfig: Path, context: str) -> None:
        self.kubeconfig = kubeconfig
        self.context = context
        self._api = kubernetes.config.new_client_from_config(str(kubeconfig), context)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close connections."""
        self._api.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> Any:
        """One request to the API server; the answer's JSON document.

        Raises:
            ApiException: the API server refused it.
        """
        prepared = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = self._api.call_api(*prepared, _request_timeout=REQUEST_SECONDS)
        text = answer.read()
        if not 200 <= answer.status < 300:
            raise ApiException(
                status=answer.status, reason=answer.reason, body=text.decode(errors="replace")
            )
        return json.loads(text) if text else None

    # --- objects ----------------------------------------------------------------------------------
    def apply(
        self, document: Mapping[str, Any], *, namespace: str | None = None, manager: str = MANAGER
    ) -> Object:
        """Server-side apply of one object, taking fields over; returns it as stored."""
        resource = KINDS[document["kind"]]
        place = (
            (namespace or document["metadata"].get("namespace")) if resource.namespaced else None
        )
        path = resource.path(place, document["metadata"]["name"])
        result: Object = self.request(
            "PATCH",
            path,
            document,
            content_type="application/apply-patch+yaml",
            fieldManager=manager,
            force="true",
        )
        return result

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """An object, or `None` when there is none of that name."""
        try:
            result: Object = self.request("GET", KINDS[kind].path(namespace, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return result

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        """An object that has to be there."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise AssertionError(f"there is no {kind} {namespace}/{name}")
        return found

    def objects(
        self, kind: str, namespace: str | None = None, selector: str = ""
    ) -> Sequence[Object]:
        """Objects of a kind, in one namespace or in all."""
        query = {"labelSelector": selector} if selector else {}
        items: Sequence[Object] = self.request("GET", KINDS[kind].path(namespace), **query)["items"]
        return items

    def patch(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        change: Mapping[str, Any],
        subresource: str | None = None,
    ) -> Object:
        """Apply a JSON merge patch, like a manual edit."""
        path = KINDS[kind].path(namespace, name, subresource)
        result: Object = self.request(
            "PATCH",
            path,
            change,
            content_type="application/merge-patch+json",
            fieldManager="by-hand",
        )
        return result

    def delete(self, kind: str, namespace: str | None, name: str) -> None:
        """Delete an object, in the background; one that is gone already is fine."""
        try:
            self.request(
                "DELETE", KINDS[kind].path(namespace, name), {"propagationPolicy": "Background"}
            )
        except ApiException as error:
            if error.status != 404:
                raise

    def wait(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        holds: Callable[[Object | None], object],
        what: str,
        deadline: float = 60.0,
    ) -> Object | None:
        """Wait for an object to be as `holds` wants it (`None`: it is not there); returns it."""
        return wait_for(
            f"{kind} {name}: {what}",
            lambda: self.find(kind, namespace, name),
            holds,
            deadline,
            _summary,
        )

    def wait_gone(
        self, kind: str, namespace: str | None, name: str, deadline: float = 60.0
    ) -> None:
        """Wait until an object is not there any more."""
        self.wait(kind, namespace, name, lambda item: item is None, "gone", deadline)

    # --- kubectl ----------------------------------------------------------------------------------
    def kubectl_command(self, *arguments: str) -> list[str]:
        """The command line of kubectl on this cluster."""
        return [
            str(binaries.path_of("kubectl")),
            f"--kubeconfig={self.kubeconfig}",
            f"--context={self.context}",
            *arguments,
        ]

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        """What kubectl prints; with `check=False` errors are part of it.

        Raises:
            AssertionError: it failed; with its message.
        """
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=input,
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS,
            check=False,
            env=_plain_environment(),
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"kubectl {' '.join(arguments)} ended with {done.returncode}: "
                f"{done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout if check else done.stdout + done.stderr


def _plain_environment() -> dict[str, str]:
    """The environment without what would make kubectl and helm go elsewhere."""
    return {
        key: value
        for key, value in os.environ.items()
        if key not in ("KUBECONFIG", "KUBECTL_EXTERNAL_DIFF", "KUBERC")
    }


def _summary(item: Object | None) -> str:
    """Return the part of an object that a failed wait shows: its status without noise."""
    if item is None:
        return "nothing"
    shown = {"generation": item["metadata"].get("generation"), "status": item.get("status") or {}}
    if "data" in item and item.get("kind") != "Secret":
        shown["data"] = sorted(item["data"])
    return json.dumps(shown)[:3000]
