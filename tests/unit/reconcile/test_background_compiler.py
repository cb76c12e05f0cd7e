"""Large specs are compiled in threads, within a budget."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import World
from triton_pipelines.cluster.work_queue import Key, Result, WorkQueue
from triton_pipelines.compile.graph import Options
from triton_pipelines.controllers.pipeline import background_compiler, effective_spec
from triton_pipelines.controllers.pipeline.background_compiler import (
    THREADS,
    BackgroundCompiler,
    CompilationPending,
)
from triton_pipelines.controllers.pipeline.compiled_pipeline import CompiledPipeline
from triton_pipelines.controllers.pipeline.effective_spec import ParsedSpec, Resolver
from triton_pipelines.controllers.pipeline.policies import last_good_spec
from triton_pipelines.controllers.pipeline.policies.last_good_spec import compile_last_good
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

KEY = ("nlp", "sentiment")
OPTIONS = Options(server_image=builders.SERVER_IMAGE, loader_image=builders.LOADER_IMAGE)


def large_document(variables: int = 800) -> dict[str, Any]:
    env = [{"name": f"VARIABLE_{number}", "value": "x"} for number in range(variables)]
    containers = [{"name": "triton", "env": env}]
    return builders.document(server={"podTemplate": {"spec": {"containers": containers}}})


def snapshot_of(raw: dict[str, Any]) -> Snapshot:
    return Snapshot(raw, {}, (), {}, {}, {}, None, None, None, None)


async def compiled_by(compiler: BackgroundCompiler, raw: dict[str, Any]) -> Any:
    spec = await compiler.read(KEY, raw)
    return await compiler.compile(KEY, spec, snapshot_of(raw))


T = TypeVar("T")


async def once_free(due: asyncio.Event, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call, repeated whenever it may find a free thread."""
    while True:
        due.clear()
        try:
            return await call()
        except CompilationPending:
            await due.wait()


class Compilations:
    """Compiles each spec as soon as a thread is free for it."""

    def __init__(self) -> None:
        self.compiler = BackgroundCompiler(Resolver(OPTIONS), lambda key: self.due[key].set())
        self.due: dict[Key, asyncio.Event] = {}

    async def start(self, namespace: str, count: int) -> list[asyncio.Task[Any]]:
        """Start to compile this many large specs of a namespace."""
        raws = [large_document(800 + number) for number in range(count)]
        keys = [(namespace, f"p{number}") for number in range(count)]
        specs = [await self.compiler.read(key, raw) for key, raw in zip(keys, raws, strict=True)]
        return [
            asyncio.create_task(self._compile(key, spec, raw))
            for key, spec, raw in zip(keys, specs, raws, strict=True)
        ]

    async def _compile(self, key: Key, spec: ParsedSpec, raw: dict[str, Any]) -> Any:
        due = self.due[key] = asyncio.Event()
        return await once_free(due, lambda: self.compiler.compile(key, spec, snapshot_of(raw)))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that compiled."""
    names: list[str] = []
    compile_parsed = background_compiler.compile_parsed

    def recorded(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return compile_parsed(*arguments)

    monkeypatch.setattr(background_compiler, "compile_parsed", recorded)
    return names


class Slow:
    """Compiles only once it may end; until then the first call uses CPU."""

    def __init__(self, compile_parsed: Callable[..., Any]) -> None:
        self.calls = 0
        self.started = threading.Event()
        self._compile_parsed = compile_parsed
        self._ended, self._passing = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        self.started.set()
        until = time.monotonic() + 30
        passes = self._passing.is_set()
        while not passes and not self._ended.is_set() and time.monotonic() < until:
            pass
        return self._compile_parsed(*arguments)

    def end(self) -> None:
        self._ended.set()

    def pass_others(self) -> None:
        """Calls from now on are not slow."""
        self._passing.set()


async def test_a_large_spec_is_compiled_once_in_a_thread(threads: list[str]) -> None:
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    raw = large_document()
    assert isinstance(await compiled_by(compiler, raw), CompiledPipeline)
    assert compiler.take_cpu_seconds(KEY) > 0
    assert isinstance(await compiled_by(compiler, raw), CompiledPipeline)
    assert compiler.take_cpu_seconds(KEY) == 0
    assert [name.startswith("compile") for name in threads] == [True]
    assert isinstance(compiler.resolver.resolve(snapshot_of(raw)), CompiledPipeline)


def with_last_good(**changes: Any) -> Snapshot:
    """What a new operator finds of a large pipeline whose spec has since become invalid."""
    raw = large_document()
    raw["metadata"]["generation"] = 1
    world = World(raw).started()
    world.change(postprocess={"labels": ["a", "b", "c"]}, **changes)
    return world.observed()


async def test_a_large_last_good_spec_is_compiled_in_a_thread_too(
    threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that has just started knows it from the live ConfigMap alone."""
    snapshot = with_last_good()
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    found = await compiled_by(compiler, snapshot.pipeline)
    assert not isinstance(found, CompiledPipeline)

    def refuse(*_: Any) -> Any:
        raise AssertionError("compiled on the event loop")

    monkeypatch.setattr(effective_spec, "compile_parsed", refuse)
    await compiler.compile_last_good(KEY, snapshot, found)
    assert compile_last_good(snapshot, compiler.resolver.resolve) is not None
    assert [name.startswith("compile") for name in threads] == [True, True]


