"""Times of a terminating pod: drain, exit timeout, and age of gRPC connections."""

from __future__ import annotations

from triton_pipelines.api.v1alpha1 import InferencePipeline

# Triton's own default of max_sequence_idle_microseconds (core: sequence_batch_scheduler.cc).
DEFAULT_IDLE_MICROSECONDS = 1_000_000
# Between a last sequence's end and the server's: unloading took 3 s (measured, 24.10).
UNLOAD_SECONDS = 5


def sequence_idle_seconds(pipeline: InferencePipeline) -> int | None:
    """Return the longest time that a sequence of any step may pause, rounded up.

    ``None`` if no step has sequences.
    """
    spec = pipeline.spec
    steps = [
        step
        for step in (spec.model, *spec.steps, *spec.auxiliary_models)
        if step is not None and step.sequence_batching is not None
    ]
    idle = [
        step.sequence_batching.max_sequence_idle_microseconds or DEFAULT_IDLE_MICROSECONDS
        for step in steps
        if step.sequence_batching
    ]
    return -(-max(idle) // 1_000_000) if idle else None


def drain_seconds(pipeline: InferencePipeline) -> int:
    """Return the seconds to wait before Triton is stopped.

    At least 1, because older API servers reject a preStop sleep of 0.
    """
    return max(pipeline.spec.rollout.drain_seconds, 1)


def exit_timeout_seconds(pipeline: InferencePipeline) -> int:
    """Return the seconds that Triton has to exit.

    It is as long as the drain, and long enough for the last open sequence. Measured (24.10): after
    the signal to stop, Triton continues to answer on open connections and waits until every
    sequence ends or is dropped as idle. If its exit timeout expires first, the sequences are lost
    and it exits with code 1.
    """
    idle = sequence_idle_seconds(pipeline)
    return max(drain_seconds(pipeline), 0 if idle is None else idle + UNLOAD_SECONDS)


def connection_age_milliseconds(pipeline: InferencePipeline) -> int | None:
    """Return the milliseconds after which a gRPC client must reconnect.

    It is a third of the drain, so that all clients reconnect while a pod drains. ``None`` with
    sequences: a client that reconnects during a sequence loses it, so it stays until the pod is
    gone.
    """
    return (
        None
        if sequence_idle_seconds(pipeline) is not None
        else max(1000, drain_seconds(pipeline) * 1000 // 3)
    )
