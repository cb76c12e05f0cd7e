"""Release, quantities and sizes of the server."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity

from tests.support.builders import built, options
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.graph.quantities import bytes_of, cpu, memory, millis
from triton_pipelines.compile.graph.server_settings import server_version

MI, GI = 2**20, 2**30


@pytest.mark.parametrize(
    ("version", "image", "expected"),
    [
        (None, "nvcr.io/nvidia/tritonserver:24.10-py3", (24, 10)),
        (None, "nvcr.io/nvidia/tritonserver:24.10-vllm-python-py3", (24, 10)),
        (None, "localhost:5000/triton:25.03", (25, 3)),
        (None, "triton:v26.04.1", (26, 4)),
        (None, "triton:24.08_custom", (24, 8)),
        (None, "triton:24.08@sha256:" + "0" * 64, (24, 8)),
        (None, "triton@sha256:" + "24.10" * 12, None),
        (None, "triton", None),
        (None, "triton:latest", None),
        (None, "triton:124.10", None),
        (None, "triton:24.100", None),
        (None, "triton:r24.10", None),
        ("25.01", "triton:latest", (25, 1)),
        ("25.01", "triton:24.10", (25, 1)),
    ],
)
def test_release(version: str | None, image: str, expected: tuple[int, int] | None) -> None:
    assert server_version(version, image) == expected


@pytest.mark.parametrize("text", ["0", "1", "1.5", "100m", "2500m", "0.0001", "1.5m", "3k"])
def test_cpu_is_read_as_kubernetes_does(text: str) -> None:
    assert millis(text) == math.ceil(parse_quantity(text) * 1000)


@pytest.mark.parametrize(
    "text",
    ["0", "1", "1Ki", "1.5Ki", "400Mi", "300M", "1.5Gi", "2T", "2Ti", "1000m", "1500m", "0.5"],
)
def test_memory_is_read_as_kubernetes_does(text: str) -> None:
    assert bytes_of(text) == math.ceil(parse_quantity(text))


@pytest.mark.parametrize("text", ["", "1e3", "x", "1Pi", "-1", "1 Gi"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        bytes_of(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, "0"),
        (1, "1m"),
        (1500, "1500m"),
        (2000, "2"),
        (999_000, "999"),
        (1_000_000, "1k"),
        (1_500_000, "1500"),
    ],
)
def test_cpu_is_spelled_as_the_api_server_stores_it(given: int, expected: str) -> None:
    assert cpu(given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1k"),
        (1024, "1Ki"),
        (1_500_000, "1500k"),
        (GI, "1Gi"),
        (1536 * MI, "1536Mi"),
        (300_000_000, "300M"),
        (2048 * 2**40, "2Pi"),
        (1023, "1023"),
    ],
)
def test_memory_is_spelled_as_the_api_server_stores_it(given: int, expected: str) -> None:
    assert memory(given) == expected
    assert parse_quantity(expected) == given


CODE = {"platform": "python", "python": {"code": {"inline": "x = 1"}}}
# The expected values are computed independently: 250m and 2Gi for the server, 100m and 256Mi for
# every python process, and 64Mi of shared memory for the server and for every python process. The
# memory limit includes the shared memory.
CASES: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, str, str, str, str]]] = [
    # tokenizer 1 (max 4), postprocess 1; requests 250+100+1000, limits 250+100+4000
    ({}, (), ("1350m", "4350m", f"{2048 + 256 + 400}Mi", f"{2048 + 256 + 1600 + 128}Mi", "128Mi")),
    # no postprocess
    (
        {"postprocess": None},
        (),
        ("1250m", "4250m", f"{2048 + 400}Mi", f"{2048 + 1600 + 64}Mi", "64Mi"),
    ),
    # the runner is one more process
    (
        {},
        ("onnxruntime_onnx",),
        ("1450m", "4450m", f"{2048 + 512 + 400}Mi", f"{2048 + 512 + 1600 + 192}Mi", "192Mi"),
    ),
    # two instances on each of three GPUs: six processes, and the postprocess
    (
        {"model": {**CODE, "instances": {"count": 2}}, "server": {"gpu": {"count": 3}}},
        (),
        (
            "1950m",
            "4950m",
            f"{2048 + 7 * 256 + 400}Mi",
            f"{2048 + 7 * 256 + 1600 + 64 * 8}Mi",
            f"{64 * 8}Mi",
        ),
    ),
    # on CPU the count is the whole
    (
        {
            "model": {**CODE, "instances": {"count": 2, "kind": "CPU"}},
            "server": {"gpu": {"count": 3}},
        },
        (),
        (
            "1550m",
            "4550m",
            f"{2048 + 3 * 256 + 400}Mi",
            f"{2048 + 3 * 256 + 1600 + 64 * 4}Mi",
            f"{64 * 4}Mi",
        ),
    ),
    (
        {
            "tokenizer": {
                "instances": {"initial": 2, "max": 3},
                "resourcesPerInstance": {"cpu": "500m", "memory": "1Gi"},
            },
            "postprocess": None,
        },
        (),
        ("1250m", "1750m", "4Gi", f"{5 * 1024 + 64}Mi", "64Mi"),
    ),
    # what the user wrote wins; what is left out is computed
    (
        {"server": {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}},
        (),
        ("1", "1", "1Gi", "1Gi", "128Mi"),
    ),
    (
        {"server": {"resources": {"requests": {"cpu": "9", "memory": "9Gi"}}}},
        (),
        ("9", "9", "9Gi", f"{9 * 1024 + 128}Mi", "128Mi"),
    ),
    (
        {"server": {"sharedMemory": "1Gi"}},
        (),
        ("1350m", "4350m", "2704Mi", f"{2048 + 256 + 1600 + 1024}Mi", "1Gi"),
    ),
]


@pytest.mark.parametrize(("changes", "substitute", "expected"), CASES)
def test_sizes(
    changes: dict[str, Any], substitute: tuple[str, ...], expected: tuple[str, str, str, str, str]
) -> None:
    one = built(options(substitute_runner=frozenset(substitute)), **changes)
    size = sizes(one.pipeline, one.graph)
    assert (
        size.cpu_request,
        size.cpu_limit,
        size.memory_request,
        size.memory_limit,
        size.shared_memory,
    ) == expected
