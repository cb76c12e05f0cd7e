"""Permissions of Kubernetes roles: those that requests need, and those that rules grant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.faultproxy import Seen

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
CREATED = 201


class Permission(NamedTuple):
    """One verb on one kind of objects."""

    group: str
    """API group; empty for the core group."""
    resource: str
    """Plural name, with the subresource behind a slash."""
    verb: str
    """What the API server calls the kind of access."""


def granted(rules: Iterable[Mapping[str, Any]]) -> set[Permission]:
    """Return the permissions that rules of a role grant. Names of objects are ignored."""
    return {
        Permission(group, resource, verb)
        for rule in rules
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def used(requests: Iterable[Seen]) -> set[Permission]:
    """Return the permissions that the API server checked for requests."""
    return {permission for seen in requests for permission in _needed(seen)}


def _needed(seen: Seen) -> Iterable[Permission]:
    url = urlsplit(seen.target)
    parts = url.path.strip("/").split("/")
    if parts[0] == "api":
        group, rest = "", parts[2:]
    elif parts[0] == "apis":
        group, rest = (parts[1] if len(parts) > 1 else ""), parts[3:]
    else:
        return
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return  # Discovery, which everyone may use.
    resource = "/".join([rest[0], *rest[2:]])
    yield Permission(group, resource, _verb(seen.method, len(rest) > 1, parse_qs(url.query)))
    if seen.method == "PATCH" and seen.status == CREATED:
        yield Permission(group, resource, "create")


def _verb(method: str, is_named: bool, query: Mapping[str, list[str]]) -> str:
    if method in _VERBS:
        return _VERBS[method]
    if query.get("watch", ["false"])[0] in ("true", "1", "True"):
        return "watch"
    return "get" if is_named else "list"
