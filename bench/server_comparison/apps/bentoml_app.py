"""BentoML: worker processes that each answer HTTP and form batches of their own.

Its batching has no fixed delay: it learns how long to wait, and drops requests that would take
longer than the maximum latency. The maximum here is above anything measured, so that none are.
"""

from __future__ import annotations

import bentoml
import numpy as np

from bench.server_comparison.apps.encoder import MAX_ROWS, WORKERS, Encoder


@bentoml.service(
    workers=WORKERS,
    traffic={"timeout": 60},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Embedding:
    """A worker process."""

    def __init__(self) -> None:
        """Load the model."""
        self._encoder = Encoder()

    @bentoml.api(  # type: ignore[untyped-decorator]
        batchable=True, max_batch_size=MAX_ROWS, max_latency_ms=60_000
    )
    def embed(self, texts: list[str]) -> np.ndarray:  # type: ignore[type-arg]
        """Return an embedding per text; a batch has the texts of several requests."""
        embeddings: np.ndarray = self._encoder.encode(texts)  # type: ignore[type-arg]
        return embeddings
