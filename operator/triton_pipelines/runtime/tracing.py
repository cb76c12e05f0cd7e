"""Spans of a step on Triton's python backend, as children of Triton's own spans.

Triton runs this file instead of the step's ``model.py`` while ``observability.tracing`` is set.
The file imports ``model.py`` and sends one span for each traced request: from the call of
``execute`` until the call returns. A request that Triton does not sample has no trace context and
costs one look-up.

Configuration (``parameters`` of config.pbtxt):
    tritonpipe.trace_endpoint   OTLP over HTTP, such as http://collector:4318/v1/traces; spans are
                                sent as JSON, as Triton sends its own
    tritonpipe.trace_service    service.name of the spans
    tritonpipe.trace_namespace  service.namespace of the spans

The stock Triton image has no OpenTelemetry package, hence the small exporter below. Its limits are
the defaults of OpenTelemetry's batch span processor, with a shorter delay. While the collector does
not accept spans, they are dropped, and inference goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import queue
import secrets
import sys
import threading
import time
import urllib.request
from typing import Any

Model = importlib.import_module("model").TritonPythonModel

QUEUE_SPANS = 2048
BATCH_SPANS = 512
DELAY_S = 1.0
TIMEOUT_S = 10.0
# Time for the last spans when the model is unloaded.
STOP_S = 2.0
INTERNAL, ERROR = 1, 2  # OTLP: SpanKind, StatusCode


def attribute(key: str, value: str | int) -> dict[str, Any]:
    """An attribute in OTLP's JSON; 64-bit integers are strings there."""
    return {
        "key": key,
        "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)},
    }


def parent_of(request: Any) -> dict[str, str] | None:
    """Return trace id, parent's span id and trace state of a request.

    None if the request is not traced, or if Triton is too old to tell.
    """
    trace: Any = request.trace() if hasattr(request, "trace") else None
    context = trace.get_context() if hasattr(trace, "get_context") else None
    if not context:
        return None
    carrier = json.loads(context)
    parts = carrier.get("traceparent", "").split("-")
    if len(parts) < 4:
        return None
    state = carrier.get("tracestate")
    return {
        "traceId": parts[1],
        "parentSpanId": parts[2],
        **({"traceState": state} if state else {}),
    }


class Exporter:
    """Sends spans from a thread of its own; never blocks and never raises in the caller."""

    def __init__(self, endpoint: str, resource: list[dict[str, Any]]) -> None:
        self._endpoint = endpoint
        self._resource = {"attributes": resource}
        self._spans: queue.Queue[dict[str, Any]] = queue.Queue(QUEUE_SPANS)
        self._stop = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="tritonpipe-tracing", daemon=True)
        self._thread.start()

    def add(self, span: dict[str, Any]) -> None:
        """Queue a span; a full queue drops it."""
        with contextlib.suppress(queue.Full):
            self._spans.put_nowait(span)

    def close(self) -> None:
        """Send what is queued, within STOP_S."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stop.wait(DELAY_S)
            while batch := self._batch():
                self._send(batch)

    def _batch(self) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        while len(spans) < BATCH_SPANS:
            try:
                spans.append(self._spans.get_nowait())
            except queue.Empty:
                break
        return spans

    def _send(self, spans: list[dict[str, Any]]) -> None:
        scopes = [{"scope": {"name": "tritonpipe"}, "spans": spans}]
        body = json.dumps(
            {"resourceSpans": [{"resource": self._resource, "scopeSpans": scopes}]}
        ).encode()
        # The resource's schema admits http and https only.
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._endpoint, body, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
                response.read()
        except Exception as error:  # of any kind: tracing must not end the thread, nor the step
            if not self._failing:
                text = f"cannot send spans to {self._endpoint}, they are dropped: {error}"
                print(f"tritonpipe: {text}", file=sys.stderr, flush=True)
            self._failing = True
        else:
            self._failing = False


class TritonPythonModel(Model):  # type: ignore[valid-type, misc]  # known only where it runs
    """The step's own model, with a span around ``execute``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the exporter after the step's own ``initialize``, which may refuse the load."""
        if hasattr(super(), "initialize"):
            super().initialize(args)
        found = json.loads(args["model_config"]).get("parameters", {})
        parameters = {key: value["string_value"] for key, value in found.items()}
        self._tritonpipe_name = args["model_name"]
        self._tritonpipe_attributes = [
            attribute("triton.model_name", args["model_name"]),
            attribute("triton.model_version", int(args["model_version"])),
            attribute("tritonpipe.instance", args["model_instance_name"]),
        ]
        resource = [
            attribute("service.name", parameters["tritonpipe.trace_service"]),
            attribute("service.namespace", parameters["tritonpipe.trace_namespace"]),
        ]
        self._tritonpipe_exporter = Exporter(parameters["tritonpipe.trace_endpoint"], resource)

    def execute(self, requests: list[Any]) -> Any:
        """What the step's own ``execute`` returns, of whatever kind that is."""
        # Now: a decoupled model may be done with a request when the call returns.
        parents = [parent_of(request) for request in requests]
        if not any(parents):
            return super().execute(requests)
        start = time.time_ns()
        try:
            result = super().execute(requests)
        except BaseException:
            self._tritonpipe_end(parents, start, None, failed=True)
            raise
        if inspect.isawaitable(result):
            return self._tritonpipe_await(result, parents, start)
        self._tritonpipe_end(parents, start, result)
        return result

    def finalize(self) -> None:
        """Send the last spans after the step's own ``finalize``."""
        if hasattr(super(), "finalize"):
            super().finalize()
        self._tritonpipe_exporter.close()

    async def _tritonpipe_await(
        self, result: Any, parents: list[dict[str, str] | None], start: int
    ) -> Any:
        try:
            responses = await result
        except BaseException:
            self._tritonpipe_end(parents, start, None, failed=True)
            raise
        self._tritonpipe_end(parents, start, responses)
        return responses

    def _tritonpipe_end(
        self, parents: list[dict[str, str] | None], start: int, responses: Any, failed: bool = False
    ) -> None:
        end = time.time_ns()
        for index, parent in enumerate(parents):
            if parent is None:
                continue
            # A decoupled model returns nothing here; a wrong list is Triton's to refuse.
            response = (
                responses[index] if isinstance(responses, list) and index < len(responses) else None
            )
            error = failed or (response is not None and response.has_error())
            self._tritonpipe_exporter.add(
                {
                    **parent,
                    "spanId": secrets.token_hex(8),
                    "name": f"{self._tritonpipe_name} execute",
                    "kind": INTERNAL,
                    "startTimeUnixNano": str(start),
                    "endTimeUnixNano": str(end),
                    "attributes": [
                        *self._tritonpipe_attributes,
                        attribute("tritonpipe.requests", len(parents)),
                    ],
                    "status": {"code": ERROR} if error else {},
                }
            )
