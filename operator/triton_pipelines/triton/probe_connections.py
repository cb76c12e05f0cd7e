"""Keep a connection to each probed pod, so that its next probe is a test inference and no more.

If that fails, the states of the models are read, and a wrong output is checked against the config
as it is now: see :func:`.probe.probe_over`.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import (
    DEADLINE_S,
    SMALL_RESPONSE_BYTES,
    PodConnection,
    ProbeResult,
    probe,
    probe_over,
)
from triton_pipelines.triton.tls import TlsIdentity, accepted_identity

CONNECTIONS_MAX: Final = 2000
"""Maximum number of kept connections, each with 33 KiB of memory. Probes of further pods open their
own."""
NAMESPACE_SHARE: Final = 0.25
"""Share of these connections that the pods of one namespace may have."""
# The rest of the process's file descriptors is for requests to the API server, metrics pages,
# probes that open their own connection, and files.
_DESCRIPTOR_SHARE: Final = 0.5
# One to the pod, two between the relay and gRPC, and one to accept connections of gRPC.
_DESCRIPTORS: Final = 4
CONFIG_SECONDS: Final = 600.0
"""Seconds until config and index are read again: outputs may still be those of an earlier config,
and models that no test inference runs may have become unavailable."""
# A larger config or index is read for each probe. Pods choose their size.
_CONFIG_BYTES_MAX: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class PodEndpoint:
    """What a connection depends on; if any of it changes, another one is opened."""

    namespace: str
    """The pod's namespace."""
    address: str
    """``host:port`` of the pod's gRPC API."""
    ensemble: str
    """The pipeline's ensemble, or the entry model of a pipeline without one."""
    control_key: str | None = field(default=None, repr=False)
    """The pod's control key, for the repository index."""
    tls: TlsIdentity | None = None
    """How to connect with TLS; ``None`` for plaintext."""


def connections_max() -> int:
    """Return the maximum number of kept connections that the process's file descriptors permit."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, int(_DESCRIPTOR_SHARE * descriptors / _DESCRIPTORS))


@dataclass(slots=True)
class ProbeConnections:
    """Probes pods over connections that are kept; one instance per process.

    An async context manager, which closes them.
    """

    maximum: int = field(default_factory=connections_max)
    """Maximum number of kept connections."""
    namespace_share: float = NAMESPACE_SHARE
    """Share of them that one namespace may have."""
    clock: Callable[[], float] = time.monotonic
    """Returns the current time in seconds, for the age of configs."""
    _kept: dict[str, tuple[PodEndpoint, PodConnection]] = field(default_factory=dict)
    """By pod uid, while no probe uses them."""
    _by_namespace: Counter[str] = field(default_factory=Counter)
    """Number of kept connections, by namespace."""
    _large: set[str] = field(default_factory=set)
    """Uids of pods whose outputs exceed the limit of a kept connection."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    async def probe(
        self,
        pod: str,
        endpoint: PodEndpoint,
        request: ProbeRequest | None,
        deadline_s: float = DEADLINE_S,
    ) -> ProbeResult:
        """Probe a pod as :func:`.probe.probe` does.

        A connection that failed since its last use is replaced within the same probe.

        Args:
            pod: the pod's uid.
            endpoint: the pod's address and credentials.
            request: request of the test inference; ``None`` probes readiness and states only.
            deadline_s: seconds for the whole probe.
        """
        end = time.monotonic() + deadline_s
        connection, unchecked = self._take(pod, endpoint), None
        was_kept = connection is not None
        if connection is None and pod not in self._large and self._has_room(endpoint.namespace):
            connection = await self._connect(endpoint)
        if connection is not None:
            result = await self._probe_over(pod, endpoint, connection, request, end)
            if result.is_unchecked:
                unchecked = result
            elif not (was_kept and result.is_unreachable):
                return result
        # A connection of its own may accept larger outputs, and check them.
        found = await probe(
            endpoint.address,
            endpoint.ensemble,
            endpoint.control_key,
            request,
            end - time.monotonic(),
            endpoint.tls,
        )
        return unchecked if unchecked is not None and found.error else found

    def close(self, pod: str) -> None:
        """Close the connection to a pod that is gone.

        Args:
            pod: the pod's uid.
        """
        self._large.discard(pod)
        if (kept := self._pop(pod)) is not None:
            self._close(kept[1])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        for pod in tuple(self._kept):
            self.close(pod)
        await asyncio.gather(*self._closing)

    def __len__(self) -> int:
        return len(self._kept)

    def _take(self, pod: str, endpoint: PodEndpoint) -> PodConnection | None:
        """Return the connection to a pod, unless it leads to another endpoint."""
        kept = self._pop(pod)
        if kept is None:
            return None
        former, connection = kept
        if former != endpoint:
            self._close(connection)
            return None
        if self.clock() - connection.config_read_at >= CONFIG_SECONDS:
            connection.config = connection.models = None
        return connection

    async def _probe_over(
        self,
        pod: str,
        endpoint: PodEndpoint,
        connection: PodConnection,
        request: ProbeRequest | None,
        end: float,
    ) -> ProbeResult:
        """Probe over a connection; keep it unless the probe failed or was canceled."""
        is_kept = False
        try:
            result = await probe_over(connection, endpoint.ensemble, request, end)
            if result.is_unchecked:
                self._large.add(pod)
            is_kept = not result.error and not result.is_unchecked
        finally:
            if is_kept:
                self._keep(pod, endpoint, connection)
            else:
                self._close(connection)
        return result

    def _keep(self, pod: str, endpoint: PodEndpoint, connection: PodConnection) -> None:
        """Keep a connection if there is room, instead of one of a probe at the same time."""
        self.close(pod)
        if not self._has_room(endpoint.namespace):
            self._close(connection)
            return
        if _size(connection) > _CONFIG_BYTES_MAX:
            connection.config = connection.models = None
        self._kept[pod] = endpoint, connection
        self._by_namespace[endpoint.namespace] += 1

    def _has_room(self, namespace: str) -> bool:
        """Return whether one more connection to a pod of a namespace may be kept."""
        share = max(1.0, self.namespace_share * self.maximum)
        return len(self._kept) < self.maximum and self._by_namespace[namespace] < share

    def _pop(self, pod: str) -> tuple[PodEndpoint, PodConnection] | None:
        """Remove and return a kept connection, if there is one."""
        kept = self._kept.pop(pod, None)
        if kept is not None:
            namespace = kept[0].namespace
            self._by_namespace[namespace] -= 1
            if not self._by_namespace[namespace]:
                del self._by_namespace[namespace]
        return kept

    def _close(self, connection: PodConnection) -> None:
        task = asyncio.create_task(connection.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _connect(self, endpoint: PodEndpoint) -> PodConnection:
        tls = await accepted_identity(endpoint.address, endpoint.tls)
        client = TritonClient(
            endpoint.address,
            endpoint.control_key,
            max_response_bytes=SMALL_RESPONSE_BYTES,
            tls=tls,
        )
        return PodConnection(client, self.clock)


def _size(connection: PodConnection) -> int:
    """Return the bytes of what was read over a connection, roughly."""
    config = connection.config.ByteSize() if connection.config is not None else 0
    models = connection.models or ()
    return int(config) + sum(len(model.name) + len(model.reason) for model in models)
