"""Health of one pod, told by what it does: is the ensemble ready, what state is each model in, does a real request get a sane answer.

Readiness endpoints alone are not enough: a dead python stub or an ensemble that was taken down leaves the server "ready" (measured, Triton 2.51.0).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType
from tritonclient.utils import np_to_triton_dtype

from triton_pipelines.triton.client import Array, ModelState, TritonClient
from triton_pipelines.triton.errors import (
    DeadBackendError,
    DeadlineError,
    NotReadyError,
    OverloadedError,
    RejectedError,
    TooLargeError,
    TritonError,
    UnreachableError,
)

DEADLINE_S: Final = 10.0
# Many pods are asked side by side, and what they answer is a tenant's choice: the operator's memory must not be.
MAX_ANSWER_BYTES: Final = 16 * 1024**2
# In traces and logs, so that a probe is not taken for a client.
REQUEST_ID: Final = "tritonpipe-probe"


@dataclass(frozen=True)
class ProbeResult:
    """What one look at a pod found.

    Attributes:
        ensemble_ready: the ensemble (or entry model) serves.
        models: the repository index; empty when it could not be read.
        inference_ok: an inference was answered and the answer is sane.
        inference_error: why not, in words; None when it was.
        latency_s: seconds the inference took; None when there was no answer.
        mismatch: the answer is of another type, shape or number of rows than declared, and nothing worse: ``inference_error`` says how.
        dead_process: the inference failed since a process of a python model is gone.
        alone: what is said rests on :attr:`Question.alone`.
        error: what kept the probe from looking (unreachable, control key, deadline); None when it could look.
    """

    ensemble_ready: bool
    models: tuple[ModelState, ...] = ()
    inference_ok: bool = False
    inference_error: str | None = None
    latency_s: float | None = None
    error: str | None = None
    dead_process: bool = False
    mismatch: bool = False
    alone: bool = False

    @property
    def healthy(self) -> bool:
        """Whether the pod may take traffic."""
        return self.error is None and self.ensemble_ready and self.inference_ok


@dataclass(frozen=True)
class Question:
    """An example request, and how it is to be asked.

    Attributes:
        inputs: arrays by input name.
        stream: the model may answer any number of times: one answer, or the end without any, is enough.
        sequence_id: an id of its own for models that keep sequences; 0: no sequence.
        finite: outputs in which no infinity is meant. In others a negative one is: models mask logits with it.
        alone: the same with fewer rows, for where nobody wrote how many the model takes: it is asked where ``inputs`` is refused, or answered with another
            number of rows in an output of free shape. ``None``: ``inputs`` has the rows that were meant.
    """

    inputs: Mapping[str, Array]
    stream: bool = False
    sequence_id: int | str = 0
    finite: Collection[str] = ()
    alone: Mapping[str, Array] | None = None


class Kind(enum.IntEnum):
    """How bad it is, worst first."""

    BROKEN = 0  # nothing that a client could use
    MISMATCH = 1  # another type, shape or number of rows than declared: clients that go by the answer itself get on with it
    ROWS_OF_FREE_SHAPE = 2  # several rows asked, another number answered: it may be meant, or the model takes one at a time


@dataclass(frozen=True)
class Fault:
    """What is wrong with an answer, in words."""

    text: str
    kind: Kind = Kind.BROKEN


async def probe(
    address: str,
    ensemble: str,
    control_key: str | None,
    question: Question | None,
    deadline_s: float = DEADLINE_S,
) -> ProbeResult:
    """Look at one pod. Never raises for what a pod can do wrong: that is the result.

    Args:
        address: ``host:port`` of the pod's gRPC API.
        ensemble: the pipeline's ensemble, or the entry model of one without.
        control_key: the pod's control key, for the repository index.
        question: an example request; None: only readiness and states are asked.
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
        if question is None:
            return ProbeResult(ready, models)
        if not ready:
            return ProbeResult(ready, models, inference_error=f"'{ensemble}' is not ready")
        begin = time.monotonic()
        try:
            config = await client.model_config(ensemble, end - begin)
            begin = time.monotonic()
            fault, alone = await _judged(client, ensemble, config, question, end)
        except TooLargeError:
            # Answered, and too much to look at: that it came says that every step works.
            return ProbeResult(ready, models, True, None, time.monotonic() - begin)
        except (DeadlineError, OverloadedError) as error:
            if question.sequence_id:
                # Every slot may be held by a client's sequence for as long as that lasts; a dead process would have said so at once.
                return ProbeResult(ready, models, True)
            # Busy is not broken: a long or a full queue in front of the probe's request says nothing about the answers.
            return ProbeResult(ready, models, error=str(error))
        except UnreachableError as error:
            # Nor does a connection that breaks; a server that goes down over the request is told of by its pod.
            return ProbeResult(ready, models, error=str(error))
        except TritonError as error:
            return ProbeResult(
                ready,
                models,
                inference_error=str(error),
                dead_process=isinstance(error, DeadBackendError),
                alone=question.alone is not None,
            )
        took = time.monotonic() - begin
        if fault is None:
            return ProbeResult(ready, models, True, None, took, alone=alone)
        return ProbeResult(
            ready,
            models,
            False,
            fault.text,
            took,
            mismatch=fault.kind is Kind.MISMATCH,
            alone=alone,
        )


