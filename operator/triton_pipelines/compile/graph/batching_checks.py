"""Check batch sizes against each other and against the settings of the batchers."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode

from .graph import Graph


def check_batching(graph: Graph) -> Iterator[Finding]:
    """Yield batch sizes that contradict each other or the settings of a batcher."""
    for step in graph.steps:
        if (
            step.repeats is None
            and graph.entry is None
            and graph.max_batch_size > step.max_batch_size > 0
        ):
            yield Finding(
                "spec.ensemble.maxBatchSize",
                f"{graph.max_batch_size} exceeds maxBatchSize {step.max_batch_size} of step "
                f"'{step.name}'; lower this value, or raise {step.path}.maxBatchSize",
                code=FindingCode.BATCH_SIZE_MISMATCH,
            )
    for step in graph.models:
        sizes = step.batching.preferred_batch_sizes if step.batching else ()
        for size in sizes:
            if size > step.max_batch_size:
                yield Finding(
                    f"{step.path}.dynamicBatching.preferredBatchSizes",
                    f"{size} exceeds maxBatchSize {step.max_batch_size}; use at most "
                    f"{step.max_batch_size}, or raise maxBatchSize",
                    code=FindingCode.BATCH_SIZE_MISMATCH,
                )
        if step.sequences is not None:
            for size in step.sequences.preferred_batch_sizes:
                if size > max(step.max_batch_size, 1):
                    yield Finding(
                        f"{step.path}.sequenceBatching.preferredBatchSizes",
                        f"{size} exceeds maxBatchSize {step.max_batch_size}; use at most "
                        f"{step.max_batch_size}, or raise maxBatchSize",
                        code=FindingCode.BATCH_SIZE_MISMATCH,
                    )
