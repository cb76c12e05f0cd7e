"""Test the parts of the GPU tier that need no GPU.

They are: when it is skipped, how it reads NVML and Triton's metrics, and what it records.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hack.gpu import MODULES, devices, obstacle
from tests.gpu import encoder, figures, nvml

UUID = "GPU-0a1b2c3d-0000-0000-0000-000000000000"


class NVMLError(Exception):
    pass


def stand_in(busy: list[int], error_after: int | None = None) -> Any:
    """Return a minimal fake of NVML, since there is no GPU here.

    Names and units are those of the real module.
    """
    calls = iter(range(10_000))

    def rates(handle: object) -> Any:
        call = next(calls)
        if error_after is not None and call >= error_after:
            raise NVMLError("Not Supported")
        return types.SimpleNamespace(gpu=busy[call % len(busy)], memory=0)

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: f"index {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: f"uuid {uuid}",
        nvmlDeviceGetUUID=lambda handle: UUID,
        nvmlDeviceGetName=lambda handle: "NVIDIA Stand-in",
        nvmlSystemGetDriverVersion=lambda: "580.159.04",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=8 << 30, used=3 << 30),
        nvmlDeviceGetUtilizationRates=rates,
    )


def test_devices_are_the_numbered_files(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia1", "nvidia0", "null"):
        (tmp_path / name).touch()
    assert [path.name for path in devices(tmp_path)] == ["nvidia0", "nvidia1"]


def test_obstacles_name_what_is_missing() -> None:
    assert "no NVIDIA GPU here" in obstacle([], lambda module: True)
    message = obstacle([Path("/dev/nvidia0")], lambda module: module == "torch")
    assert message.startswith("pynvml not installed")
    assert "make gpu" in message
    assert obstacle([Path("/dev/nvidia0")], lambda module: module in MODULES) == ""


@pytest.mark.parametrize(
    ("visible", "handle"),
    [(None, "index 0"), ("", "index 0"), ("2,0", "index 2"), ("GPU-0a1b,GPU-9", "uuid GPU-0a1b")],
)
def test_the_gpu_is_the_first_visible_one(visible: str | None, handle: str) -> None:
    found = nvml.gpu(visible, stand_in([0]))
    assert (found.handle, found.uuid, found.cuda, found.memory_mib) == (handle, UUID, "12.8", 8192)


def test_samples_are_summarised() -> None:
    with nvml.Sampler("handle", stand_in([10, 60])) as sampler:
        sampler.collect(2)
    del sampler.busy[2:]
    assert sampler.summary() == {
        "samples": 2,
        "mean_percent": 35.0,
        "max_percent": 60,
        "memory_mib": 3072,
    }


def test_an_error_of_nvml_ends_the_sampling_and_is_told() -> None:
    with (
        pytest.raises(NVMLError, match="Not Supported"),
        nvml.Sampler("handle", stand_in([50], error_after=1)) as sampler,
    ):
        sampler.collect(5)


METRICS = """\
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="%s"} 0.42
nv_gpu_utilization{gpu_uuid="GPU-other"} 0.9
# HELP nv_gpu_memory_total_bytes GPU total memory, in bytes
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{gpu_uuid="%s"} 1000.0
"""


def test_gpu_metrics_are_those_of_the_one_gpu() -> None:
    assert figures.gpu_metrics(METRICS % (UUID, UUID), UUID) == {
        "nv_gpu_utilization": 0.42,
        "nv_gpu_memory_total_bytes": 1000.0,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        'nv_inference_count{model="m",version="1"} 5\n',
        METRICS % ("GPU-a", "GPU-b"),
        METRICS % ("GPU-a", UUID),
    ],
)
def test_absent_gpu_metrics_are_unavailable_and_not_zero(text: str) -> None:
    assert figures.gpu_metrics(text, UUID) == "GPUMetricsUnavailable"


@pytest.mark.parametrize(
    ("value", "log", "is_known"),
    [
        ("0", "Unable to get GPU utilization for GPU 0. Status: N/A", False),
        ("0", "Collecting metrics for GPU 0", True),
        ("0.42", "Unable to get GPU utilization for GPU 0. Status: N/A", True),
    ],
    ids=["unreadable", "idle", "readable again"],
)
def test_a_metric_that_triton_could_not_read_is_unavailable(
    value: str, log: str, is_known: bool
) -> None:
    found = figures.gpu_metrics(f'nv_gpu_utilization{{gpu_uuid="{UUID}"}} {value}\n', UUID, log)
    assert (found != "GPUMetricsUnavailable") == is_known


def test_load_is_summarised_over_windows() -> None:
    load = figures.Load(
        seconds=2.0,
        windows=[20, 40, 24],
        latencies_ms=[float(value) for value in range(1, 101)],
        mean_rows=7.256,
    )
    assert load.summary() == {
        "requests_per_second": 12.0,
        "spread": [10.0, 20.0],
        "p50_ms": 50.5,
        "p99_ms": 99.01,
        "mean_batch_rows": 7.26,
    }


def test_a_rehearsal_is_recorded_as_no_result() -> None:
    load = figures.Load(1.0, [2], [1.0], 1.0).summary()
    rehearsal = figures.record({"load": load}, None, {})
    assert "rehearsal" in rehearsal["stand_ins"][0]
    real = figures.record({"load": load}, nvml.gpu(None, stand_in([0])), {})
    assert (real["stand_ins"], real["value"], real["unit"], real["goal"], real["met"]) == (
        [],
        2.0,
        "requests/s",
        None,
        None,
    )
    assert real["machine"]["gpu"]["name"] == "NVIDIA Stand-in"


def test_the_checkpoint_is_the_same_everywhere() -> None:
    """Compare with the first normal numbers of MT19937 seeded with 20.

    NumPy has returned them since 1.4; its RandomState streams are frozen.
    """
    first = encoder.weights(encoder.SMALL)["embeddings.word_embeddings.weight"][0, :3]
    np.testing.assert_allclose(first, [0.88389311, 0.19586502, 0.35753652], rtol=1e-6)
