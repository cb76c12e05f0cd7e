"""Probe one pod: readiness of the ensemble, state of each model, and a test inference.

Readiness endpoints are not enough: with a dead Python stub process, or an ensemble that was
unloaded, the server stays "ready" (measured, Triton 2.51.0).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from triton_pipelines.triton.client import RESPONSE_BYTES_MAX, TritonClient
from triton_pipelines.triton.errors import (
    REASON_CHARACTERS_MAX,
    DeadBackendError,
    DeadlineError,
    FailureKind,
    FloodError,
    NotReadyError,
    OverloadedError,
    RejectedError,
    SharedMemoryFullError,
    TooLargeError,
    TritonError,
    UnreachableError,
    classify,
)
from triton_pipelines.triton.faulty_tensor import FaultyTensor, rejected_input
from triton_pipelines.triton.model_index import ModelIndexEntry
from triton_pipelines.triton.output_faults import (
    FaultSeverity,
    OutputFault,
    ProbeRequest,
    find_output_fault,
)
from triton_pipelines.triton.response_limits import ResponseBudget
from triton_pipelines.triton.tls import TlsIdentity, accepted_identity

DEADLINE_S: Final = 10.0
"""Seconds for a whole probe."""
SMALL_RESPONSE_BYTES: Final = 128 * 1024
"""Size limit of responses to most probes: more than most models return for an example request."""
STATISTICS_DEADLINE_S: Final = 2.0
"""Seconds, in addition, for the statistics of a pod whose test inference got no response."""
# Many pods are probed at the same time, and tenants choose what their models return: they must not
# choose how much memory and CPU time the operator uses. The content of a larger response is not
# checked.
_BUDGET: Final = ResponseBudget(
    large=8,
    large_bytes=RESPONSE_BYTES_MAX,
    small_bytes=SMALL_RESPONSE_BYTES,
    bytes_per_second=1024**2,
)
# Outputs of a config that are checked.
_OUTPUTS_MAX: Final = 1000
REQUEST_ID: Final = "tritonpipe-probe"
"""Request id in traces and logs, so that a probe is not taken for a client's request."""


@dataclass(frozen=True)
class ProbeResult:
    """Result of one probe of a pod."""

    ensemble_ready: bool
    """Whether the ensemble (or entry model) serves."""
    models: tuple[ModelIndexEntry, ...] = ()
    """The repository index; empty if it could not be read."""
    inference_ok: bool = False
    """Whether the test inference succeeded with plausible outputs."""
    inference_error: str | None = None
    """Why the test inference failed; ``None`` if it succeeded or was not run."""
    faulty_tensor: FaultyTensor | None = None
    """The tensor that made the test inference fail; ``None`` if it failed for another reason."""
    error: str | None = None
    """What prevented the probe (unreachable, control key, deadline); ``None`` if nothing did."""
    dead_process: bool = False
    """Whether the test inference failed because a process of a Python model is gone."""
    shared_memory_full: bool = False
    """Whether the test inference, or the start of a model, failed because the pod's shared memory
    is full."""
    mismatch: bool = False
    """Whether type, shape or number of rows differ from the declaration, and nothing is worse.

    ``inference_error`` then says how.
    """
    used_fallback: bool = False
    """Whether the result is that of :attr:`ProbeRequest.fallback_inputs`."""
    is_unreachable: bool = False
    """Whether :attr:`error` is a failure of the connection."""
    is_unchecked: bool = False
    """Whether a response, such as the outputs, is too large to be checked."""
    completed: int | None = None
    """Inferences that the pod has completed, if the test inference got no response or was rejected
    because of a full queue.

    Whether the number grows tells a busy pod from one in which a model hangs. ``None`` with a
    result, and without statistics.
    """

    @property
    def healthy(self) -> bool:
        """Whether the pod may take traffic."""
        return self.error is None and self.ensemble_ready and self.inference_ok


