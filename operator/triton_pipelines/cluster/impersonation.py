"""Write in the name of a service account, and find out which permission it lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.api.wording import listed
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import ClusterError, Forbidden, NamespaceTerminating
from triton_pipelines.cluster.resources import (
    JOBS,
    PODS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    Resource,
)

# What the operator does with objects of a kind; the chart's role for these accounts grants the
# same. Jobs and Secrets are never replaced, and pods never created.
_WRITES: Final = ("create", "update", "patch", "delete")
_WRITES_OF_KIND: Final[Mapping[Resource, tuple[str, ...]]] = {
    JOBS: ("create", "patch", "delete"),
    SECRETS: ("create", "patch", "delete"),
    PODS: ("delete",),
}


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account in whose name requests are sent."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""

    @property
    def user(self) -> str:
        """Return its user name at the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PermissionDenied(Forbidden):
    """403 because the impersonated account lacks a permission, or may not be impersonated."""

    def __init__(self, message: str) -> None:
        super().__init__(403, "Forbidden", message)


@dataclass(frozen=True, slots=True)
class Writer:
    """A client that writes with the operator's own account, or in the name of another one."""

    client: Client
    """Acts as the account."""
    account: ServiceAccount | None
    """``None``: the operator's own account."""

    @classmethod
    def of(cls, client: Client, namespace: str, account: str) -> Writer:
        """Return the writer for the objects of a namespace.

        Args:
            client: The operator's client.
            namespace: The namespace, also that of the account.
            account: Name of the account; empty for the operator's own.
        """
        if not account:
            return cls(client, None)
        acting = ServiceAccount(namespace, account)
        return cls(client.acting_as(acting.user), acting)

    @asynccontextmanager
    async def explaining(
        self, resource: Resource, name: str, subresource: str = ""
    ) -> AsyncIterator[None]:
        """Raise :class:`PermissionDenied` instead of a 403 that the account's rights explain.

        Args:
            resource: The kind of the object that is written.
            name: Its name.
            subresource: Its subresource, if that is written.
        """
        try:
            yield
        except NamespaceTerminating:
            raise
        except Forbidden as error:
            reason = await self._denial(resource, name, subresource)
            if reason is None:
                raise
            raise PermissionDenied(
                f"{resource.kind} {name}: the API server rejected the change (403 Forbidden), "
                f"because {reason}"
            ) from error

    async def _denial(self, resource: Resource, name: str, subresource: str) -> str | None:
        """Return which permission is missing, and the remedy.

        The API server itself says which permissions the account has. ``None`` if it has all of
        them: something else rejected the request, such as a quota or an admission policy.
        """
        if self.account is None:
            return None
        verbs = ("patch",) if subresource else _WRITES_OF_KIND.get(resource, _WRITES)
        try:
            missing = [
                verb
                for verb in verbs
                if not await self._is_allowed(verb, resource, name, subresource)
            ]
        except Forbidden:
            # Every account may ask for its own permissions, so it could not be impersonated.
            return (
                "the operator is not allowed to impersonate the service account "
                f"{self.account}; ask the operator's administrator to add this account to "
                "--impersonated-service-accounts"
            )
        except ClusterError:
            return None
        if not missing:
            return None
        kind = "/".join(filter(None, (resource.plural, subresource)))
        return (
            f"the service account {self.account} is not allowed to {listed(missing, 'or')} "
            f"{f'{kind}.{resource.group}' if resource.group else kind}; bind the "
            "account to a role that allows this, or set spec.serviceAccountName to another account"
        )

    async def _is_allowed(self, verb: str, resource: Resource, name: str, subresource: str) -> bool:
        assert self.account is not None
        attributes = {
            "namespace": self.account.namespace,
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": subresource,
            # A permission to create cannot be restricted to a name.
            "name": "" if verb == "create" else name,
        }
        review = SELF_SUBJECT_ACCESS_REVIEWS
        answer: Mapping[str, Any] = await self.client.create(
            {
                "apiVersion": review.api_version,
                "kind": review.kind,
                "metadata": {},
                "spec": {"resourceAttributes": attributes},
            }
        )
        return bool((answer.get("status") or {}).get("allowed"))
