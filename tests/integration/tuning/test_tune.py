"""`tritonpipe tune` on a real Triton with a stand-in for the GPU step: measured, kept or proven, and nothing left changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google.protobuf import json_format

from tests.support.serving import ROOT, run, sample_sources
from triton_pipelines.api.status import TuningStatus
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.cli.local_pipeline import prepare_model_repository
from triton_pipelines.compile.graph import Graph, Options, build
from triton_pipelines.compile.graph.resource_patch import PaddingSetting, patch_pipeline
from triton_pipelines.compile.render.model_config import configs
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.tools.loadgen import LoadSpec
from triton_pipelines.tools.tuner.contract import Knobs, TuneTarget
from triton_pipelines.tools.tuner.knobs import knobs_of
from triton_pipelines.tools.tuner.measured_server import Server, load_of
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
FILE = ROOT / "bench" / "gpu-step.yaml"
KEY = "the key of this test"


@dataclass(frozen=True)
class Canary:
    """A Triton as a canary pod has it: control APIs restricted, nobody's traffic."""

    server: LocalTriton
    graph: Graph
    key: Path


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    with serving(FILE, tmp_path_factory.mktemp("canary")) as running:
        yield running


@contextlib.contextmanager
def serving(file: Path, folder: Path) -> Iterator[Canary]:
    """A canary of the resource in a file."""
    (folder / "key").write_text(KEY)
    pipeline, graph = load_pipeline(file, Options())
    sources = SourceMap.parse(rule.removeprefix("--source-map=") for rule in sample_sources())
    models = prepare_model_repository(pipeline, graph, Options(), folder, folder, sources)
    with LocalTriton(models, list(graph.load), control_key=KEY, stop_s=2) as server:
        yield Canary(server, graph, folder / "key")


def knobs(document: dict[str, Any]) -> Knobs:
    """A setting as the report tells it."""
    padding = document["padding"]
    return Knobs(
        **(document | {"padding": PaddingSetting(padding["mode"], tuple(padding["buckets"]))})
    )


async def running(canary: Canary) -> Knobs:
    """The setting that the server has."""
    async with TritonClient(canary.server.grpc_address) as client:
        model = await client.model_config("model")
        delay = model.dynamic_batching.max_queue_delay_microseconds
        tokenizers = await client.instance_count("tokenizer")
        assert await client.model_ready(canary.graph.model_name)
        return Knobs(model.max_batch_size, delay, model.instance_group[0].count, tokenizers)


async def test_a_run_measures_and_leaves_the_server_as_it_was(
    canary: Canary, tmp_path: Path
) -> None:
    report, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    done = run(
        *(
            "tune",
            str(FILE),
            "--server",
            canary.server.grpc_address,
            "--control-key-file",
            str(canary.key),
        ),
        *(
            "--slo",
            "300",
            "--seconds",
            "1.5",
            "--cores",
            "1",
            "--lengths",
            "median=100,sigma=0.4,cap=256",
        ),
        *("--output", "json", "--report-file", str(report), "--plot", str(plot)),
        seconds=240,
    )
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    said = json.loads(done.stdout)
    points = said["points"]
    assert len(points) >= 3
    assert len(points) <= 6
    assert said["failed_requests"] == 0, said["notes"]
    assert all(point["carried"] > 0 for point in points)
    assert [end["name"] for end in said["ends"]] == ["latency first", "throughput first"]
    model = next(step for step in said["steps"] if step["step"] == "model")
    # The stand-in's own law: 2 ms for each execution, 1.5 us for each token, and what Triton adds.
    assert 1.5e-3 < model["fixed"] < 6e-3
    assert 0.7e-6 < model["per_token"] < 4e-6
    status = TuningStatus.model_validate(json.loads(report.read_text()))
    assert len(status.points) == len(points) + 2
    assert "latency budget" in plot.read_text()
    before, _ = load_pipeline(FILE, Options())
    recommended = knobs(said["recommended"])
    if status.patch:
        after = build(patch_pipeline(before, yaml.safe_load(status.patch)), Options())
        assert knobs_of(after) == recommended
        configs(after)
        assert all(
            point["outcome"] == "WithinSLO"
            for point in points
            if knobs(point["knobs"]) == recommended
        )
    else:
        assert recommended == knobs_of(canary.graph)
    assert await running(canary) == knobs_of(canary.graph)
    assert said["padding"].startswith("Ragged is cheapest"), (
        "each request keeps its own length already, and no buckets can be better"
    )


