"""A model of a real Triton that hangs: what probes find, and which pod is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import pipelines
from tests.support.python_backend import texts
from tests.support.triton import triton_server, write_model
from triton_pipelines.controllers.pipeline.policies.pod_repair import choose_repairs
from triton_pipelines.controllers.pipeline.probe_record import HUNG_INTERVAL, HUNG_PROBES, Probe
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot
from triton_pipelines.controllers.pipeline.state import PodRepairState
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import ProbeResult, probe

pytestmark = pytest.mark.integration
NAME = "stuck"
CODE = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().item()
            while text == b"hang":
                time.sleep(60)
        ones = pb_utils.Tensor("Y", np.ones((1, 1), np.float32))
        return [pb_utils.InferenceResponse([ones]) for _ in requests]
"""
QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
SECONDS = 1.0
"""Deadline of the probes."""
REQUEST = ProbeRequest({"TEXT": texts("fine")})
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def record(at: dt.datetime, found: ProbeResult, last: Probe | None) -> Probe:
    """Return the record of a probe, as the reconciler keeps it."""
    error = found.inference_error if found.inference_error else "" if found.inference_ok else None
    probed = Probe(
        at,
        found.ensemble_ready,
        inference_error=error,
        error=found.error or "",
        completed=found.completed,
    )
    return probed.merged_with(last)


def write(folder: Path, *, has_limit: bool = False) -> None:
    """Write the model's files."""
    inputs = [pipelines.tensor("TEXT", "TYPE_STRING", "1")]
    outputs = [pipelines.tensor("Y", "TYPE_FP32", "1")]
    config = pipelines.config(NAME, inputs, outputs, {}, max_batch_size=1)
    config = config.replace("dynamic_batching { }", QUEUE) if has_limit else config
    write_model(folder, NAME, config, {"model.py": CODE})


@contextlib.asynccontextmanager
async def hanging(client: TritonClient, requests: int) -> AsyncIterator[None]:
    """Let the model hang: in one request, while further ones wait behind it."""
    waiting = [
        asyncio.create_task(client.infer(NAME, {"TEXT": texts("hang")}, deadline_s=60))
        for _ in range(requests)
    ]
    try:
        yield
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("is_full", [False, True], ids=["no-limit", "full-queue"])
async def test_a_model_that_hangs_is_detected_although_its_server_is_ready(
    tmp_path: Path, is_full: bool
) -> None:
    write(tmp_path, has_limit=is_full)
    with triton_server(tmp_path, [NAME]) as server:

        async def look() -> ProbeResult:
            return await probe(server.grpc_address, NAME, None, REQUEST, SECONDS)

        async with TritonClient(server.grpc_address) as client:
            at = START
            last = record(at, await look(), None)
            assert last.has_answered
            # Probes that were cancelled stay in the queue as well.
            async with hanging(client, 1 + is_full):
                found = await look()
                while is_full and "queue is full" not in (found.error or ""):
                    found = await look()
                assert found.error
                assert found.ensemble_ready
                for _ in range(HUNG_PROBES):
                    at += HUNG_INTERVAL
                    last = record(at, await look(), last)
    assert last.consecutive_hung == HUNG_PROBES
    assert "a model hangs" in (last.inference_error or "")


def repairs(probed: Probe, state: PodRepairState) -> tuple[list[str], PodRepairState]:
    """Return the reasons of the repairs of the probed pod, next to one that serves, and the state.

    The state is read as after a restart of the operator.
    """
    pods = tuple(
        Pod(name, name, "", "127.0.0.1", True, False, {"metadata": {}})
        for name in ("hung", "other")
    )
    probes = {"hung": probed, "other": Probe(probed.at, True, inference_error="")}
    observed = Snapshot({"metadata": {"name": NAME}}, {}, pods, probes)
    decided = choose_repairs(observed, {}, state, probed.at, dt.timedelta(minutes=1))
    assert [pod.name for pod in decided.pods] == ["hung"] * len(decided.events)
    document = json.loads(json.dumps(decided.state.to_document()))
    return [event.reason for event in decided.events], PodRepairState.parse(document)


async def test_a_model_that_hung_before_a_restart_of_the_operator_is_replaced(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    with triton_server(tmp_path, [NAME]) as server:

        async def look() -> ProbeResult:
            return await probe(server.grpc_address, NAME, None, REQUEST, SECONDS)

        async with TritonClient(server.grpc_address) as client:
            events, state = repairs(record(START, await look(), None), PodRepairState())
            assert events == []
            async with hanging(client, 1):
                # The new process has never received a response.
                last: Probe | None = None
                at = START
                for _ in range(HUNG_PROBES):
                    at += HUNG_INTERVAL
                    last = record(at, await look(), last)
    assert last is not None
    assert not last.has_answered
    assert repairs(last, state)[0] == ["ModelHung"]
    # Without a recorded response, the model may only be slow.
    assert repairs(last, PodRepairState())[0] == []
