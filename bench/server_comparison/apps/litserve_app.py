"""LitServe: FastAPI in front of worker processes, which form the batches.

LitServe evaluates annotations, so this file does not postpone them.
"""

import json
import os
from typing import Any

import litserve
from fastapi import Request, Response

from bench.server_comparison.apps.encoder import (
    MAX_DELAY_MS,
    MAX_REQUESTS,
    PORT,
    WORKERS,
    Encoder,
)


class Embedding(litserve.LitAPI):  # type: ignore[misc]
    """A worker process."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self._encoder = Encoder()

    def decode_request(self, request: Request) -> Any:
        """Return the texts of a request.

        The annotation makes LitServe read the body as JSON; the argument is what it read.
        """
        return request["texts"]

    def batch(self, inputs: list[Any]) -> Any:
        """Return the requests of a batch as they are: they differ in their number of texts."""
        return inputs

    def predict(self, x: Any) -> Any:
        """Answer the requests of a batch."""
        return self._encoder.encode_requests(x)

    def unbatch(self, output: Any) -> Any:
        """Return the requests' answers."""
        return output

    def encode_response(self, output: Any) -> Response:
        """Return JSON as text; FastAPI would visit each number of a list."""
        text = json.dumps({"embeddings": output.tolist()})
        return Response(text, media_type="application/json")


if __name__ == "__main__":
    most = int(os.environ[MAX_REQUESTS])
    api = Embedding(max_batch_size=most, batch_timeout=MAX_DELAY_MS / 1000)
    server = litserve.LitServer(
        api, accelerator="cpu", devices=1, workers_per_device=WORKERS, fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ[PORT]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
