"""Asks one pod how it is, for the reconciler: the triton client's answer in the reconciler's terms."""

from __future__ import annotations

import datetime as dt

import numpy as np

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.reconcile.observed import ModelState, Probe
from triton_pipelines.reconcile.reconciler import ProbeTarget
from triton_pipelines.triton.probe import probe


async def ask(target: ProbeTarget, now: dt.datetime) -> Probe:
    """Readiness of the ensemble, states of all models and, where a text is given, a real inference with it."""
    graph = target.graph
    inputs = {}
    if target.text is not None:
        inputs = {graph.inputs[0].name: np.array([[target.text.encode()]], dtype=np.object_)}
    host = f"[{target.pod.ip}]" if ":" in target.pod.ip else target.pod.ip
    result = await probe(f"{host}:{PORT_GRPC}", graph.model_name, target.control_key, inputs)
    return Probe(
        at=now,
        ensemble_ready=result.ensemble_ready,
        models=tuple(ModelState(model.name, model.state, model.reason) for model in result.models),
        # None: none was tried; a pod counts as proven only by an answer.
        inference_error="" if result.inference_ok else result.inference_error,
        error=result.error or "",
    )
