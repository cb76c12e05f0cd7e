"""What tells a Prometheus of the pods of a scaling world, and what a node's exporters say of them.

Stand-ins: discovery through the API server (Debian's Prometheus is built without it; here it asks
over HTTP), cAdvisor (CPU and memory are those of the pod's own processes, as the kernel counts
them; nothing limits these processes, so that none is ever throttled), and the DCGM exporter
(utilisation is what the test says).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from tests.support.prometheus import Pages, Target
from tests.support.scalingworld import NAME, Pod, World
from tests.support.web import Request, Response
from triton_pipelines.api import names

CADVISOR, DCGM, PODS = "cadvisor", "dcgm", "pods"
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_PERIODS = 10  # CFS periods per second


class NodePages(Pages):
    """Pages of the exporters, as a context manager.

    ``gpu`` is the utilization (0–1) of every pod's GPU; with ``None`` there is no such exporter.
    """

    def __init__(self, *worlds: World) -> None:
        super().__init__()
        self.gpu: float | None = None
        self._worlds = worlds
        self.text = {CADVISOR: self._cadvisor, DCGM: self._dcgm}

    @property
    def targets(self) -> list[Target]:
        """Both pages, whose series name their pods themselves."""
        return [
            Target(self.address, {"__metrics_path__": f"/{name}"}, name)
            for name in (CADVISOR, DCGM)
        ]

    @property
    def discovery(self) -> dict[str, Any]:
        """Return a scrape configuration that finds the world's pods.

        Their series have the same labels as those of a PodMonitor.
        """
        return {
            "job_name": "pods",
            "http_sd_configs": [{"url": f"http://{self.address}/{PODS}", "refresh_interval": "1s"}],
        }

    def _answer(self, request: Request) -> Response:
        if request.path.strip("/") != PODS:
            return super()._answer(request)
        found = [
            {
                "targets": [f"{pod.triton.address}:{names.PORT_METRICS}"],
                "labels": {"namespace": world.namespace, "pod": name, "pipeline": NAME},
            }
            for world in self._worlds
            for name, pod in list(world.pods.items())
        ]
        return Response(200, {"Content-Type": "application/json"}, json.dumps(found).encode())

    def _cadvisor(self) -> str:
        lines = []
        for where, pod in self._pods:
            labels = f'{{{where},container="{names.CONTAINER_SERVER}"}}'
            seconds, size = spent(pod)
            lines += [
                f"container_cpu_usage_seconds_total{labels} {seconds}",
                f"container_cpu_cfs_periods_total{labels} {int(time.monotonic() * _PERIODS)}",
                f"container_cpu_cfs_throttled_periods_total{labels} 0",
                f"container_memory_working_set_bytes{labels} {size}",
            ]
        return "".join(f"{line}\n" for line in lines)

    def _dcgm(self) -> str:
        if self.gpu is None:
            return ""
        return "".join(
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",{where}}} {100 * self.gpu:.0f}\n'
            for where, _ in self._pods
        )

    @property
    def _pods(self) -> list[tuple[str, Pod]]:
        """Each pod with the labels that name it."""
        return [
            (f'namespace="{world.namespace}",pod="{name}"', pod)
            for world in self._worlds
            for name, pod in list(world.pods.items())
        ]


def spent(pod: Pod) -> tuple[float, int]:
    """CPU seconds and resident bytes of all processes of a pod's Triton."""
    ticks = pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) != pod.triton.pid:
                continue
            # After the command's name, which may hold anything: the state is field 3.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(fields[number - 3]) for number in (14, 15, 16, 17))
            pages += int(fields[24 - 3])
    return ticks / _TICKS, pages * _PAGE
