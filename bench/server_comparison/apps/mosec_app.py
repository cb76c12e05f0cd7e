"""mosec: a front end in Rust, which forms the batches, and Python workers.

With ``--binary`` an answer is the embeddings' bytes instead of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from mosec import Server, Worker

from bench.server_comparison.apps.encoder import (
    MAX_DELAY_MS,
    MAX_REQUESTS,
    PORT,
    WORKERS,
    Encoder,
)

BINARY = "--binary"


class Embedding(Worker):  # type: ignore[misc]
    """A worker process."""

    def __init__(self) -> None:
        """Load the model."""
        self._encoder = Encoder()

    def forward(self, data: list[dict[str, Any]]) -> list[Any]:
        """Answer the requests of a batch."""
        return self._encoder.encode_requests([request["texts"] for request in data])

    def serialize(self, data: Any) -> bytes:
        """Return compact JSON; mosec's default is indented and takes twice as long to write."""
        return json.dumps({"embeddings": data.tolist()}).encode()


class BinaryEmbedding(Embedding):
    """The same with binary answers."""

    def serialize(self, data: Any) -> bytes:
        """Return the embeddings' bytes."""
        return bytes(data.tobytes())


if __name__ == "__main__":
    worker = BinaryEmbedding if BINARY in sys.argv else Embedding
    # mosec parses the command line itself.
    listen = ["--port", os.environ[PORT], "--address", "127.0.0.1"]
    sys.argv[1:] = [*listen, "--log-level", "warning", "--timeout", "60000"]
    server = Server()
    most = int(os.environ[MAX_REQUESTS])
    server.append_worker(worker, num=WORKERS, max_batch_size=most, max_wait_time=MAX_DELAY_MS)
    server.run()
