"""Connections of the Kubernetes client with one set of credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kubernetes.aio.client import ApiClient


@dataclass(slots=True)
class Session:
    """One ``ApiClient``, closed after its credentials expire and no request uses it any more."""

    api: ApiClient
    """The connections."""
    users: int = 0
    """Number of requests that use them."""
    retired: bool = False
    """Whether they are closed when unused."""


@asynccontextmanager
async def in_use(session: Session) -> AsyncIterator[ApiClient]:
    """Return the session's connections, counted as in use."""
    session.users += 1
    try:
        yield session.api
    finally:
        session.users -= 1
        if session.retired and not session.users:
            await session.api.close()  # type: ignore[no-untyped-call]
