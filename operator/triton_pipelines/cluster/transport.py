"""Send requests to the API server: sessions, time-outs, concurrency, retries and metrics."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from triton_pipelines.api import names
from triton_pipelines.cluster import decoding
from triton_pipelines.cluster.errors import (
    ClusterError,
    NotLeading,
    ResponseTooLarge,
    TooMany,
    Unauthorized,
    Unavailable,
    from_response,
)
from triton_pipelines.cluster.resources import REPLICA_SETS, SECRETS, Resource
from triton_pipelines.cluster.session import Session, in_use

Object = dict[str, Any]
Login = Callable[[], Awaitable[Configuration]]

JSON: Final = "application/json"
# Otherwise the answer to a write contains the whole Secret, and that to a read the whole pod
# template of a ReplicaSet.
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# JSON is YAML except that YAML has no surrogate pairs of escapes for characters beyond U+FFFF, such
# as an emoji in a label: they have to be sent unescaped. With a parameter in the content type, the
# generated client sends bytes unchanged; the API server drops it.
APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
# Size of the largest answer: a page of 25 objects of 1.5 MiB, which the API server stores at most,
# and the escapes of JSON.
MAX_RESPONSE_BYTES: Final = 64 * 1024**2
_CONNECT_TIMEOUT_SECONDS: Final = 10.0
# An attempt that took so long (seconds) used up the time of its call, as when a webhook hangs.
_LONG_SECONDS: Final = 5.0


# Characters of JSON strings that YAML excludes, or reads as a line break. Texts of pods have them.
_ESCAPED_IN_YAML: Final = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def yaml_of(body: Object | Sequence[Object] | None) -> bytes:
    """Return JSON that is valid YAML; surrogates without a partner become question marks."""
    text = json.dumps(body, ensure_ascii=False)
    escaped = _ESCAPED_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return escaped.encode(errors="replace")


class RequestObserver(Protocol):
    """Called after every attempt of a request."""

    def __call__(self, *, verb: str, resource: str, code: str, seconds: float) -> None:
        """Observe an attempt.

        Args:
            verb: what was requested.
            resource: plural of the kind.
            code: HTTP status, ``Timeout``, ``ConnectFailed`` or ``ConnectionLost``.
            seconds: its duration.
        """
        ...


def ignore_request(*, verb: str, resource: str, code: str, seconds: float) -> None:
    """Default hook."""


def always() -> bool:
    """Default answer to whether writes are permitted."""
    return True


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Limits of the client."""

    timeout_seconds: float = 30.0
    """Time-out of one attempt, including the answer."""
    max_in_flight: int = 32
    """Concurrent requests; the API server's own fairness sheds load above its share."""
    attempts: int = 4
    """Attempts per call, for calls that may be repeated."""
    backoff_seconds: float = 0.2
    """First wait between two attempts; doubles, with full jitter."""
    max_backoff_seconds: float = 5.0
    """Longest wait between two attempts."""
    max_retry_after_seconds: float = 10.0
    """Longest ``Retry-After`` that a call waits for; a longer one is left to the caller."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """Size of the largest answer, decompressed. A larger one is not read to its end."""


@dataclass(slots=True)
class Transport:
    """Sends requests over one session at a time. Create it inside a running event loop."""

    login: Login
    """Returns address and credentials; called at the first request and again after a 401."""
    options: ClientOptions
    """Limits."""
    observe: RequestObserver
    """Called once per attempt, for metrics."""
    sleep: Callable[[float], Awaitable[None]]
    """Waits between attempts; replaced in tests."""
    uniform: Callable[[float, float], float]
    """Jitter; replaced in tests."""
    may_write: Callable[[], bool]
    """Returns whether writes are permitted now."""
    _session: Session | None = field(default=None, init=False)
    _login_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.options.max_in_flight)

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            session.retired = True
            await session.api.close()  # type: ignore[no-untyped-call]

    async def send(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | Sequence[Object] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        repeatable: bool,
        user: str = "",
    ) -> Object:
        """Send a request, repeating it where that is safe, and return the object in the answer.

        Args:
            verb: what is requested, for metrics.
            method: HTTP method.
            resource: the kind.
            path: path of the request.
            query: parameters of the URL.
            body: the content.
            content_type: its type.
            accept: type of the answer.
            repeatable: whether the request may be sent again once it may have reached the server.
            user: the user to impersonate; empty: the account of the login.

        Raises:
            NotLeading: writes are not permitted now.
            ClusterError: the request failed, also after the last attempt.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        renewed = False
        attempt, started = 0, time.perf_counter()
        while True:
            attempt += 1
            try:
                async with self._slots:
                    session = await self._current_session()
                    # The last step before sending: the login may have taken a while.
                    if method != "GET" and not self.may_write():
                        raise NotLeading
                    started = time.perf_counter()
                    return await self._attempt(
                        session, verb, method, resource, target, body, content_type, accept, user
                    )
            except Unauthorized:
                if renewed:
                    raise
                renewed = True
                await self._renew(session)
            except (TooMany, Unavailable) as error:
                seconds = time.perf_counter() - started
                delay = self._delay(error, attempt, repeatable, seconds)
                if delay is None:
                    raise
                await self.sleep(delay)

    def _delay(
        self, error: ClusterError, attempt: int, repeatable: bool, seconds: float
    ) -> float | None:
        """Return the seconds until the next attempt; None if the error is raised."""
        # After an attempt that took long, the caller's own back-off decides.
        if (
            attempt >= self.options.attempts
            or error.reason == "Timeout"
            or seconds >= _LONG_SECONDS
        ):
            return None
        # A 429 was not processed, and without a connection nothing was sent: both may be repeated,
        # creates included.
        if not (repeatable or isinstance(error, TooMany) or error.reason == "ConnectFailed"):
            return None
        ceiling = min(
            self.options.max_backoff_seconds, self.options.backoff_seconds * 2 ** (attempt - 1)
        )
        jittered = self.uniform(0.0, ceiling)
        if error.retry_after is None:
            return jittered
        if error.retry_after > self.options.max_retry_after_seconds:
            return None
        return error.retry_after + jittered

    async def _attempt(
        self,
        session: Session,
        verb: str,
        method: str,
        resource: Resource,
        target: str,
        body: Object | Sequence[Object] | None,
        content_type: str,
        accept: str,
        user: str,
    ) -> Object:
        started, code = time.perf_counter(), "Cancelled"
        headers = _headers(method, resource, content_type, accept, user)
        try:
            async with in_use(session) as api:
                status, reason, raw, retry_after = await self._exchange(
                    api, method, target, body, headers
                )
            code = str(status)
        except ResponseTooLarge as error:
            code = error.reason
            raise
        except TimeoutError as error:
            code = "Timeout"
            seconds = self.options.timeout_seconds
            raise Unavailable(
                0, code, f"{method} {target}: no response within {seconds:g} s"
            ) from error
        except aiohttp.ClientConnectorError as error:
            code = "ConnectFailed"
            raise Unavailable(0, code, f"{method} {target}: {_uncapitalized(error)}") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            code = "ConnectionLost"
            raise Unavailable(
                0, code, f"{method} {target}: the connection was lost: {type(error).__name__}"
            ) from error
        finally:
            self.observe(
                verb=verb,
                resource=resource.plural,
                code=code,
                seconds=time.perf_counter() - started,
            )
        parsed = _parse(raw)
        if not 200 <= status < 300:
            token = headers.get("authorization", "").removeprefix("Bearer ")
            raise from_response(status, reason, parsed, retry_after, body, token)
        return _as_object(parsed, status, f"{method} {target}")

    async def _exchange(
        self,
        api: ApiClient,
        method: str,
        target: str,
        body: Object | Sequence[Object] | None,
        headers: dict[str, str],
    ) -> tuple[int, str, bytes, str | None]:
        headers["User-Agent"] = names.APP
        await api.update_params_for_auth(headers, None, ["BearerToken"], target, method, None)
        # `connect` also limits the wait for a free connection, hence sock_connect.
        timeout = aiohttp.ClientTimeout(
            total=self.options.timeout_seconds, sock_connect=_CONNECT_TIMEOUT_SECONDS
        )
        sent = yaml_of(body) if headers["Content-Type"] == APPLY else body
        response = await api.call_api(
            method, api.configuration.host + target, headers, sent, _request_timeout=timeout
        )
        raw = await self._read(response.response, f"{method} {target}")
        return response.status, response.reason or "", raw, response.headers.get("Retry-After")

    async def _read(self, response: aiohttp.ClientResponse, request: str) -> bytes:
        """Return the content of an answer.

        Raises:
            ResponseTooLarge: it exceeds the limit.
        """
        limit = self.options.max_response_bytes
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise ResponseTooLarge(
                        f"{request}: the response exceeds the limit of {limit / 1024**2:g} MiB"
                    )
                chunks.append(chunk)
        except BaseException:
            response.close()
            raise
        return b"".join(chunks)

    async def _current_session(self) -> Session:
        async with self._login_lock:
            if self._session is None:
                self._session = Session(ApiClient(await self.login()))
            return self._session

    async def _renew(self, stale: Session) -> None:
        """Read the credentials again after a 401, once for all requests that used ``stale``."""
        async with self._login_lock:
            if self._session is not stale:
                return
            self._session = Session(ApiClient(await self.login()))
        stale.retired = True
        if not stale.users:
            await stale.api.close()  # type: ignore[no-untyped-call]


def _parse(raw: bytes) -> Any:
    try:
        return decoding.loads(raw) if raw else {}
    except ValueError:
        return None


def _uncapitalized(error: Exception) -> str:
    """Return the text of an error without its capital: aiohttp writes "Cannot connect to …"."""
    text = str(error)
    return f"{text[:1].lower()}{text[1:]}"


def _headers(
    method: str, resource: Resource, content_type: str, accept: str, user: str
) -> dict[str, str]:
    if resource == REPLICA_SETS or (resource == SECRETS and method in ("PATCH", "POST")):
        accept = METADATA
    headers = {"Accept": accept, "Content-Type": content_type}
    if user:
        # The API server adds the groups of a service account, unless any group is sent.
        headers["Impersonate-User"] = user
    return headers


def _as_object(parsed: Any, status: int, request: str) -> Object:
    if not isinstance(parsed, dict):
        raise Unavailable(status, "BadAnswer", f"{request}: the response is not a JSON object")
    return parsed
