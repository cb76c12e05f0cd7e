"""Asks one pod how it is, for the reconciler: the triton client's answer in the reconciler's terms."""

from __future__ import annotations

import datetime as dt
import secrets

import numpy as np

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.pipeline.example import DEFAULT_TEXT, ExampleRequest
from triton_pipelines.pipeline.maker import with_maker
from triton_pipelines.reconcile.observed import ModelState, Probe
from triton_pipelines.reconcile.reconciler import ProbeTarget
from triton_pipelines.triton.probe import DEADLINE_S, Question, probe

# A text that no pipeline refuses is not to be had.
MADE_UP = f" (asked with {DEFAULT_TEXT!r}; spec.health.text or spec.health.inputs gives another example)"
# Ids of sequences of our own: the upper half of what every integer type of the control tensor holds, where clients that count do not come.
_LOWEST_ID = 2**30


async def ask(target: ProbeTarget, now: dt.datetime, deadline_s: float = DEADLINE_S) -> Probe:
    """Readiness of the ensemble, states of all models and, where there is an example request, a real inference with it, in ``deadline_s`` seconds."""
    host = f"[{target.pod.ip}]" if ":" in target.pod.ip else target.pod.ip
    question = question_of(target.example) if target.example is not None else None
    result = await probe(f"{host}:{PORT_GRPC}", target.graph.model_name, target.control_key, question, deadline_s)
    failure = result.inference_error and with_maker(target.graph, result.inference_error)
    if failure and target.example is not None and target.example.made_up and not result.dead_process:
        failure += MADE_UP
    return Probe(
        at=now,
        ensemble_ready=result.ensemble_ready,
        models=tuple(ModelState(model.name, model.state, model.reason) for model in result.models),
        # None: none was tried; a pod counts as proven only by an answer.
        inference_error="" if result.inference_ok else failure,
        error=result.error or "",
        dead=(now,) if result.dead_process else (),
    )


def question_of(example: ExampleRequest) -> Question:
    """The request as it is sent; a sequence gets an id of its own, so that it never meets a client's."""
    number = _LOWEST_ID + secrets.randbelow(_LOWEST_ID)
    sequence: int | str = 0
    if example.sequence:
        sequence = f"tritonpipe-probe-{number}" if example.text_ids else number
    inputs = {name: np.repeat(array, example.repeat, axis=0) for name, array in example.inputs.items()} if example.repeat > 1 else example.inputs
    return Question(inputs, example.stream, sequence, example.finite)