async def test_a_padding_that_costs_less_is_tried_on_the_server_and_taken_back(
    tmp_path: Path,
) -> None:
    """The step costs 2 ms and 1.5 us a token; Fixed computes 512 tokens a row of texts with some 30."""
    document = yaml.safe_load(FILE.read_text())
    document["spec"]["tokenizer"]["padding"] = "Fixed"
    document["spec"]["model"]["maxBatchSize"] = 32
    file = tmp_path / "fixed.yaml"
    file.write_text(yaml.safe_dump(document))
    with serving(file, tmp_path) as canary:
        done = run(
            *(
                "tune",
                str(file),
                "--server",
                canary.server.grpc_address,
                "--control-key-file",
                str(canary.key),
            ),
            *("--slo", "200", "--seconds", "1.5", "--cores", "1", "--output", "json"),
            seconds=240,
        )
        assert done.returncode == 0, done.stderr
        async with TritonClient(canary.server.grpc_address) as client:
            tokenizer = await client.model_config("tokenizer")
        assert tokenizer.parameters["tritonpipe.padding"].string_value == "Fixed"
        assert await running(canary) == knobs_of(canary.graph)
    said = json.loads(done.stdout)
    model = next(step for step in said["steps"] if step["step"] == "model")
    # Told although the pipeline's own padding makes all rows equally long.
    assert 0.7e-6 < model["per_token"] < 4e-6 or not model["fitted"]
    assert said["padding"].startswith("Ragged is cheapest")
    assert "Fixed" in said["advice"]
    assert "(in force)" in said["advice"]
    tried = [point for point in said["points"] if point["knobs"]["padding"]["mode"] == "Ragged"]
    assert tried, said["notes"]
    if said["patch"]:  # a busy machine proves nothing
        before, _ = load_pipeline(file, Options())
        after = build(patch_pipeline(before, said["patch"]), Options())
        assert after.padding is not None
        chosen = said["recommended"]["padding"]["mode"] or Padding.FIXED.value
        assert after.padding.chosen.value == chosen
        assert ("proven on the server" in said["advice"]) == (chosen == Padding.RAGGED.value)


async def test_what_ran_comes_back_field_by_field_whatever_the_resource_says(
    canary: Canary,
) -> None:
    """Instances, delay and batch size that were changed by hand before; the very configs that Triton tells are compared."""
    models = ("tokenizer", "model", canary.graph.model_name)
    target = TuneTarget(canary.server.grpc_address, lambda changed: build(changed, Options()), KEY)
    pipeline, graph = load_pipeline(FILE, Options())

    async with TritonClient(canary.server.grpc_address, KEY) as client:

        async def told() -> list[Any]:
            return [await client.model_config(name) for name in models]

        async def tried() -> tuple[list[str], list[Any]]:
            async with Server(target, pipeline, graph) as server:
                await server.put(Knobs(32, 1000, 2, 1))
                assert await running(canary) == Knobs(32, 1000, 2, 1)
                return server.notes, await told()

        first = await told()
        notes, other = await tried()
        assert notes == [], "it ran what the resource says"
        assert first == await told()
        assert first != other
        before = await running(canary)
        try:
            tokenizer, model, public = (
                json_format.Parse(json_format.MessageToJson(one), type(one)()) for one in first
            )
            tokenizer.instance_group[0].count, tokenizer.max_batch_size = 2, 16
            (
                model.instance_group[0].count,
                model.max_batch_size,
                model.dynamic_batching.max_queue_delay_microseconds,
            ) = 3, 16, 3000
            public.max_batch_size = 16
            for config in (tokenizer, model, public):
                await client.load_model(
                    config.name, json_format.MessageToJson(config, preserving_proto_field_name=True)
                )
            by_hand = await told()
            assert await running(canary) == Knobs(16, 3000, 3, 2)
            notes, _ = await tried()
            assert any(
                "model ran with max_batch_size 16 (2), a queue delay of 3000 us (0), instances: 3 (1)"
                in note
                for note in notes
            )
            assert by_hand == await told()
        finally:
            for config in reversed(first):
                await client.load_model(
                    config.name, json_format.MessageToJson(config, preserving_proto_field_name=True)
                )
        assert await running(canary) == before


async def test_an_overload_ends_in_seconds_and_the_server_is_free_again(canary: Canary) -> None:
    """Some 1500 requests/s on a step that carries 500, for a minute: shown in seconds, all told as too late or answered, none failed."""
    target = TuneTarget(canary.server.grpc_address, lambda changed: build(changed, Options()), KEY)
    pipeline, graph = load_pipeline(FILE, Options())
    async with Server(target, pipeline, graph) as server:
        requests = [{"TEXT": np.array([[b"a text of some words"]], dtype=object)}]
        clock = asyncio.get_running_loop().time
        begun = clock()
        result = await server.run(
            requests, LoadSpec(rate=1500, duration_s=60, warmup_s=0.5, behind_s=1.0)
        )
        assert clock() - begun < 30
        assert result.overloaded
        assert 1 < result.end_s < 15
        found = load_of(result)
        assert found.faults == 0, found.first_error
        assert found.p99 > 0.9
        assert server.failed == 0
        begun = clock()
        await server.answers(requests)
        assert clock() - begun < 2, "nothing is left of it"


async def test_without_the_key_nothing_is_changed(canary: Canary) -> None:
    done = run("tune", str(FILE), "--server", canary.server.grpc_address, "--seconds", "1")
    assert done.returncode == 3
    assert "restricted" in done.stderr or "key" in done.stderr
    assert await running(canary) == knobs_of(canary.graph)


def test_a_server_of_another_pipeline_is_refused(canary: Canary, tmp_path: Path) -> None:
    other = yaml.safe_load(FILE.read_text())
    other["metadata"]["name"] = "other"
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    done = run("tune", str(tmp_path / "other.yaml"), "--server", canary.server.grpc_address)
    assert done.returncode == 3
    assert "does not run this pipeline" in done.stderr


def test_a_pipeline_without_a_promise_is_told_so(tmp_path: Path) -> None:
    document = yaml.safe_load(FILE.read_text())
    del document["spec"]["slo"]
    (tmp_path / "open.yaml").write_text(yaml.safe_dump(document))
    done = run("tune", str(tmp_path / "open.yaml"))
    assert done.returncode == 1
    assert "spec.slo.p99Milliseconds" in done.stderr
    assert "--slo" in done.stderr