async def _judged(
    client: TritonClient, ensemble: str, config: Any, question: Question, end: float
) -> tuple[Fault | None, bool]:
    """What is wrong with the answer, and whether it is that to :attr:`Question.alone`. Raises what the client does; ``end`` is monotonic."""

    async def fault_of(asked: Question) -> Fault | None:
        ask = client.first_answer if asked.stream else client.infer
        left = end - time.monotonic()
        return find_fault(
            config,
            asked,
            await ask(
                ensemble,
                asked.inputs,
                deadline_s=left,
                request_id=REQUEST_ID,
                sequence_id=asked.sequence_id,
            ),
        )

    if question.alone is None:
        return await fault_of(question), False
    try:
        fault = await fault_of(question)
    except (DeadBackendError, OverloadedError):
        raise
    except (RejectedError, NotReadyError):
        pass  # a step may take one row a request; what it says then is what counts
    else:
        if fault is None or fault.kind is not Kind.ROWS_OF_FREE_SHAPE:
            return fault, False
    return await fault_of(replace(question, inputs=question.alone, alone=None)), True


def find_fault(config: Any, question: Question, answer: Mapping[str, Array]) -> Fault | None:
    """The worst thing that cannot be right in an answer; None for a sane one.

    Sane: every output of the config is there, of the type and shape that the config says (Triton hands on whatever a python step answers), and, unless its
    shape is free, holds something; no number is NaN or plus infinity, nor
    minus infinity where none is meant; where the model batches every output has a row per input row. A response of a stream may leave
    outputs out, and has its own rows. A shape without any fixed size says nothing of the number of axes either: NVIDIA's postprocess of
    TensorRT-LLM declares [-1] and answers a flat array.

    Args:
        config: the model's ModelConfig.
        question: what was asked.
        answer: what came back.
    """
    return min(_faults(config, question, answer), key=lambda fault: fault.kind, default=None)


def _faults(config: Any, question: Question, answer: Mapping[str, Array]) -> Iterator[Fault]:
    rows = (
        {len(array) for array in question.inputs.values()}
        if config.max_batch_size > 0 and not question.stream
        else set()
    )
    for output in config.output:
        array = answer.get(output.name)
        if array is None:
            if not question.stream:
                yield Fault(f"output {output.name} is missing from the answer")
            continue
        fixed = any(size != -1 for size in output.dims)
        declared = DataType.Name(output.data_type).removeprefix("TYPE_")
        if (came := _type_of(array)) != declared:
            yield Fault(f"output {output.name} is {came}, declared {declared}", Kind.MISMATCH)
        if rows and array.ndim and len(array) not in rows:
            # A request of rows that nobody wrote is no promise of the pipeline's.
            kind = (
                Kind.BROKEN
                if question.alone is None
                else Kind.MISMATCH
                if fixed
                else Kind.ROWS_OF_FREE_SHAPE
            )
            yield Fault(
                f"output {output.name} has {len(array)} rows for {max(rows)} rows of input", kind
            )
        if array.size == 0 and -1 not in output.dims:
            yield Fault(f"output {output.name} is empty: shape {list(array.shape)}")
        shape = [-1, *output.dims] if config.max_batch_size > 0 else list(output.dims)
        if fixed and not question.stream and not _fits(array.shape, shape):
            yield Fault(
                f"output {output.name} has shape {list(array.shape)}, declared {shape}",
                Kind.MISMATCH,
            )
        if fault := _fault_of_numbers(array, finite=output.name in question.finite):
            yield Fault(f"output {output.name} holds {fault}")


def _type_of(array: Array) -> str:
    """Triton's name of an array's type; that of NumPy where it has none."""
    name: str = np_to_triton_dtype(array.dtype) or str(array.dtype)
    return "STRING" if name == "BYTES" else name


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(
        wanted in (-1, size) for size, wanted in zip(shape, declared, strict=True)
    )


def _fault_of_numbers(array: Array, *, finite: bool) -> str | None:
    # bfloat16 is no kind of NumPy's own.
    if array.dtype.kind not in "fc" and array.dtype.name != "bfloat16":
        return None
    numbers = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    if np.isnan(numbers).any():
        return "NaN"
    if np.isposinf(numbers).any() or (finite and np.isinf(numbers).any()):
        return "infinity"
    return None
