"""A model of a real Triton that hangs: what probes find, with and without a full queue."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest

from tests.support import pipelines
from tests.support.python_backend import texts
from tests.support.triton import triton_server, write_model
from triton_pipelines.controllers.pipeline.probe_record import HUNG_INTERVAL, HUNG_PROBES, Probe
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


@pytest.mark.parametrize("is_full", [False, True], ids=["no-limit", "full-queue"])
async def test_a_model_that_hangs_is_detected_although_its_server_is_ready(
    tmp_path: Path, is_full: bool
) -> None:
    inputs = [pipelines.tensor("TEXT", "TYPE_STRING", "1")]
    outputs = [pipelines.tensor("Y", "TYPE_FP32", "1")]
    config = pipelines.config(NAME, inputs, outputs, {}, max_batch_size=1)
    config = config.replace("dynamic_batching { }", QUEUE) if is_full else config
    write_model(tmp_path, NAME, config, {"model.py": CODE})

    with triton_server(tmp_path, [NAME]) as server:

        async def look() -> ProbeResult:
            return await probe(server.grpc_address, NAME, None, REQUEST, SECONDS)

        async with TritonClient(server.grpc_address) as client:
            at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
            last = record(at, await look(), None)
            assert last.has_answered
            # One request hangs, the next one waits behind it. Probes that were cancelled stay in
            # the queue as well.
            waiting = [
                asyncio.create_task(client.infer(NAME, {"TEXT": texts("hang")}, deadline_s=60))
                for _ in range(1 + is_full)
            ]
            try:
                found = await look()
                while is_full and "queue is full" not in (found.error or ""):
                    found = await look()
                assert found.error
                assert found.ensemble_ready
                for _ in range(HUNG_PROBES):
                    at += HUNG_INTERVAL
                    last = record(at, await look(), last)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
    assert last.consecutive_hung == HUNG_PROBES
    assert "a model hangs" in (last.inference_error or "")
