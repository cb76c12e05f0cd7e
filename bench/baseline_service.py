"""Serve the architectures that S3 compares with: a separate tokenizer service before Triton.

``python -m bench.baseline_service batched|plain GRPC HTTP MODEL TOKENIZER [masked]`` serves
``POST /`` with ``{"text": "…"}`` on a free port of loopback, prints the port, and answers
``{"logits": […]}``. With *masked*, the model gets an ``attention_mask`` too.

*batched* is an optimized service: one asyncio process with persistent connections. Requests are
collected into micro-batches, tokenized together in a thread without the interpreter's lock, padded
to the longest of the batch and sent to Triton as one binary gRPC request. Several batches run at
the same time. *plain* is a simple first version: a thread for each connection tokenizes each
request alone and sends it to Triton as JSON over persistent HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import requests
import tritonclient.grpc.aio
from aiohttp import web
from tokenizers import Tokenizer

MOST_ROWS = 64
UNDER_WAY = 3
"""Micro-batches at once: one tokenized, one in the model, one on its way. More made them smaller,
and throughput worse.
"""
ADDRESS = "127.0.0.1"


def tokenizer_of(file: str) -> Tokenizer:
    """As the pipeline's tokenizer step has it: no padding, cut at 512 tokens."""
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    return tokenizer


class Batched:
    """The service done well."""

    def __init__(self, grpc: str, model: str, file: str, masked: bool) -> None:
        self._grpc, self._model, self._tokenizer = grpc, model, tokenizer_of(file)
        self._masked = masked
        self._waiting: asyncio.Queue[tuple[str, asyncio.Future[list[float]]]] = asyncio.Queue()

    async def serve(self) -> None:
        """Serve until cancelled."""
        self._client = tritonclient.grpc.aio.InferenceServerClient(self._grpc)
        app = web.Application()
        app.router.add_post("/", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, ADDRESS, 0)
        await site.start()
        assert site._server is not None
        print(site._server.sockets[0].getsockname()[1], flush=True)  # type: ignore[attr-defined]
        async with asyncio.TaskGroup() as group:
            for _ in range(UNDER_WAY):
                group.create_task(self._work())

    async def _answer(self, request: web.Request) -> web.Response:
        text = json.loads(await request.read())["text"]
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((text, future))
        return web.Response(
            body=json.dumps({"logits": await future}).encode(), content_type="application/json"
        )

    async def _work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < MOST_ROWS and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            try:
                arrays = await asyncio.to_thread(self._encode, [text for text, _ in batch])
                tensors = []
                for name, array in arrays.items():
                    tensor = tritonclient.grpc.aio.InferInput(name, array.shape, "INT64")
                    tensor.set_data_from_numpy(array)
                    tensors.append(tensor)
                logits = (
                    (await self._client.infer(self._model, tensors)).as_numpy("logits").tolist()
                )
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
                continue
            for (_, future), row in zip(batch, logits, strict=True):
                future.set_result(row)

    def _encode(self, texts: list[str]) -> dict[str, np.ndarray[Any, Any]]:
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        if not self._masked:
            return {"input_ids": ids}
        lengths = np.array([len(row) for row in rows])
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        return {"input_ids": ids, "attention_mask": mask}


def plain(http: str, model: str, file: str, masked: bool) -> ThreadingHTTPServer:
    """The service done plainly."""
    tokenizer, own = tokenizer_of(file), threading.local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Without it every answer waits for the delayed acknowledgement of its head: 40 ms that are
        # nobody's architecture.
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
            ids = tokenizer.encode(text).ids
            if not hasattr(own, "session"):
                own.session = requests.Session()
                own.session.trust_env = False
            arrays = {"input_ids": ids} | ({"attention_mask": [1] * len(ids)} if masked else {})
            asked = {
                "inputs": [
                    {"name": name, "shape": [1, len(ids)], "datatype": "INT64", "data": [row]}
                    for name, row in arrays.items()
                ]
            }
            answer = own.session.post(f"{http}/v2/models/{model}/infer", json=asked, timeout=60)
            answer.raise_for_status()
            body = json.dumps({"logits": answer.json()["outputs"][0]["data"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    return Server((ADDRESS, 0), Handler)


def main(kind: str, grpc: str, http: str, model: str, file: str, masked: str = "") -> None:
    """Serve one of the two until killed."""
    if kind == "batched":
        asyncio.run(Batched(grpc, model, file, bool(masked)).serve())
        return
    server = plain(http, model, file, bool(masked))
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
