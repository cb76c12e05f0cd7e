"""A real Prometheus on loopback, and pages in Triton's format for it to scrape.

Prometheus is Debian's package, installed if it is missing.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from e2e.local import packages
from e2e.local.processes import free_port
from tests.support.web import LoopbackServer, Request, Response

INTERVAL = 1.0
"""Seconds between scrapes: short, so that tests are."""
_DEADLINE = 30.0
_POLL = 0.05


@dataclass
class Target:
    """What is scraped: address, labels that service discovery would give it, and the job."""

    address: str
    labels: Mapping[str, str]
    job: str = "triton"


@dataclass
class PrometheusServer:
    """A Prometheus process; a context manager, ready on entry.

    Attributes:
        web: content of its web.config.file: TLS, client certificates, users.
        prefix: path prefix of its URLs.
        ready: how to ask whether it is ready, where ``web`` asks for something: options of httpx.
        rules: a file of rules.
        discovery: further scrape configurations, as they stand in its file.
        interval: seconds between scrapes.
        address: where it listens: loopback, or a link to a namespace whose pods ask it.
    """

    targets: Sequence[Target] = ()
    web: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    ready: Mapping[str, Any] = field(default_factory=dict)
    rules: Path | None = None
    discovery: Sequence[Mapping[str, Any]] = ()
    interval: float = INTERVAL
    port: int = 0
    address: str = "127.0.0.1"
    _folder: Path | None = None
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        return f"{'https' if self.web.get('tls_server_config') else 'http'}://{self.address}:{self.port}{self.prefix}"

    def __enter__(self) -> Self:
        packages.install(packages.PROMETHEUS)
        self._folder = Path(tempfile.mkdtemp(prefix="tritonpipe-prometheus-"))
        self.port = self.port or free_port()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._folder is not None
        if error is not None:
            print(
                "--- tail of Prometheus' log ---",
                *(self._folder / "log").read_text().splitlines()[-20:],
                sep="\n",
            )
        self.stop()
        self._http.close()
        shutil.rmtree(self._folder)

    def start(self, *, empty: bool = False) -> None:
        """Start it, ``empty``: without what it has stored; returns when it is ready."""
        assert self._folder is not None
        if empty:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(self._configuration()))
        (self._folder / "web.yml").write_text(yaml.safe_dump(dict(self.web)))
        command = [
            packages_path("prometheus"),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--web.config.file={self._folder / 'web.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.address}:{self.port}",
            f"--web.route-prefix={self.prefix or '/'}",
            f"--web.external-url=http://{self.address}:{self.port}{self.prefix}",
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._await_ready()

    def stop(self) -> None:
        """End it and wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def kill(self) -> None:
        """As when its node is lost: nothing is closed or written."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @functools.cached_property
    def _http(self) -> httpx.Client:
        """One client, since each new one reads the machine's certificates; one connection a call.

        Calls are repeated until something is there, and the server is killed meanwhile.
        """
        return httpx.Client(
            trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), **self.ready
        )

    def query(self, text: str) -> list[dict[str, Any]]:
        """Result of an instant query, asked without the code under test."""
        answer = self._http.get(f"{self.url}/api/v1/query", params={"query": text})
        result: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
        return result

    def _configuration(self) -> dict[str, Any]:
        jobs: dict[str, list[Target]] = {}
        for target in self.targets:
            jobs.setdefault(target.job, []).append(target)
        return {
            "global": {
                "scrape_interval": f"{int(self.interval * 1000)}ms",
                "scrape_timeout": f"{int(self.interval * 1000)}ms",
                "evaluation_interval": "1s",
            },
            **({"rule_files": [str(self.rules)]} if self.rules else {}),
            "scrape_configs": [
                {
                    "job_name": job,
                    "honor_labels": True,
                    "static_configs": [
                        {"targets": [one.address], "labels": dict(one.labels)} for one in several
                    ],
                }
                for job, several in jobs.items()
            ]
            + [dict(one) for one in self.discovery],
        }

    def _await_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _DEADLINE
        said = ""
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                if self._http.get(f"{self.url}/-/ready", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError as error:
                said = str(error)
            time.sleep(_POLL)
        assert self._folder is not None
        log = (self._folder / "log").read_text()[-3000:]
        self.stop()
        raise RuntimeError(f"Prometheus is not ready: {said}\n{log}")


class Pages:
    """A server of metrics pages that simulates pods and exporters.

    A test sets the counters of a pod. ``/POD`` is a pod's page.

    A page is text, or made when it is asked for; one that is empty is not there.
    """

    def __init__(self) -> None:
        self.text: dict[str, str | Callable[[], str]] = {}
        self._server = LoopbackServer(self._answer)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._server.port}"

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *arguments: Any) -> None:
        self._server.__exit__(*arguments)

    def target(
        self, pod: str, namespace: str = "default", job: str = "triton", **labels: str
    ) -> Target:
        """The pod's page as a target of Prometheus."""
        return Target(
            self.address,
            {"__metrics_path__": f"/{pod}", "namespace": namespace, "pod": pod, **labels},
            job,
        )

    def _answer(self, request: Request) -> Response:
        text = self.text.get(request.path.strip("/"))
        if callable(text):
            text = text()
        if not text:
            return Response(404)
        return Response(200, {"Content-Type": "text/plain; version=0.0.4"}, text.encode())


def page(
    success: float,
    models: Sequence[str] = ("tokenizer", "model"),
    *,
    pending: float = 0,
    gpu: float | None = 0.5,
) -> str:
    """Return a page in the format of Triton 2.51.0 after ``success`` requests of each model.

    There are two requests to a batch, 1 ms each.
    """
    lines: list[str] = []
    for model in models:
        labels = f'model="{model}",version="1"'
        lines += [
            f"nv_inference_request_success{{{labels}}} {success}",
            f'nv_inference_request_failure{{{labels},reason="OTHER"}} 0',
            f'nv_inference_request_failure{{{labels},reason="REJECTED"}} 0',
            f"nv_inference_exec_count{{{labels}}} {success / 2}",
            f"nv_inference_queue_duration_us{{{labels}}} {success * 100}",
            f"nv_inference_compute_input_duration_us{{{labels}}} {success * 10}",
            f"nv_inference_compute_infer_duration_us{{{labels}}} {success * 1000}",
            f"nv_inference_compute_output_duration_us{{{labels}}} {success * 10}",
            f"nv_inference_pending_request_count{{{labels}}} {pending}",
        ]
    if gpu is not None:
        lines.append(f'nv_gpu_utilization{{gpu_uuid="GPU-1"}} {gpu}')
    return "\n".join(lines) + "\n"


def packages_path(program: str) -> str:
    """Where a program of Debian's package is."""
    found = shutil.which(program, path=packages.search_path())
    if found is None:
        raise RuntimeError(f"{program} is not installed")
    return found
