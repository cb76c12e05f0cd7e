"""Health of one pod, told by what it does: is the ensemble ready, what state is each model in, does a real request get a sane answer.

Readiness endpoints alone are not enough: a dead python stub or an ensemble that was taken down leaves the server "ready" (measured, Triton 2.51.0).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from triton_pipelines.triton.client import Array, ModelState, TritonClient
from triton_pipelines.triton.errors import DeadlineError, OverloadedError, TooLargeError, TritonError

DEADLINE_S: Final = 10.0
# Many pods are asked side by side, and what they answer is a tenant's choice: the operator's memory must not be.
MAX_ANSWER_BYTES: Final = 16 * 1024**2


@dataclass(frozen=True)
class ProbeResult:
    """What one look at a pod found.

    Attributes:
        ensemble_ready: the ensemble (or entry model) serves.
        models: the repository index; empty when it could not be read.
        inference_ok: an inference was answered and the answer is sane.
        inference_error: why not, in words; None when it was.
        latency_s: seconds the inference took; None when there was no answer.
        error: what kept the probe from looking (unreachable, control key, deadline); None when it could look.
    """

    ensemble_ready: bool
    models: tuple[ModelState, ...] = ()
    inference_ok: bool = False
    inference_error: str | None = None
    latency_s: float | None = None
    error: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether the pod may take traffic."""
        return self.error is None and self.ensemble_ready and self.inference_ok


async def probe(address: str, ensemble: str, control_key: str | None, inputs: Mapping[str, Array], deadline_s: float = DEADLINE_S) -> ProbeResult:
    """Look at one pod. Never raises for what a pod can do wrong: that is the result.

    Args:
        address: ``host:port`` of the pod's gRPC API.
        ensemble: the pipeline's ensemble, or the entry model of one without.
        control_key: the pod's control key, for the repository index.
        inputs: an example request; empty: only readiness and states are asked.
        deadline_s: seconds for all of it.
    """
    end = time.monotonic() + deadline_s
    ready = False
    models: tuple[ModelState, ...] = ()
    async with TritonClient(address, control_key, max_answer_bytes=MAX_ANSWER_BYTES) as client:
        try:
            ready = await client.model_ready(ensemble, end - time.monotonic())
            models = tuple(await client.repository_index(end - time.monotonic()))
        except TritonError as error:
            return ProbeResult(ready, models, error=str(error))
        if not inputs:
            return ProbeResult(ready, models)
        if not ready:
            return ProbeResult(ready, models, inference_error=f"'{ensemble}' is not ready")
        try:
            config = await client.model_config(ensemble, end - time.monotonic())
            begin = time.monotonic()
            answer = await client.infer(ensemble, inputs, deadline_s=end - begin)
        except TooLargeError:
            # Answered, and too much to look at: that it came says that every step works.
            return ProbeResult(ready, models, True, None, time.monotonic() - begin)
        except (DeadlineError, OverloadedError) as error:
            # Busy is not broken: a long or a full queue in front of the probe's request says nothing about the answers.
            return ProbeResult(ready, models, error=str(error))
        except TritonError as error:
            return ProbeResult(ready, models, inference_error=str(error))
        fault = find_fault(config, inputs, answer)
        return ProbeResult(ready, models, fault is None, fault, time.monotonic() - begin)


def find_fault(config: Any, inputs: Mapping[str, Array], answer: Mapping[str, Array]) -> str | None:
    """Why an answer cannot be right, in words; None for a sane one.

    Sane: every output of the config is there and holds something, numbers are finite, and where the model batches every output has a row per input
    row.

    Args:
        config: the model's ModelConfig.
        inputs: what was asked.
        answer: what came back.
    """
    rows = {len(array) for array in inputs.values()} if config.max_batch_size > 0 else set()
    for output in config.output:
        array = answer.get(output.name)
        if array is None:
            return f"output {output.name} is missing from the answer"
        if array.size == 0:
            return f"output {output.name} is empty: shape {list(array.shape)}"
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            return f"output {output.name} holds NaN or infinity"
        if rows and len(array) not in rows:
            return f"output {output.name} has {len(array)} rows for {max(rows)} rows of input"
    return None
