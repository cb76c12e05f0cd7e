"""Decide who may read the operator's metrics. The API server reviews tokens and permissions."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import structlog

from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource

PATH: Final = "/metrics"
# Times for which a decision is reused. A withdrawn permission has an effect after the first.
ALLOWED_SECONDS: Final = 60.0
DENIED_SECONDS: Final = 10.0
_KNOWN_MAX: Final = 256
# Longest token that is sent to the API server; tokens of service accounts have about 1 KiB.
_TOKEN_MAX: Final = 16 * 1024
_log = structlog.get_logger(__name__)


class Access(Enum):
    """Decision about one request."""

    ALLOWED = "allowed"
    UNAUTHENTICATED = "unauthenticated"
    """No token, or one that the API server does not know."""
    FORBIDDEN = "forbidden"
    """The user of the token may not read the metrics."""
    UNKNOWN = "unknown"
    """The API server did not decide."""


@dataclass(slots=True)
class MetricsAccess:
    """Reviews tokens, and remembers decisions by the hash of the token."""

    client: Client
    """A client that may write without leadership: replicas that stand by have metrics, too."""
    clock: Callable[[], float] = time.monotonic
    """Seconds; replaced in tests."""
    _known: OrderedDict[bytes, tuple[float, Access]] = field(default_factory=OrderedDict)
    """Time until which a decision holds, and the decision."""

    async def check(self, token: str) -> Access:
        """Return whether the bearer of a token may read the metrics.

        Args:
            token: the bearer token; empty if none was sent.
        """
        if not token or len(token) > _TOKEN_MAX:
            return Access.UNAUTHENTICATED
        key = hashlib.sha256(token.encode()).digest()
        until, access = self._known.get(key, (0.0, Access.UNKNOWN))
        if self.clock() < until:
            return access
        try:
            access = await self._review(token)
        except ClusterError as error:
            await _log.awarning("access to metrics cannot be reviewed", error=str(error))
            return Access.UNKNOWN
        seconds = ALLOWED_SECONDS if access is Access.ALLOWED else DENIED_SECONDS
        self._known.pop(key, None)
        self._known[key] = (self.clock() + seconds, access)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return access

    async def _review(self, token: str) -> Access:
        status = await self._create(TOKEN_REVIEWS, {"token": token})
        if status.get("authenticated") is not True:
            return Access.UNAUTHENTICATED
        user: Mapping[str, Any] = status.get("user") or {}
        spec = {
            "user": user.get("username"),
            "uid": user.get("uid"),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        status = await self._create(SUBJECT_ACCESS_REVIEWS, spec)
        return Access.ALLOWED if status.get("allowed") is True else Access.FORBIDDEN

    async def _create(self, resource: Resource, spec: Object) -> Mapping[str, Any]:
        answer = await self.client.create(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {},
                "spec": spec,
            }
        )
        return answer.get("status") or {}
