"""Warn about schedulers that load but do not work as intended (measured, Triton 24.10)."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.sequence_batching import ControlKind
from triton_pipelines.api.tensors import DataType

from .defaults import STRATEGY_FILE, STRATEGY_PARAMETER
from .graph import Graph, Step
from .lint_findings import warning


def lint_schedulers(graph: Graph) -> Iterator[Finding]:
    """Warn about the custom batching libraries and the sequences of all models."""
    for step in graph.models:
        yield from _strategy(step)
        yield from _sequences(step)


def _strategy(step: Step) -> Iterator[Finding]:
    library = STRATEGY_PARAMETER in step.parameters or any(
        item.target.endswith(f"/{STRATEGY_FILE}") for item in step.fetches
    )
    if library and step.batching is not None and not step.batching.max_queue_delay_microseconds:
        # Each request that joins a batch which already waits for its instance gets a fresh record:
        # the library counts from nothing again.
        yield warning(
            f"{step.path}.dynamicBatching.maxQueueDelayMicroseconds",
            "without a delay, the batching library sees only part of each batch, so its "
            "limit is not enforced; set the delay to 1000 or more",
            code=FindingCode.BATCH_STRATEGY_NEEDS_DELAY,
        )


def _sequences(step: Step) -> Iterator[Finding]:
    if step.sequences is None or not step.python:
        return
    for index, control in enumerate(step.sequences.controls):
        if control.kind is ControlKind.CORRID and control.data_type is DataType.STRING:
            yield warning(
                f"{step.path}.sequenceBatching.controls[{index}].dataType",
                "with a CORRID control of type STRING, every request to the Python backend "
                "fails; use UINT64, or omit this control (string IDs work without it)",
                code=FindingCode.SEQUENCE_ID_UNSUPPORTED,
            )
    if step.sequences.states:
        yield warning(
            f"{step.path}.sequenceBatching.states",
            "the Python backend never stores states, so every request receives the initial "
            "state; store the state in the code, by sequence ID",
            code=FindingCode.SEQUENCE_STATE_NOT_STORED,
        )
