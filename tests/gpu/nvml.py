"""The GPU as NVIDIA's management library (NVML) sees it."""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

PERIOD_S: Final = 0.1
"""Time between samples; NVML's own averaging window is 1/6 s to 1 s, depending on the product."""


_SLOW_S: Final = 10.0


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        uuid: what CUDA_VISIBLE_DEVICES and Triton's metrics call it.
        name: product name.
        driver: version of the driver.
        cuda: newest CUDA version that the driver knows.
        memory_mib: its memory.
        handle: NVML's handle.
    """

    uuid: str
    name: str
    driver: str
    cuda: str
    memory_mib: int
    handle: Any


def gpu(visible: str | None, nvml: Any = None) -> Gpu:
    """Return the first GPU of ``visible``, or of the machine.

    ``visible`` is a value of CUDA_VISIBLE_DEVICES: indices or UUIDs.

    Raises:
        NVMLError: the driver does not answer, or there is no such GPU.
    """
    nvml = _nvml() if nvml is None else nvml
    nvml.nvmlInit()
    first = (visible or "0").split(",")[0].strip()
    handle = (
        nvml.nvmlDeviceGetHandleByIndex(int(first))
        if first.isdigit()
        else nvml.nvmlDeviceGetHandleByUUID(first)
    )
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return Gpu(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        driver=nvml.nvmlSystemGetDriverVersion(),
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        memory_mib=nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        handle=handle,
    )


def used_mib(handle: Any, nvml: Any = None) -> int:
    """Memory of the GPU in use by all programs."""
    nvml = _nvml() if nvml is None else nvml
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20)


class Sampler:
    """Sample a GPU in a separate thread while the context is open.

    An NVML error stops the sampling and is raised at the end.

    Attributes:
        busy: per sample, percent of NVML's window in which at least one kernel ran.
        memory_mib: memory in use, per sample.
    """

    def __init__(self, handle: Any, nvml: Any = None) -> None:
        self.busy: list[int] = []
        self.memory_mib: list[int] = []
        self._handle, self._nvml = handle, _nvml() if nvml is None else nvml
        self._end = threading.Event()
        self._sampled = threading.Condition()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def collect(self, samples: int) -> None:
        """Block until so many samples are there, or sampling has ended with an error."""
        with self._sampled:
            self._sampled.wait_for(
                lambda: len(self.memory_mib) >= samples or self._error is not None,
                timeout=samples * PERIOD_S + _SLOW_S,
            )

    def _run(self) -> None:
        try:
            while True:
                self.busy.append(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
                self.memory_mib.append(used_mib(self._handle, self._nvml))
                with self._sampled:
                    self._sampled.notify_all()
                if self._end.wait(PERIOD_S):
                    return
        except self._nvml.NVMLError as error:
            with self._sampled:
                self._error = error
                self._sampled.notify_all()

    def summary(self) -> dict[str, float]:
        """Utilisation in percent over all samples, and the most memory seen."""
        return {
            "samples": len(self.busy),
            "mean_percent": round(statistics.fmean(self.busy), 1),
            "max_percent": max(self.busy),
            "memory_mib": max(self.memory_mib),
        }


def _nvml() -> Any:
    import pynvml  # only where the tier runs

    return pynvml