async def probe(
    address: str,
    ensemble: str,
    control_key: str | None,
    request: ProbeRequest | None,
    deadline_s: float = DEADLINE_S,
    tls: TlsIdentity | None = None,
) -> ProbeResult:
    """Probe one pod. A fault of the pod is a result, never an exception.

    Args:
        address: ``host:port`` of the pod's gRPC API.
        ensemble: the pipeline's ensemble, or the entry model of a pipeline without one.
        control_key: the pod's control key, for the repository index.
        request: request of the test inference; ``None`` probes readiness and states only.
        deadline_s: seconds for the whole probe.
        tls: how to connect with TLS; ``None`` for plaintext.
    """
    end = time.monotonic() + deadline_s
    with _BUDGET.share() as share:
        tls = await accepted_identity(address, tls)
        limit = share.bytes_max
        async with TritonClient(address, control_key, max_response_bytes=limit, tls=tls) as client:
            try:
                return await probe_over(PodConnection(client), ensemble, request, end)
            finally:
                share.received = client.received_bytes


@dataclass(slots=True)
class PodConnection:
    """A connection to a pod, and what was read over it."""

    client: TritonClient
    clock: Callable[[], float] = time.monotonic
    """Returns the current time in seconds."""
    config: ModelConfig | None = None
    """What a probe needs of the config of the ensemble; ``None`` before it is read."""
    config_read_at: float = 0.0
    """Time of :attr:`clock` at which the config was read."""
    models: tuple[ModelIndexEntry, ...] | None = None
    """The repository index, if the last test inference succeeded; ``None`` otherwise."""

    async def read_config(self, ensemble: str, end: float) -> ModelConfig:
        """Read what a probe needs of the config, which may be large; ``end`` is monotonic."""
        config = await self.client.model_config(ensemble, end - time.monotonic())
        self.config_read_at = self.clock()
        self.config = ModelConfig(
            max_batch_size=config.max_batch_size, output=config.output[:_OUTPUTS_MAX]
        )
        return self.config


async def probe_over(
    connection: PodConnection, ensemble: str, request: ProbeRequest | None, end: float
) -> ProbeResult:
    """Probe one pod over an open connection.

    Args:
        connection: the connection; its config and the states of the models are read if necessary.
        ensemble: as in :func:`probe`.
        request: as in :func:`probe`.
        end: time of the deadline, monotonic.
    """
    # As long as test inferences succeed, they show that the ensemble and its steps are ready. One
    # with a sequence also counts as successful without a response, and so shows nothing.
    is_shown = request is not None and not request.sequence_id
    known = connection.models if is_shown else None
    state = (
        ProbeResult(True, known)
        if known is not None
        else await _read_states(connection.client, ensemble, end)
    )
    if state.error or request is None:
        return state
    if not state.ensemble_ready:
        return _not_ready(state, ensemble)
    result = await _probe_inference(connection, ensemble, request, end, state)
    connection.models = result.models if result.inference_ok else None
    if known is None or result.inference_error is None:
        return result
    state = await _read_states(connection.client, ensemble, end)
    if state.error:
        return result  # The pod has responded with a fault, which no later error undoes.
    if not state.ensemble_ready:
        return _not_ready(state, ensemble)
    is_full = result.shared_memory_full or state.shared_memory_full
    return replace(result, models=state.models, shared_memory_full=is_full)


def _not_ready(state: ProbeResult, ensemble: str) -> ProbeResult:
    return replace(state, inference_error=f"'{ensemble}' is not ready")


async def _read_states(client: TritonClient, ensemble: str, end: float) -> ProbeResult:
    """Return the readiness of the ensemble and the state of each model; ``end`` is monotonic."""
    ready = False
    models: tuple[ModelIndexEntry, ...] = ()
    try:
        ready = await client.model_ready(ensemble, end - time.monotonic())
        models = tuple(await client.repository_index(end - time.monotonic()))
    except TritonError as error:
        return ProbeResult(
            ready,
            models,
            error=str(error),
            is_unreachable=isinstance(error, UnreachableError),
            is_unchecked=isinstance(error, TooLargeError),
        )
    return ProbeResult(ready, models, shared_memory_full=_has_full_shared_memory(models))


