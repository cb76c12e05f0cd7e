"""`tritonpipe tune --server` on a real Triton with a simulated GPU step.

The server is set up like a canary pod: its control APIs are restricted, and it has no other
clients. Whatever a run measures, the server has its own setting again afterwards.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from google.protobuf import json_format

from tests.support.serving import ROOT, run, run_here, sample_sources
from triton_pipelines.api.tuning_status import TuningStatus
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.cli.local_pipeline import (
    prepare_model_repository,
    with_cpu_instances,
)
from triton_pipelines.compile.graph import Graph, Options, build
from triton_pipelines.compile.graph.resource_patch import PaddingSetting, patch_pipeline
from triton_pipelines.compile.render.model_config import configs
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.tools.loadgen import LoadSpec
from triton_pipelines.tools.tuner import BatchingSetting, TuningTarget
from triton_pipelines.tools.tuner.load_measurement import measurement_of
from triton_pipelines.tools.tuner.measured_server import MeasuredServer
from triton_pipelines.tools.tuner.settings import setting_of
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
FILE = ROOT / "bench" / "gpu-step.yaml"
KEY = "the key of this test"
# As short as a run can be.
SHORT = ("--seconds", "1.5", "--cores", "1", "--output", "json")


@dataclass(frozen=True)
class Canary:
    """A Triton server as a canary pod has it."""

    server: LocalTriton
    pipeline: InferencePipeline
    graph: Graph
    options: Options
    key: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options of the command."""
        return ("--server", self.server.grpc_address, "--control-key-file", str(self.key))

    @property
    def target(self) -> TuningTarget:
        """The server as a run has it."""
        return TuningTarget(
            self.server.grpc_address, lambda changed: build(changed, self.options), KEY
        )

    async def setting(self) -> BatchingSetting:
        """Return the setting that the server has."""
        async with TritonClient(self.server.grpc_address) as client:
            model = await client.model_config("model")
            tokenizers = await client.instance_count("tokenizer")
            assert await client.model_ready(self.graph.model_name)
            return BatchingSetting(
                model.max_batch_size,
                model.dynamic_batching.max_queue_delay_microseconds,
                model.instance_group[0].count,
                tokenizers,
            )


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    with serving(FILE, tmp_path_factory.mktemp("canary")) as running:
        yield running


@contextlib.contextmanager
def serving(file: Path, folder: Path) -> Iterator[Canary]:
    """Serve the resource of a file as a canary does."""
    (folder / "key").write_text(KEY)
    options = Options()
    pipeline, graph = load_pipeline(file, options)
    sources = SourceMap.parse(rule.removeprefix("--source-map=") for rule in sample_sources())
    models = prepare_model_repository(
        pipeline, with_cpu_instances(graph), options, folder, folder, sources
    )
    with LocalTriton(models, list(graph.load), control_key=KEY, stop_s=2) as server:
        yield Canary(server, pipeline, graph, options, folder / "key")


def written(path: Path, **spec: Any) -> Path:
    """Write the resource with changes to parts of its spec; ``None`` removes a part."""
    document = yaml.safe_load(FILE.read_text())
    for part, changes in spec.items():
        if changes is None:
            del document["spec"][part]
        else:
            document["spec"][part] |= changes
    path.write_text(yaml.safe_dump(document))
    return path


def setting(document: dict[str, Any]) -> BatchingSetting:
    """Return a setting of the JSON report."""
    padding = document["padding"]
    return BatchingSetting(
        **(document | {"padding": PaddingSetting(padding["mode"], tuple(padding["buckets"]))})
    )


def check_recommendation(canary: Canary, report: dict[str, Any]) -> None:
    """Check that the patch of a report leads to what was verified, if anything was."""
    recommended = setting(report["recommended"])
    if not report["patch"]:
        assert recommended == setting_of(canary.graph)
        return
    # Nothing is recommended if other load on this machine makes the measurements contradictory.
    assert not report["inconclusive"]
    after = build(patch_pipeline(canary.pipeline, report["patch"]), canary.options)
    assert setting_of(after) == replace(recommended, padding=PaddingSetting())
    configs(after)
    assert all(
        point["outcome"] == "WithinSLO"
        for point in report["points"]
        if setting(point["knobs"]) == recommended
    )


async def test_a_run_measures_and_leaves_the_server_as_it_was(
    canary: Canary, tmp_path: Path
) -> None:
    report, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    done = run(
        *("tune", str(FILE), *canary.arguments, *SHORT, "--slo", "300"),
        *("--lengths", "median=100,sigma=0.4,cap=256"),
        *("--report-file", str(report), "--plot", str(plot)),
        seconds=240,
    )
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["failed_requests"] == 0, document["notes"]
    assert all(point["carried"] > 0 for point in document["points"])
    status = TuningStatus.model_validate(json.loads(report.read_text()))
    assert len(status.points) == len(document["points"]) + len(document["ends"])
    assert "latency budget" in plot.read_text()
    check_recommendation(canary, document)
    assert await canary.setting() == setting_of(canary.graph)


