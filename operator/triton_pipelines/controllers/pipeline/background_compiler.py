"""Parse and compile large specs in threads, so that the event loop stays free for other pipelines.

Small specs are compiled at once: that takes less time than a change of threads costs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode

from .compiled_pipeline import CompiledPipeline, CompileInputs, compile_parsed
from .effective_spec import Key, ParsedSpec, Resolver, identity_of
from .policies.last_good_spec import last_good_snapshot
from .snapshot import Object, Snapshot

# Bytes of a spec from which on it is compiled in a thread.
LARGE_SPEC: Final = 16 * 1024
THREADS: Final = 4
# CPU seconds that a spec may take; the largest valid ones take less than one.
BUDGET_SECONDS: Final = 10.0


class OverBudgetError(Exception):
    """A spec takes more CPU time than its budget; its thread continues."""


class CompilationPending(Exception):  # noqa: N818
    """No thread is free; the pipeline is enqueued when one is."""


@dataclass(slots=True)
class _Places:
    """Threads that are taken, one per namespace at most, and the pipelines that wait for one.

    A pipeline that waits occupies no worker of the queue: its iteration ends. The next one has a
    thread reserved.
    """

    enqueue: Callable[[Key], None]
    """Makes a pipeline due."""
    _taken: dict[str, Key | None] = field(default_factory=dict, init=False)
    """By namespace, the pipeline for which a thread is reserved; ``None`` if the thread is used."""
    _waiting: dict[str, dict[Key, None]] = field(default_factory=dict, init=False)
    """By namespace, the next one first."""

    def take(self, key: Key, *, has_begun: bool) -> None:
        """Take a thread.

        Args:
            key: The pipeline.
            has_begun: Whether it has used a thread before in this iteration, as to parse its spec.
                It is then the next one to get a thread again.

        Raises:
            CompilationPending: None is free.
        """
        namespace = key[0]
        is_free = namespace not in self._taken and len(self._taken) < THREADS
        if is_free or self._taken.get(namespace) == key:
            self._taken[namespace] = None
            return
        waiting = self._waiting.setdefault(namespace, {})
        waiting[key] = None
        if has_begun:
            first = {namespace: {key: None, **waiting}}
            self._waiting = {**first, **self._waiting, **first}
        raise CompilationPending

    def release(self, namespace: str) -> None:
        """Release a thread, and reserve free ones for the pipelines that wait."""
        del self._taken[namespace]
        ready = [name for name in self._waiting if name not in self._taken]
        for name in ready[: THREADS - len(self._taken)]:
            waiting = self._waiting.pop(name)
            key = next(iter(waiting))
            del waiting[key]
            if waiting:
                self._waiting[name] = waiting
            self._taken[name] = key
            self.enqueue(key)

    def give_back(self, key: Key) -> None:
        """Release the thread that is reserved for a pipeline, if there is one."""
        if self._taken.get(key[0]) == key:
            self.release(key[0])

    def forget(self, key: Key) -> None:
        """Let a pipeline wait no longer."""
        waiting = self._waiting.get(key[0], {})
        waiting.pop(key, None)
        if not waiting:
            self._waiting.pop(key[0], None)
        self.give_back(key)


class _Job:
    """One call in a thread, with the CPU time that it takes."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._clock: int | None = None
        self._began = 0.0

    def __call__(self) -> Any:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._began = time.clock_gettime(clock)
        self._clock = clock
        return self._call()

    def cpu_seconds(self) -> float:
        """Return the CPU time since the call began; 0 while it waits for a thread."""
        return 0.0 if self._clock is None else time.clock_gettime(self._clock) - self._began


