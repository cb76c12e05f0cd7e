"""Fixtures of the GPU tier, which runs on machines with an NVIDIA GPU.

Elsewhere each test is skipped with the reason. ``--gpu-rehearsal`` runs what it can on the CPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hack.gpu import obstacle
from tests.gpu import encoder, figures, nvml, serving
from tests.support.triton import triton_server
from triton_pipelines.triton.local_server import LocalTriton

REHEARSAL = "--gpu-rehearsal"
OUT = Path(__file__).resolve().parents[2] / "out"
MEASURED = pytest.StashKey[dict[str, Any]]()


@dataclass(frozen=True)
class Plan:
    """What is served and how hard it is driven.

    It is full-sized on a GPU and small in a rehearsal on the CPU.
    """

    gpu: nvml.Gpu | None
    shape: encoder.Shape
    rows: tuple[int, ...] = (1, 4, 16, 64)
    tokens: tuple[int, ...] = (16, 64, 128, 256, 512)
    clients: int = 32
    rows_per_request: int = 4
    windows: int = 5
    window_s: float = 4.0

    @property
    def kind(self) -> str:
        """Kind of the model's instances."""
        return "GPU" if self.gpu else "CPU"


@dataclass
class Served:
    """A running Triton with the pipeline, what it must answer, and what was measured on it."""

    triton: LocalTriton
    plan: Plan
    reference: encoder.Reference
    memory_before_mib: int = 0
    measured: dict[str, Any] = field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        REHEARSAL,
        action="store_true",
        help="run the GPU tier's parts that need no GPU on the CPU; proves nothing about a GPU",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = "" if config.getoption(REHEARSAL, False) else obstacle()
    if reason:
        for item in own:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def plan(request: pytest.FixtureRequest) -> Plan:
    if request.config.getoption(REHEARSAL, False):
        return Plan(None, encoder.SMALL, rows=(1, 4), tokens=(16, 64), windows=3, window_s=1.0)
    return Plan(nvml.gpu(os.environ.get("CUDA_VISIBLE_DEVICES")), encoder.MINILM)


@pytest.fixture(scope="session")
def gpu(plan: Plan) -> nvml.Gpu:
    """The GPU; a test that asks for it is skipped in a rehearsal."""
    if plan.gpu is None:
        pytest.skip("a rehearsal has no GPU")
    return plan.gpu


@pytest.fixture(scope="session")
def served(
    plan: Plan, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    encoder.write(checkpoint, plan.shape)
    repository = serving.lay_out(tmp_path_factory.mktemp("pod"), checkpoint, plan.shape, plan.kind)
    environment = {"CUDA_VISIBLE_DEVICES": plan.gpu.uuid} if plan.gpu else {}
    before = nvml.used_mib(plan.gpu.handle) if plan.gpu else 0
    with triton_server(
        repository, [serving.PIPELINE], environment=environment, deadline_s=300
    ) as triton:
        running = Served(triton, plan, encoder.Reference(checkpoint), before)
        request.config.stash[MEASURED] = running.measured
        yield running
    if running.measured:
        workload = {
            "model": (
                f"BERT encoder {plan.shape}, seeded weights, FP32, PyTorch in Triton's python "
                f"backend"
            ),
            "load": (
                f"{plan.clients} gRPC clients in one process, closed loop, "
                f"{plan.rows_per_request} texts of 1 to 120 words a request"
            ),
        }
        OUT.mkdir(exist_ok=True)
        file = OUT / ("gpu-tier.json" if plan.gpu else "gpu-rehearsal.json")
        text = json.dumps(figures.record(running.measured, plan.gpu, workload), indent=2) + "\n"
        file.write_text(text)
        running.measured["file"] = text


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    text = config.stash.get(MEASURED, {}).get("file")
    if text:
        terminalreporter.section("figures of the GPU tier")
        terminalreporter.write(text)