async def test_the_record_of_a_large_last_good_spec_is_parsed_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fields of the current spec; anyone may edit the record."""
    snapshot = with_last_good(replicas=6)
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    found = await compiled_by(compiler, snapshot.pipeline)
    parse, threads = last_good_spec.parse, list[str]()

    def recorded(document: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(document)

    monkeypatch.setattr(last_good_spec, "parse", recorded)
    await compiler.compile_last_good(KEY, snapshot, found)
    assert compile_last_good(snapshot, compiler.resolver.resolve) is not None
    assert [name.startswith("compile") for name in threads] == [True]


async def test_a_small_spec_needs_no_thread(threads: list[str]) -> None:
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    assert isinstance(await compiled_by(compiler, builders.document()), CompiledPipeline)
    assert threads == []


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow(background_compiler.compile_parsed)
    monkeypatch.setattr(background_compiler, "compile_parsed", made)
    return made


async def test_a_spec_over_its_budget_has_a_finding_and_delays_no_other(
    slow: Slow, messages: Messages
) -> None:
    due = asyncio.Event()
    compiler = BackgroundCompiler(Resolver(OPTIONS), lambda _: due.set())
    raw = large_document()
    spec = await compiler.read(KEY, raw)
    compiler.budget_seconds = 0.05
    compiler.take_cpu_seconds(KEY)
    found = await compiler.compile(KEY, spec, snapshot_of(raw))
    assert [(item.path, item.code) for item in found] == [("spec", "too-large")]
    assert "CPU" in found[0].message
    messages.check(found[0].message)
    assert compiler.take_cpu_seconds(KEY) >= 0.05
    other = builders.document(name="other")
    small = await compiler.read(("nlp", "other"), other)
    assert isinstance(
        await compiler.compile(("nlp", "other"), small, snapshot_of(other)), CompiledPipeline
    )
    # The verdict stays, also when the thread has ended, until the spec changes.
    slow.end()
    compiler.budget_seconds = 30.0
    assert await compiler.compile(KEY, spec, snapshot_of(raw)) != []
    assert slow.calls == 1
    changed = large_document(801)
    spec = await once_free(due, lambda: compiler.read(KEY, changed))
    assert isinstance(await compiler.compile(KEY, spec, snapshot_of(changed)), CompiledPipeline)


@pytest.mark.parametrize("stage", ["parse", "compile"])
async def test_a_last_good_spec_over_its_budget_stays_off_the_event_loop(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of it is in a ConfigMap, which anyone may have edited."""
    snapshot, due = with_last_good(), asyncio.Event()
    compiler = BackgroundCompiler(Resolver(OPTIONS), lambda _: due.set())
    found = await compiled_by(compiler, snapshot.pipeline)

    def over_budget(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*arguments: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                raise AssertionError(f"{stage} on the event loop")
            until = time.thread_time() + 0.2
            while time.thread_time() < until:
                pass
            return call(*arguments)

        return refuse

    if stage == "parse":
        slow_parse = over_budget(effective_spec.ParsedSpec.of)
        monkeypatch.setattr(effective_spec.ParsedSpec, "of", slow_parse)
    else:
        slow_compile = over_budget(background_compiler.compile_parsed)
        monkeypatch.setattr(background_compiler, "compile_parsed", slow_compile)
        monkeypatch.setattr(effective_spec, "compile_parsed", slow_compile)
    compiler.budget_seconds = 0.05
    for _ in range(2):
        await once_free(due, lambda: compiler.compile_last_good(KEY, snapshot, found))
        assert compile_last_good(snapshot, compiler.resolver.resolve) is None


async def test_slow_specs_of_one_namespace_occupy_one_thread(slow: Slow) -> None:
    compilations = Compilations()
    compiler, tasks = compilations.compiler, await compilations.start("hostile", 2 * THREADS)
    await asyncio.to_thread(slow.started.wait, 30)
    slow.pass_others()
    raw = large_document(900)
    spec = await compiler.read(KEY, raw)
    assert isinstance(await compiler.compile(KEY, spec, snapshot_of(raw)), CompiledPipeline)
    assert slow.calls == 2, "one of the hostile namespace, and the other one"
    slow.end()
    assert all(isinstance(made, CompiledPipeline) for made in await asyncio.gather(*tasks))


async def test_waiting_for_a_thread_is_not_charged(slow: Slow) -> None:
    """Valid specs that wait for each other are not over their budget."""
    compilations = Compilations()
    compilations.compiler.budget_seconds = 5.0
    tasks = await compilations.start("nlp", 3)
    await asyncio.to_thread(slow.started.wait, 30)
    slow.end()
    assert all(isinstance(made, CompiledPipeline) for made in await asyncio.gather(*tasks))


async def test_a_reserved_thread_that_is_not_needed_is_released(slow: Slow) -> None:
    """The pipeline was deleted, or its spec has become small."""
    due = list[Key]()
    compiler = BackgroundCompiler(Resolver(OPTIONS), due.append)
    keys = [("nlp", name) for name in ("first", "deleted", "small", "last")]
    raws = {key: large_document(800 + number) for number, key in enumerate(keys)}
    specs = {key: await compiler.read(key, raws[key]) for key in keys}

    async def compiled(key: Key) -> Any:
        compiler.take_cpu_seconds(key)  # as at the end of an iteration
        return await compiler.compile(key, specs[key], snapshot_of(raws[key]))

    first = asyncio.create_task(compiled(keys[0]))
    await asyncio.to_thread(slow.started.wait, 30)
    for key in keys[1:]:
        with pytest.raises(CompilationPending):
            await compiled(key)
    slow.end()
    assert isinstance(await first, CompiledPipeline)
    assert due == keys[1:2]
    with pytest.raises(CompilationPending):
        await compiled(keys[2])
    compiler.forget(keys[1])
    assert due == keys[1:3]
    compiler.end_iteration(keys[2])
    assert due == keys[1:4]
    assert isinstance(await compiled(keys[3]), CompiledPipeline)


async def test_the_event_loop_runs_while_a_large_spec_is_compiled() -> None:
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    task = asyncio.create_task(compiled_by(compiler, large_document(1_000)))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert isinstance(await task, CompiledPipeline)
    assert turns > 10


NAMESPACES = 20
EACH = 5


async def test_expensive_specs_of_many_namespaces_leave_workers_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for threads, and their namespaces take turns."""
    release, order = threading.Event(), list[Key]()
    compile_parsed = background_compiler.compile_parsed

    def blocked(*arguments: Any) -> Any:
        assert release.wait(60)
        return compile_parsed(*arguments)

    monkeypatch.setattr(background_compiler, "compile_parsed", blocked)
    large, small = large_document(), builders.document()

    async def work(key: Key) -> Result:
        raw = small if key == KEY else large
        raw = {**raw, "metadata": {**raw["metadata"], "namespace": key[0], "name": key[1]}}
        try:
            spec = await compiler.read(key, raw)
            await compiler.compile(key, spec, snapshot_of(raw))
        except CompilationPending:
            return Result()
        finally:
            compiler.end_iteration(key)
        order.append(key)
        changed.set()
        return Result()

    queue, changed = WorkQueue(work, workers=THREADS + 1), asyncio.Event()
    compiler = BackgroundCompiler(Resolver(OPTIONS), queue.add)
    running = asyncio.create_task(queue.run())
    expensive = [
        (f"n{number}", f"p{index}") for index in range(EACH) for number in range(NAMESPACES)
    ]
    for key in expensive:
        queue.add(key)
    async with asyncio.timeout(60):
        while queue.in_work < THREADS or queue.depth:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0)
        queue.add(KEY)
        await changed.wait()
        assert order == [KEY], "the others have not got any further"
        release.set()
        while len(order) <= len(expensive):
            changed.clear()
            await changed.wait()
    queue.stop()
    await running
    assert sorted(order[1:]) == sorted(expensive)
    first = {namespace for namespace, _ in order[1 : 1 + NAMESPACES]}
    assert len(first) >= NAMESPACES - THREADS, "the namespaces take turns"
