"""An OpenTelemetry Collector: the spans that it accepted, as its own JSON."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from e2e.local import binaries
from e2e.local.processes import free_port
from tests.support.recorder import until
from tests.support.web import LoopbackServer, Response


@dataclass(frozen=True)
class Span:
    """A span, with the service that sent it.

    Attributes:
        service: its service.namespace and service.name.
        scope: name of what recorded it.
        body: the span in OTLP's JSON.
    """

    service: tuple[str, str]
    scope: str
    body: dict[str, Any]

    @property
    def attributes(self) -> dict[str, str]:
        """Its attributes, numbers as text."""
        return attributes(self.body.get("attributes", []))


def attributes(items: list[dict[str, Any]]) -> dict[str, str]:
    """Attributes of OTLP's JSON by key, numbers as text."""
    return {item["key"]: str(next(iter(item["value"].values()))) for item in items}


def spans_of(bodies: list[bytes]) -> list[Span]:
    """The spans of export requests in OTLP's JSON."""
    found = []
    for resource in (one for body in bodies for one in json.loads(body)["resourceSpans"]):
        named = attributes(resource["resource"]["attributes"])
        service = (named["service.namespace"], named["service.name"])
        for scope in resource["scopeSpans"]:
            found += [Span(service, scope["scope"]["name"], span) for span in scope["spans"]]
    return found


class Collector:
    """A running collector: where to send spans, and those that it accepted and sent on."""

    def __init__(self, port: int, sink: LoopbackServer) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/v1/traces"
        self._sink = sink

    def spans(self) -> list[Span]:
        """Return the spans so far."""
        return spans_of([request.body for request in list(self._sink.requests)])


@contextlib.asynccontextmanager
async def collecting(folder: Path) -> AsyncIterator[Collector]:
    """Run a collector on loopback that accepts spans; its log lies in ``folder``."""
    executable, port = binaries.path_of("otelcol"), free_port()
    with LoopbackServer(lambda _: Response(200, {"Content-Type": "application/json"})) as sink:
        configuration, log = folder / "collector.yaml", folder / "collector.log"
        configuration.write_text(yaml.safe_dump(_configuration(port, sink.url)))
        command = [str(executable), f"--config={configuration}"]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: ASYNC220
        collector = Collector(port, sink)

        async def accepts() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False) as client:
                    return (await client.post(collector.endpoint, json={})).is_success
            return False

        try:
            await until(accepts, "the collector accepts spans", 60)
            yield collector
        finally:
            process.terminate()
            process.wait(30)


def _configuration(port: int, sink: str) -> dict[str, Any]:
    return {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {
            "otlp_http": {
                "endpoint": sink,
                "encoding": "json",
                "compression": "none",
                "sending_queue": {"enabled": False},
            }
        },
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
        },
    }
