"""What the serving benchmarks see of a real GPU and of the server's log beside their load."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import httpx
import numpy as np

from bench import real_step
from tests.gpu import nvml

NOTES: Final = re.compile(
    r"will not share runs|packed step|CUDAExecutionProvider|cudnn|cublas|CUDA failure|"
    r"out of memory|Failed to create",
    re.IGNORECASE,
)
MOST_NOTES: Final = 40
INSTANCE_MIB: Final = 100
"""Least memory of an instance on a GPU: its CUDA context, weights and workspaces."""


def has_nvml() -> bool:
    """Return whether a GPU is used and NVML's binding is installed."""
    return real_step.STEP == real_step.GPU and importlib.util.find_spec("pynvml") is not None


@contextlib.contextmanager
def utilization(into: list[float]) -> Iterator[None]:
    """Append the GPU's mean utilization in percent, if there is a GPU to ask."""
    if not has_nvml():
        yield
        return
    import pynvml

    try:
        with nvml.Sampler(nvml.gpu(None).handle) as sampler:
            yield
        into.append(sampler.summary()["mean_percent"])
    except pynvml.NVMLError as error:
        # The load has been measured; its utilization stays unknown.
        print(f"NVML: {error}", flush=True)


def refuse_idle_memory(instances: int) -> None:
    """Refuse steps that fell back to the CPU, which leave the GPU's memory empty.

    Raises:
        StepError: so many instances do not fit into the GPU's memory in use.
    """
    if not has_nvml():
        return
    used = nvml.used_mib(nvml.gpu(None).handle)
    print(f"GPU memory in use: {used} MiB by {instances} instances", flush=True)
    if used < instances * INSTANCE_MIB:
        raise real_step.StepError(
            f"{used} MiB of GPU memory in use by {instances} instances: they run on the CPU"
        )


def notes(log: str) -> list[str]:
    """Return the lines of a server's log about devices and shared runs."""
    found = [line[:400] for line in log.splitlines() if NOTES.search(line)]
    return list(dict.fromkeys(found))[:MOST_NOTES]


def logits(url: str, model: str, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return an ensemble's logits [texts, classes]."""
    rows = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    with httpx.Client(trust_env=False, timeout=60) as client:
        answer = client.post(f"{url}/v2/models/{model}/infer", json={"inputs": [rows]})
    (output,) = answer.raise_for_status().json()["outputs"]
    return np.array(output["data"], np.float64).reshape(len(texts), -1)
