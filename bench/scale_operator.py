"""The operator process that the benchmarks of many pipelines measure."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from e2e.local.processes import Process, reserved_ports
from tests.support.controlplane import ControlPlane
from triton_pipelines.cluster.work_queue import OUTCOME_OK

OPERATOR: Final = os.environ.get("SCALE_OPERATOR", "tritonpipe")
"""The operator's command below ``.venv/bin``, or a path."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_READS: Final = ("get", "list", "watch")


class Operator:
    """The operator process under measurement."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        key = folder / "key"
        key.write_text("k" * 64)
        with reserved_ports(2) as ports:
            self._metrics_port, self._liveness_port = ports
        command = [str(Path(".venv/bin") / OPERATOR), "operator"]
        command += ["--metrics-port", str(self._metrics_port)]
        command += ["--liveness-port", str(self._liveness_port)]
        command += ["--operator-key-file", str(key), "--log-level", "warning"]
        command += ["--monitoring-auto", "none"]
        self._command = command
        self._log = Path(os.environ.get("SCALE_LOG", str(folder / "operator.log")))
        self._environment = {"KUBECONFIG": str(plane.kubeconfig)}
        self.process = self._start()

    def _start(self) -> Process:
        return Process("operator", self._command, self._log, self._environment)

    def restart(self) -> None:
        """End the process and start another one."""
        self.process.stop(grace=30.0)
        self.process = self._start()

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mib(self) -> float:
        """Return the resident memory of the process."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    def samples(self, metric: str) -> list[Sample]:
        """Return the samples of a metric; ``metric`` is without its prefix."""
        return [sample for sample in self._scrape() if sample.name == f"tritonpipe_{metric}"]

    def _scrape(self) -> list[Sample]:
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read().decode()
        families = text_string_to_metric_families(text)
        return [sample for family in families for sample in family.samples]

    def totals(self, *metrics: str) -> list[float]:
        """Return the sums of all samples of metrics, from one scrape: it costs CPU time, too."""
        found = self._scrape()
        return [
            sum(sample.value for sample in found if sample.name == f"tritonpipe_{metric}")
            for metric in metrics
        ]

    def total(self, metric: str) -> float:
        """Return the sum of all samples of a metric."""
        return self.totals(metric)[0]

    def writes(self) -> float:
        """Return the number of writes to the API server so far, leases and events included."""
        return sum(
            sample.value
            for sample in self.samples("api_requests_total")
            if sample.labels["verb"] not in _READS
        )

    def is_synced(self) -> bool:
        """Return whether every kind has been listed."""
        with contextlib.suppress(OSError):
            return self.total("synced") == 1
        return False

    def is_settled(self, pipelines: int) -> bool:
        """Return whether all pipelines have been reconciled since the start.

        Iterations that wait for a probe do not count. The queue is read from the liveness endpoint,
        because a page of metrics has all series of each pipeline, and so costs CPU time.
        """
        with contextlib.suppress(OSError):
            if self._queued():
                return False
            reconciled = sum(
                sample.value
                for sample in self.samples("reconciles_total")
                if sample.labels["result"] == OUTCOME_OK
            )
            return reconciled >= pipelines
        return False

    def _queued(self) -> int:
        """Return the number of pipelines that are due or being reconciled."""
        url = f"http://127.0.0.1:{self._liveness_port}/healthz"
        with urllib.request.urlopen(url, timeout=30) as response:
            answer = json.load(response)["operator"]
        return int(answer["queued"]) + int(answer["inWork"])