async def _probe_inference(
    connection: PodConnection,
    ensemble: str,
    request: ProbeRequest,
    end: float,
    state: ProbeResult,
) -> ProbeResult:
    """Run the test inference and add its result to ``state``; ``end`` is monotonic."""
    try:
        is_cached = connection.config is not None
        if not is_cached:
            await connection.read_config(ensemble, end)
        fault, used_fallback = await _find_fault(connection, ensemble, request, end, is_cached)
    except TooLargeError:
        # The response came, so every step works; only its content is not checked.
        return replace(state, inference_ok=True, is_unchecked=True)
    except (DeadlineError, OverloadedError) as error:
        if request.sequence_id:
            # Sequences of clients may occupy every slot while they last. A dead process would have
            # failed at once.
            return replace(state, inference_ok=True)
        # A busy pod is not broken: a long or full queue does not mean that outputs are wrong.
        # A stream may last: its inference is complete only when it ends.
        completed = (
            None if request.stream else await _completed_inferences(connection.client, ensemble)
        )
        return replace(state, error=str(error), completed=completed)
    except (FloodError, UnreachableError) as error:
        # Neither does a broken connection; the status of the pod shows a server that exits.
        unreachable = isinstance(error, UnreachableError)
        return replace(state, error=str(error), is_unreachable=unreachable)
    except TritonError as error:
        return _with_rejection(state, request, error)
    if fault is None:
        return replace(state, inference_ok=True, used_fallback=used_fallback)
    return replace(
        state,
        inference_error=fault.text[:REASON_CHARACTERS_MAX],
        faulty_tensor=fault.tensor,
        mismatch=fault.severity is FaultSeverity.MISMATCH,
        used_fallback=used_fallback,
    )


def _with_rejection(state: ProbeResult, request: ProbeRequest, error: TritonError) -> ProbeResult:
    """Return the result of a probe whose test inference the pod answered with this error."""
    return replace(
        state,
        inference_error=str(error)[:REASON_CHARACTERS_MAX],
        faulty_tensor=rejected_input(str(error)),
        dead_process=isinstance(error, DeadBackendError),
        shared_memory_full=isinstance(error, SharedMemoryFullError),
        used_fallback=request.fallback_inputs is not None,
    )


def _has_full_shared_memory(models: Sequence[ModelIndexEntry]) -> bool:
    """Return whether a model is not loaded because it found no shared memory."""
    return any(
        model.state == "UNAVAILABLE"
        and classify("", model.reason) is FailureKind.SHARED_MEMORY_FULL
        for model in models
    )


async def _completed_inferences(client: TritonClient, ensemble: str) -> int | None:
    """Return how many inferences the ensemble has completed; ``None`` without statistics.

    Its steps do not count: those before one that hangs continue.
    """
    try:
        statistics = await client.statistics(ensemble, STATISTICS_DEADLINE_S)
    except TritonError:
        return None
    return sum(int(model.inference_count) for model in statistics)


async def _find_fault(
    connection: PodConnection, ensemble: str, request: ProbeRequest, end: float, is_cached: bool
) -> tuple[OutputFault | None, bool]:
    """Return the fault of the outputs, and whether it is that of the fallback inputs.

    Raises what the client raises; ``end`` is monotonic. ``is_cached`` is whether the connection's
    config was read by an earlier probe.
    """
    client = connection.client

    async def fault_of(sent: ProbeRequest) -> OutputFault | None:
        infer = client.first_response if sent.stream else client.infer
        outputs = await infer(
            ensemble,
            sent.inputs,
            deadline_s=end - time.monotonic(),
            request_id=REQUEST_ID,
            sequence_id=sent.sequence_id,
        )
        fault = find_output_fault(connection.config, sent, outputs)
        if fault is None or not is_cached:
            return fault
        # The model may have been loaded with another config since.
        return find_output_fault(await connection.read_config(ensemble, end), sent, outputs)

    if request.fallback_inputs is None:
        return await fault_of(request), False
    try:
        fault = await fault_of(request)
    except (DeadBackendError, OverloadedError, SharedMemoryFullError):
        raise
    except (RejectedError, NotReadyError):
        pass  # A step may take only one row per request; the fallback decides then.
    else:
        if fault is None or fault.severity is not FaultSeverity.ROWS_OF_FREE_SHAPE:
            return fault, False
    fallback = replace(request, inputs=request.fallback_inputs, fallback_inputs=None)
    return await fault_of(fallback), True