@dataclass(slots=True)
class BackgroundCompiler:
    """Fills the resolver's cache from threads; its methods run on the event loop's thread.

    Those that compile raise :class:`CompilationPending` while no thread is free.
    """

    resolver: Resolver
    """Caches parsed and compiled specs."""
    enqueue: Callable[[Key], None] = lambda _: None
    """Makes a pipeline due when a thread is free for it."""
    budget_seconds: float = BUDGET_SECONDS
    """CPU time that the parsing or the compilation of one spec may take. Waiting does not count."""
    large_spec: int = LARGE_SPEC
    """Bytes of a spec from which on a thread is used."""
    _executor: ThreadPoolExecutor = field(init=False)
    _rejected: dict[Key, object] = field(default_factory=dict, init=False)
    """The work of each pipeline that exceeded the budget. It is not tried again."""
    _places: _Places = field(init=False)
    _cpu_seconds: dict[Key, float] = field(default_factory=dict, init=False)
    """CPU time spent on each pipeline since it was last taken."""

    def __post_init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="compile")
        self._places = _Places(self.enqueue)

    async def read(self, key: Key, raw: Object) -> ParsedSpec:
        """Return the parsed spec of a raw pipeline; one over its budget has a finding."""
        identity = identity_of(raw)
        known = self.resolver.known(raw, identity)
        if known is not None or identity.size < self.large_spec:
            return known or self.resolver.read(raw)
        try:
            parsed = await self._run(key, identity, lambda: ParsedSpec.of(raw, identity))
        except OverBudgetError:
            # Kept, so that the resolver does not parse it on the event loop.
            parsed = ParsedSpec.rejected(identity, self._finding())
        return self.resolver.keep(raw, parsed)

    async def compile(
        self, key: Key, spec: ParsedSpec, snapshot: Snapshot
    ) -> CompiledPipeline | list[Finding]:
        """Return the compiled spec or its findings."""
        inputs, options = CompileInputs.of(snapshot), self.resolver.options
        pipeline = spec.pipeline
        is_small = spec.identity.size < self.large_spec
        if pipeline is None or is_small or spec.known(inputs) is not None:
            return spec.compile(inputs, options)
        try:
            compiled: CompiledPipeline | list[Finding] = await self._run(
                key, (spec.identity, inputs), lambda: compile_parsed(pipeline, inputs, options)
            )
        except OverBudgetError:
            compiled = [self._finding()]
        spec.keep(inputs, compiled, options)
        return compiled

    async def compile_last_good(
        self, key: Key, snapshot: Snapshot, compiled: CompiledPipeline | list[Finding]
    ) -> None:
        """Compile the last good spec into the cache, if the policies will read it from there.

        Args:
            key: The pipeline.
            snapshot: What is known of it.
            compiled: The result of :meth:`compile`.
        """
        if isinstance(compiled, CompiledPipeline) and not snapshot.is_spec_blocked:
            return
        document = snapshot.last_good_document
        if len(document) < self.large_spec:
            last = last_good_snapshot(snapshot)
        else:
            # What it parses is cached for the policies, which read it on the event loop.
            last = await self._run(key, document, lambda: last_good_snapshot(snapshot))
        if last is not None:
            await self.compile(key, await self.read(key, last.pipeline), last)

    def end_iteration(self, key: Key) -> None:
        """Release a thread that was reserved for an iteration which did not need it."""
        self._places.give_back(key)

    def take_cpu_seconds(self, key: Key) -> float:
        """Return the CPU time spent on a pipeline since the last call."""
        return self._cpu_seconds.pop(key, 0.0)

    def forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline, also by the resolver."""
        self.resolver.forget(key)
        self._places.forget(key)
        self._rejected.pop(key, None)
        self._cpu_seconds.pop(key, None)

    async def _run(self, key: Key, work: object, call: Callable[[], Any]) -> Any:
        """Run a call in a thread and return its result.

        Raises:
            OverBudgetError: it has exceeded its budget, now or before.
            CompilationPending: no thread is free.
        """
        if self._rejected.get(key) == work:
            raise OverBudgetError
        self._rejected.pop(key, None)
        self._places.take(key, has_begun=key in self._cpu_seconds)
        job = _Job(call)
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)

        def end(_: object) -> None:
            self._places.release(key[0])
            if not future.cancelled():
                future.exception()  # its waiter may have been canceled

        future.add_done_callback(end)
        while not future.done():
            await asyncio.wait({future}, timeout=self.budget_seconds)
            if not future.done() and job.cpu_seconds() >= self.budget_seconds:
                self._rejected[key] = work
                self._count(key, job.cpu_seconds())
                raise OverBudgetError
        self._count(key, job.cpu_seconds())
        return future.result()

    def _count(self, key: Key, seconds: float) -> None:
        self._cpu_seconds[key] = self._cpu_seconds.get(key, 0.0) + seconds

    def _finding(self) -> Finding:
        return Finding(
            "spec",
            f"compilation takes more than {self.budget_seconds:g} s of CPU time; "
            "reduce the number of steps, labels or other list entries, or split the pipeline",
            code=FindingCode.TOO_LARGE,
        )
