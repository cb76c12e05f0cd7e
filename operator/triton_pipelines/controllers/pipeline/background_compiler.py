"""Parse and compile large specs in threads, so that the event loop stays free for other pipelines.

Small specs are compiled at once: that takes less time than a change of threads costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode

from .compiled_pipeline import CompiledPipeline, CompileInputs, compile_parsed
from .effective_spec import Key, ParsedSpec, Resolver, identity_of
from .snapshot import Object, Snapshot

# Bytes of a spec from which on it is compiled in a thread.
LARGE_SPEC: Final = 16 * 1024
THREADS: Final = 4
# Seconds that a spec may take; the largest valid ones take less than one.
BUDGET_SECONDS: Final = 10.0


class OverBudgetError(Exception):
    """A spec takes longer than its budget; its thread continues."""


@dataclass(slots=True)
class BackgroundCompiler:
    """Fills the resolver's cache from threads; its methods run on the event loop's thread."""

    resolver: Resolver
    """Caches parsed and compiled specs."""
    budget_seconds: float = BUDGET_SECONDS
    """Time that the parsing or the compilation of one spec may take."""
    large_spec: int = LARGE_SPEC
    """Bytes of a spec from which on a thread is used."""
    _executor: ThreadPoolExecutor = field(init=False)
    _started: dict[Key, tuple[object, asyncio.Future[tuple[Any, float]]]] = field(
        default_factory=dict, init=False
    )
    """What was started for each pipeline and has not been used yet."""
    _cpu_seconds: dict[Key, float] = field(default_factory=dict, init=False)
    """CPU time spent on each pipeline since it was last taken."""

    def __post_init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="compile")

    async def read(self, key: Key, raw: Object) -> ParsedSpec:
        """Return the parsed spec of a raw pipeline; one over its budget has a finding."""
        identity = identity_of(raw)
        known = self.resolver.known(raw, identity)
        if known is not None or identity.size < self.large_spec:
            return known or self.resolver.read(raw)
        try:
            parsed = await self._run(key, identity, lambda: ParsedSpec.of(raw, identity))
        except OverBudgetError:
            return ParsedSpec.rejected(identity, self._finding())
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
            return [self._finding()]
        spec.keep(inputs, compiled, options)
        return compiled

    def take_cpu_seconds(self, key: Key) -> float:
        """Return the CPU time spent on a pipeline since the last call."""
        return self._cpu_seconds.pop(key, 0.0)

    def forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline, also by the resolver."""
        self.resolver.forget(key)
        self._started.pop(key, None)
        self._cpu_seconds.pop(key, None)

    async def _run(self, key: Key, work: object, call: Callable[[], Any]) -> Any:
        """Run a call in a thread and return its result.

        A call that was started before for the same work is waited for again, never repeated.

        Raises:
            OverBudgetError: it has not ended within the budget.
        """
        started = self._started.get(key)
        if started is None or started[0] != work:
            loop = asyncio.get_running_loop()
            started = work, loop.run_in_executor(self._executor, _timed, call)
            self._started[key] = started
        try:
            result, seconds = await asyncio.wait_for(
                asyncio.shield(started[1]), self.budget_seconds
            )
        except TimeoutError as error:
            self._count(key, self.budget_seconds)
            raise OverBudgetError from error
        finally:
            if started[1].done():
                self._started.pop(key, None)
        self._count(key, seconds)
        return result

    def _count(self, key: Key, seconds: float) -> None:
        self._cpu_seconds[key] = self._cpu_seconds.get(key, 0.0) + seconds

    def _finding(self) -> Finding:
        return Finding(
            "spec",
            f"takes longer than {self.budget_seconds:g} s to compile; shorten its lists and texts,"
            " or split the pipeline",
            code=FindingCode.TOO_LARGE,
        )


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return a call's result and the CPU seconds of its thread."""
    begin = time.thread_time()
    result = call()
    return result, time.thread_time() - begin