async def test_a_cheaper_padding_is_tried_on_the_server_and_taken_back(tmp_path: Path) -> None:
    """The time of the step is proportional to its tokens, which Fixed pads to 512 per text."""
    rows = {"maxBatchSize": 32}
    file = written(tmp_path / "fixed.yaml", tokenizer={"padding": "Fixed"}, model=rows)
    with serving(file, tmp_path) as canary:
        done = run("tune", str(file), *canary.arguments, *SHORT, "--slo", "200", seconds=240)
        assert done.returncode == 0, done.stderr
        async with TritonClient(canary.server.grpc_address) as client:
            tokenizer = await client.model_config("tokenizer")
        assert tokenizer.parameters["tritonpipe.padding"].string_value == "Fixed"
        assert await canary.setting() == setting_of(canary.graph)
        report = json.loads(done.stdout)
        check_recommendation(canary, report)
    tried = [point for point in report["points"] if point["knobs"]["padding"]["mode"] == "Ragged"]
    assert report["inconclusive"] or report["padding"].startswith("Ragged is cheapest")
    assert report["inconclusive"] or tried, report["notes"]


async def test_the_running_configs_are_restored_whatever_the_resource_contains(
    canary: Canary,
) -> None:
    """Instances, delay and batch size of the server were changed by hand before the run."""
    models = ("tokenizer", "model", canary.graph.model_name)
    async with TritonClient(canary.server.grpc_address, KEY) as client:

        async def reported() -> list[Any]:
            return [await client.model_config(name) for name in models]

        async def load(given: list[Any]) -> None:
            for config in given:
                text = json_format.MessageToJson(config, preserving_proto_field_name=True)
                await client.load_model(config.name, text)

        async def tried() -> tuple[list[str], list[Any]]:
            async with MeasuredServer(canary.target, canary.pipeline, canary.graph) as server:
                await server.apply(BatchingSetting(32, 1000, 2, 1))
                assert await canary.setting() == BatchingSetting(32, 1000, 2, 1)
                return server.notes, await reported()

        first, before = await reported(), await canary.setting()
        notes, other = await tried()
        assert notes == [], "the server ran what the resource contains"
        assert first == await reported()
        assert first != other
        tokenizer, model, public = (
            json_format.Parse(json_format.MessageToJson(one), type(one)()) for one in first
        )
        tokenizer.instance_group[0].count, tokenizer.max_batch_size = 2, 16
        model.instance_group[0].count, model.max_batch_size = 3, 16
        model.dynamic_batching.max_queue_delay_microseconds = 3000
        public.max_batch_size = 16
        try:
            await load([tokenizer, model, public])
            by_hand = await reported()
            assert await canary.setting() == BatchingSetting(16, 3000, 3, 2)
            notes, _ = await tried()
            assert any(
                "max_batch_size 16 (2), a queue delay of 3000 us (0), instances: 3 (1)" in note
                for note in notes
            )
            assert by_hand == await reported()
        finally:
            await load(first[::-1])
        assert await canary.setting() == before


async def test_an_overload_ends_early_and_leaves_no_requests(canary: Canary) -> None:
    """The rate is three times that of the step; no request fails for another reason."""
    load = LoadSpec(rate=1500, duration_s=60, warmup_s=0.5, behind_s=1.0)
    async with MeasuredServer(canary.target, canary.pipeline, canary.graph) as server:
        requests = [{"TEXT": np.array([[b"a text of some words"]], dtype=object)}]
        result = await server.run(requests, load)
        assert result.overloaded
        assert result.end_s < load.duration_s
        found = measurement_of(result)
        assert found.faults == 0, found.first_error
        assert server.failed == 0
        await server.infer_each(requests)


async def test_without_the_key_nothing_is_changed(canary: Canary) -> None:
    done = run("tune", str(FILE), "--server", canary.server.grpc_address)
    assert done.returncode == 3
    assert "control key" in done.stderr
    assert await canary.setting() == setting_of(canary.graph)


def test_a_server_of_another_pipeline_is_refused(canary: Canary, tmp_path: Path) -> None:
    document = yaml.safe_load(FILE.read_text())
    document["metadata"]["name"] = "other"
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(document))
    code, _, errors = run_here("tune", str(other), "--server", canary.server.grpc_address)
    assert code == 3
    assert "does not serve this pipeline" in errors


def test_a_pipeline_without_an_slo_is_refused(tmp_path: Path) -> None:
    code, _, errors = run_here("tune", str(written(tmp_path / "open.yaml", slo=None)))
    assert code == 1
    assert "spec.slo.p99Milliseconds" in errors
    assert "--slo" in errors
