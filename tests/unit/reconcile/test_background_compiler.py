"""Large specs are compiled in threads, within a budget."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.compile.graph import Options
from triton_pipelines.controllers.pipeline import background_compiler
from triton_pipelines.controllers.pipeline.background_compiler import BackgroundCompiler
from triton_pipelines.controllers.pipeline.compiled_pipeline import CompiledPipeline
from triton_pipelines.controllers.pipeline.effective_spec import Resolver
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


async def test_a_large_spec_is_compiled_once_in_a_thread(threads: list[str]) -> None:
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    raw = large_document()
    assert isinstance(await compiled_by(compiler, raw), CompiledPipeline)
    assert compiler.take_cpu_seconds(KEY) > 0
    assert isinstance(await compiled_by(compiler, raw), CompiledPipeline)
    assert compiler.take_cpu_seconds(KEY) == 0
    assert [name.startswith("compile") for name in threads] == [True]
    assert isinstance(compiler.resolver.resolve(snapshot_of(raw)), CompiledPipeline)


async def test_a_small_spec_needs_no_thread(threads: list[str]) -> None:
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    assert isinstance(await compiled_by(compiler, builders.document()), CompiledPipeline)
    assert threads == []


async def test_a_spec_over_its_budget_has_a_finding_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release, calls = threading.Event(), []
    compile_parsed = background_compiler.compile_parsed

    def slow(*arguments: Any) -> Any:
        calls.append(arguments)
        release.wait(30)
        return compile_parsed(*arguments)

    monkeypatch.setattr(background_compiler, "compile_parsed", slow)
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    raw = large_document()
    spec = await compiler.read(KEY, raw)
    compiler.budget_seconds = 0.05
    compiler.take_cpu_seconds(KEY)
    for _ in range(2):  # The second waits for the same thread.
        found = await compiler.compile(KEY, spec, snapshot_of(raw))
        assert [(item.path, item.code) for item in found] == [("spec", "too-large")]
        assert "takes longer than 0.05 s" in found[0].message
        assert compiler.take_cpu_seconds(KEY) == pytest.approx(0.05)
    assert len(calls) == 1
    other = builders.document(name="other")
    small = await compiler.read(("nlp", "other"), other)
    assert isinstance(
        await compiler.compile(("nlp", "other"), small, snapshot_of(other)), CompiledPipeline
    )
    release.set()
    compiler.budget_seconds = 30.0
    assert isinstance(await compiler.compile(KEY, spec, snapshot_of(raw)), CompiledPipeline)
    assert len(calls) == 1


async def test_the_event_loop_runs_while_a_large_spec_is_compiled() -> None:
    compiler = BackgroundCompiler(Resolver(OPTIONS))
    task = asyncio.create_task(compiled_by(compiler, large_document(1_000)))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert isinstance(await task, CompiledPipeline)
    assert turns > 10
