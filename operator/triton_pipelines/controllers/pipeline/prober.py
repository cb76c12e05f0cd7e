"""Probe one pod for the reconciler, and translate the result of the Triton client."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.compile.graph.example_request import DEFAULT_TEXT, ExampleRequest
from triton_pipelines.controllers.pipeline.pod_probes import ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import ModelState, Probe
from triton_pipelines.triton.errors import REASON_CHARACTERS_MAX
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import DEADLINE_S, ProbeResult, probe
from triton_pipelines.triton.probe_connections import PodEndpoint, ProbeConnections
from triton_pipelines.triton.tensor_origin import with_tensor_origin

# Ids of our own sequences: the upper half of what every integer type of the control tensor holds,
# which clients that count up do not reach.
_LOWEST_ID = 2**30
# Maximum number of entries of a pod's index: a model has one per version.
MODELS_MAX = 100


async def probe_pod(target: ProbeTarget, now: dt.datetime, deadline_s: float = DEADLINE_S) -> Probe:
    """Probe one pod over a connection of its own, within ``deadline_s`` seconds.

    The probe reads the readiness of the ensemble and the states of all models. If there is an
    example request, it also runs a test inference.
    """
    end, request = _endpoint(target), _request(target)
    return _translate(
        target,
        now,
        await probe(end.address, end.ensemble, end.control_key, request, deadline_s, end.tls),
    )


@dataclass(frozen=True, slots=True)
class PodProber:
    """Probes pods as :func:`probe_pod` does, over connections that are kept."""

    connections: ProbeConnections = field(default_factory=ProbeConnections)

    async def probe_pod(self, target: ProbeTarget, now: dt.datetime) -> Probe:
        """Probe one pod."""
        found = await self.connections.probe(target.pod.uid, _endpoint(target), _request(target))
        return _translate(target, now, found)


def _endpoint(target: ProbeTarget) -> PodEndpoint:
    host = f"[{target.pod.ip}]" if ":" in target.pod.ip else target.pod.ip
    return PodEndpoint(
        str(target.pod.raw["metadata"].get("namespace") or ""),
        f"{host}:{PORT_GRPC}",
        target.graph.model_name,
        target.control_key,
        target.tls,
    )


def _request(target: ProbeTarget) -> ProbeRequest | None:
    return probe_request(target.example) if target.example is not None else None


def _translate(target: ProbeTarget, now: dt.datetime, result: ProbeResult) -> Probe:
    """Return the result of a probe in the reconciler's terms."""
    # Drop models outside the pipeline: a pod may report any number of them.
    graph = target.graph
    expected = {graph.model_name, *graph.load, *(step.model_name for step in graph.steps)}
    failure = result.inference_error and with_tensor_origin(
        target.graph, result.inference_error, result.faulty_tensor
    )
    if (
        failure
        and target.example is not None
        and target.example.made_up
        and not (result.dead_process or result.shared_memory_full)
    ):
        failure += example_note(1 if result.used_fallback else target.example.repeat)
    return Probe(
        at=now,
        ensemble_ready=result.ensemble_ready,
        models=_models(result, expected),
        # None: no test inference was run; only a result verifies a pod.
        inference_error="" if result.inference_ok or result.mismatch else failure,
        mismatch=(failure or "") if result.mismatch else "",
        error=result.error or "",
        dead=(now,) if result.dead_process else (),
        completed=result.completed,
        server_restarts=target.pod.server_restarts,
        shared_memory_full=result.shared_memory_full,
    )


def _models(result: ProbeResult, expected: Collection[str]) -> tuple[ModelState, ...]:
    """Return the distinct states of the expected models; Triton lists each version in any order."""
    found = {
        ModelState(model.name, model.state, model.reason[:REASON_CHARACTERS_MAX])
        for model in result.models
        if model.name in expected
    }
    order = sorted(found, key=lambda model: (model.name, model.state, model.reason))
    return tuple(order[:MODELS_MAX])


def example_note(rows: int) -> str:
    """Return the note on a request that was made up: no text is accepted by every pipeline.

    Args:
        rows: How many rows the request had.
    """
    count_text = f" in {rows} rows" if rows > 1 else ""
    hint = ", of one row" if rows > 1 else ""
    return (
        f" (probed with {DEFAULT_TEXT!r}{count_text};"
        f" spec.health.text or spec.health.inputs sets another example{hint})"
    )


def probe_request(example: ExampleRequest) -> ProbeRequest:
    """Return the request to send.

    A sequence gets an id of its own, so that it never collides with a client's.
    """
    sequence: int | str = 0
    if example.sequence:
        number = _LOWEST_ID + secrets.randbelow(_LOWEST_ID)
        sequence = f"tritonpipe-probe-{number}" if example.text_ids else number
    if example.repeat == 1:
        return ProbeRequest(example.inputs, example.stream, sequence, example.finite)
    inputs = {
        name: np.repeat(array, example.repeat, axis=0) for name, array in example.inputs.items()
    }
    return ProbeRequest(
        inputs, example.stream, sequence, example.finite, fallback_inputs=example.inputs
    )
