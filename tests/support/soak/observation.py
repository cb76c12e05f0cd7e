"""What a run of faults has seen: the facts that invariants judge. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.faultproxy import MUTATING, Seen
from triton_pipelines.cluster.client import Object

LEASES_PATH = "/leases"


@dataclass(frozen=True, slots=True)
class Write:
    """One request of an operator process that may have changed something."""

    replica: str
    """Which process sent it; a restarted process is another replica."""
    method: str
    target: str
    """Path and query."""
    at: float
    """When it was sent (monotonic seconds)."""
    answered: float | None
    """When the API server answered; None if it never got there."""
    status: int | None
    """Status of the answer."""

    @property
    def succeeded(self) -> bool:
        """Whether the API server accepted it."""
        return self.status is not None and self.status < 300

    @property
    def is_lease(self) -> bool:
        """Whether it belongs to the leader election."""
        return LEASES_PATH in self.target


def writes_of(replica: str, requests: Sequence[Seen]) -> list[Write]:
    """Return the writes among the requests that reached a replica's proxy."""
    return [
        Write(replica, seen.method, seen.target, seen.at, seen.answered, seen.status)
        for seen in requests
        if seen.method in MUTATING
    ]


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod at the moment of a sample."""

    name: str
    pipeline: str
    ready: bool
    """Whether it is ready and not being deleted."""
    faulty: bool = False
    """Whether a fault of the run affects it at this moment."""
    instances: int = 1
    """Instances of the tokenizer that it runs."""


@dataclass(frozen=True, slots=True)
class PodSample:
    """All pods at one moment."""

    at: float
    """When (monotonic seconds)."""
    pods: tuple[PodState, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One inference request of the load."""

    at: float
    pipeline: str
    pod: str
    """The pod that it was sent to; empty if no pod was ready."""
    error: str = ""
    """Why it failed; empty if it was answered."""
    excused: bool = False
    """Whether the run's own fault was in that pod: no operator could have saved the request."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process uses."""

    name: str
    files: int
    """Open files and sockets."""
    memory_mib: float
    """Resident memory."""
    threads: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that is known after a fault."""

    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Names of all namespaces by UID."""
    first_namespaces: Mapping[str, str] = field(default_factory=dict)
    """The same at the start of the run."""
    desired: Mapping[str, Object] = field(default_factory=dict)
    """Specs by name, as the user last wrote them."""
    pipelines: Sequence[Object] = ()
    """All pipelines as stored."""
    children: Sequence[Object] = ()
    """All objects with the operator's label, ReplicaSets and pods included."""
    writes: Sequence[Write] = ()
    """Writes of all operator processes since the start of the run, by time."""
    settled_since: float = 0.0
    """From when on nothing should have been written (monotonic seconds)."""
    samples: Sequence[PodSample] = ()
    """Pods since the start of the run."""
    requests: Sequence[Request] = ()
    """Load since the start of the run."""
    leaders: Sequence[str] = ()
    """Running replicas that hold the Lease."""
    processes: Sequence[ProcessUse] = ()
    """The operator's processes, now."""
    expected_pids: frozenset[int] = frozenset()
    """Processes that the run has started and not ended."""
    pids: frozenset[int] = frozenset()
    """Processes of the run that exist."""
    open_ports: Sequence[int] = ()
    """Ports of ended processes on which something still listens."""
