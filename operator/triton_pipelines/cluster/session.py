"""Connections of the client under one set of credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kubernetes.aio.client import ApiClient


@dataclass(slots=True)
class Session:
    """One ``ApiClient`` and how many requests use it, so that one with old credentials is closed only when unused."""

    api: ApiClient
    users: int = 0
    retired: bool = False


@asynccontextmanager
async def in_use(session: Session) -> AsyncIterator[ApiClient]:
    """The session's connections, counted as in use."""
    session.users += 1
    try:
        yield session.api
    finally:
        session.users -= 1
        if session.retired and not session.users:
            await session.api.close()  # type: ignore[no-untyped-call]
