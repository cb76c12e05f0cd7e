"""Start the servers of the comparison, and describe how each is asked.

All run `apps.encoder.WORKERS` copies of the model with one thread each, batches of at most
`MAX_ROWS` rows, and let a request wait `MAX_DELAY_MS` for others.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import tritonclient.grpc
import tritonclient.http
import yaml
from numpy.typing import NDArray

from bench.results import FOLDER
from bench.server_comparison import environments, handwritten
from bench.server_comparison.apps import encoder
from e2e.local import native
from e2e.local.processes import free_port
from e2e.models import tree
from e2e.models.__main__ import source_map
from e2e.suite.pipelines import merged, sample
from triton_pipelines.api import names
from triton_pipelines.cli.local_pipeline import serve_locally
from triton_pipelines.tools.loadgen import InferenceProtocol, LoadTarget
from triton_pipelines.triton.local_server import LocalTriton

APPS = "bench.server_comparison.apps"
"""Package of the applications; they import nothing else of this project."""
START_SECONDS = 120.0
STOP_SECONDS = 10.0
TEI_URL = "TEI_URL"
"""Environment variable with the address of a running text-embeddings-inference."""
EMBEDDING = "embedding"
JSON_TYPE = {"Content-Type": "application/json"}
WIDTH = 384
MANY = 16
"""Texts in a request with many texts."""
BLAS_THREADS = names.ENV_BLAS_THREADS
"""1, as in the pipeline, for every server but one: waiting BLAS threads use CPU time."""
Vectors = NDArray[np.float32]
Requests = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Endpoint:
    """One way to ask one server."""

    name: str
    """Server, variant and protocol."""
    is_ours: bool
    """Whether it is the pipeline; otherwise it is a baseline."""
    pid: int | None
    """Process whose tree is the server; ``None`` if it runs elsewhere."""
    target: Callable[[Requests], LoadTarget] = field(repr=False)
    """The load for requests of some texts each."""
    ask: Callable[[Sequence[str]], Vectors] = field(repr=False)
    """Return the embeddings of one request."""
    many: Endpoint | None = None
    """The same server with another limit, for requests of `MANY` texts; ``None``: itself."""

    def serving(self, texts: int) -> Endpoint:
        """Return the server that answers requests of so many texts."""
        return self.many if self.many is not None and texts == MANY else self


@contextlib.contextmanager
def all_servers(files: Path) -> Iterator[list[Endpoint]]:
    """Start every server on the model in a folder."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-servers-")))
        os.environ[BLAS_THREADS] = str(os.cpu_count())
        server = stack.enter_context(pipeline(files, folder / "threads"))
        threads = of_triton("pipeline, all BLAS threads", EMBEDDING, server, is_ours=True)
        os.environ[BLAS_THREADS] = "1"
        endpoints = threads[1:2]  # over HTTP with binary tensors
        server = stack.enter_context(pipeline(files, folder / "pipeline"))
        endpoints += of_triton("pipeline", EMBEDDING, server, is_ours=True)
        server = stack.enter_context(pipeline(files, folder / "pooled", "Model"))
        name = "pipeline, pooling in the model"
        endpoints += of_triton(name, EMBEDDING, server, is_ours=True)[1:2]
        server = stack.enter_context(handwritten.served(files, folder / "handwritten"))
        whole = of_triton("handwritten ensemble", handwritten.NAME, server, is_ours=False)
        endpoints += whole[1:2]
        app = model_folder(files, folder / "app")
        for server_app in COUNTING_APPS:
            # These count requests, the others rows.
            one, many = (
                stack.enter_context(counts_requests(server_app, app, encoder.MAX_ROWS // texts))
                for texts in (1, MANY)
            )
            endpoints.append(replace(one, many=many))
        endpoints.append(stack.enter_context(bentoml(app)))
        if os.environ.get(TEI_URL):
            endpoints.append(text_embeddings_inference(os.environ[TEI_URL]))
        yield endpoints


def document(placement: str) -> dict[str, Any]:
    """Return the sample `embedding` with the limits that all servers have."""
    rows = {"maxBatchSize": encoder.MAX_ROWS}
    delay = encoder.MAX_DELAY_MS * 1000
    tokenizer = {"dynamicBatching": {"maxQueueDelayMicroseconds": delay}}
    model = {"instances": {"count": encoder.WORKERS}, **rows}
    postprocess = {"placement": placement}
    changes = {"tokenizer": tokenizer, "model": model, "postprocess": postprocess}
    return merged(sample(EMBEDDING), {"spec": changes})


@contextlib.contextmanager
def pipeline(files: Path, folder: Path, placement: str = "Step") -> Iterator[LocalTriton]:
    """Serve the pipeline as `tritonpipe serve` does."""
    native.install()
    folder.mkdir(parents=True)
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document(placement)), encoding="utf-8")
    rules = [rule.removeprefix("--source-map=") for rule in source_map(files)]
    with serve_locally(file, rules, folder=folder / "work", deadline=300) as served:
        yield served.server


# --- Triton ---------------------------------------------------------------------------------------


def of_triton(name: str, model: str, server: LocalTriton, *, is_ours: bool) -> list[Endpoint]:
    """Return the three ways to ask an ensemble: JSON, binary tensors over HTTP, gRPC."""
    url, grpc = server.http_url, server.grpc_address
    path = f"/v2/models/{model}/infer"

    def as_json(requests: Requests) -> LoadTarget:
        bodies = [_triton_json(texts) for texts in requests]
        return LoadTarget(url, model, (), path=path, bodies=bodies, headers=JSON_TYPE)

    def binary(protocol: InferenceProtocol, address: str) -> Callable[[Requests], LoadTarget]:
        def target(requests: Requests) -> LoadTarget:
            inputs = [{"TEXT": _column(texts)} for texts in requests]
            return LoadTarget(address, model, inputs, protocol)

        return target

    def ask_json(texts: Sequence[str]) -> Vectors:
        found = _post(f"{url}{path}", _triton_json(texts), JSON_TYPE).json()
        return _vectors(found["outputs"][0]["data"])

    def ask_by(client: Any, kind: Any) -> Callable[[Sequence[str]], Vectors]:
        def ask(texts: Sequence[str]) -> Vectors:
            given = kind.InferInput("TEXT", [len(texts), 1], "BYTES")
            given.set_data_from_numpy(_column(texts))
            return _vectors(client.infer(model, [given]).as_numpy("EMBEDDING"))

        return ask

    http_client = tritonclient.http.InferenceServerClient(url.removeprefix("http://"))
    grpc_client = tritonclient.grpc.InferenceServerClient(grpc)
    binary_http = binary(InferenceProtocol.HTTP, url), ask_by(http_client, tritonclient.http)
    binary_grpc = binary(InferenceProtocol.GRPC, grpc), ask_by(grpc_client, tritonclient.grpc)
    return [
        Endpoint(f"{name}, {protocol}", is_ours, server.pid, target, ask)
        for protocol, (target, ask) in (
            ("HTTP JSON", (as_json, ask_json)),
            ("HTTP binary", binary_http),
            ("gRPC", binary_grpc),
        )
    ]


def _triton_json(texts: Sequence[str]) -> bytes:
    tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    return json.dumps({"inputs": [tensor]}).encode()


def _column(texts: Sequence[str]) -> NDArray[Any]:
    return np.array([[text.encode()] for text in texts], dtype=np.object_)


# --- Other servers --------------------------------------------------------------------------------


def _read_floats(answer: httpx.Response) -> Vectors:
    return _vectors(np.frombuffer(answer.content, np.float32))


@contextlib.contextmanager
def counts_requests(app: CountingApp, files: Path, requests: int) -> Iterator[Endpoint]:
    """Start an application whose batches are limited to this number of requests."""
    python = environments.python_of(app.server)
    command = [str(python), "-m", f"{APPS}.{app.server}_app", *app.options]
    with _started(command, files, requests, app.run_rows) as (url, pid):
        yield _by_json(app.name, f"{url}/{app.path}", pid, read=app.read)


@contextlib.contextmanager
def bentoml(files: Path) -> Iterator[Endpoint]:
    """Start BentoML."""
    python = environments.python_of("bentoml")
    command = [str(python), "-m", "bentoml", "serve", f"{APPS}.bentoml_app:Embedding"]
    listen = ["--host", "127.0.0.1", "--port", "{port}"]
    with _started([*command, *listen], files) as (url, pid):
        yield _by_json("BentoML, HTTP JSON", f"{url}/embed", pid)


def text_embeddings_inference(url: str) -> Endpoint:
    """Return a running text-embeddings-inference; its CPU time and memory are not known here."""
    key = "inputs"
    extra = {"normalize": True, "truncate": True}
    return _by_json(
        "text-embeddings-inference", f"{url.rstrip('/')}/embed", None, key=key, extra=extra
    )


def _read_lists(answer: httpx.Response) -> Vectors:
    """Return the embeddings of a JSON answer, which may have a field for them."""
    found = answer.json()
    return _vectors(found["embeddings"] if isinstance(found, dict) else found)


@dataclass(frozen=True)
class CountingApp:
    """An application in ``apps`` that limits batches by requests, not by rows."""

    name: str
    """Row of the tables."""
    server: str
    """The server's package."""
    path: str
    options: tuple[str, ...] = ()
    run_rows: int = encoder.TUNED_RUN_ROWS
    """Rows of one run of the model."""
    read: Callable[[httpx.Response], Vectors] = _read_lists


COUNTING_APPS: Final = (
    CountingApp("mosec, HTTP JSON", "mosec", "inference"),
    CountingApp(
        "mosec, HTTP JSON, one run per batch", "mosec", "inference", run_rows=encoder.MAX_ROWS
    ),
    CountingApp("mosec, binary answers", "mosec", "inference", ("--binary",), read=_read_floats),
    CountingApp("LitServe, HTTP JSON", "litserve", "predict"),
)


def _by_json(
    name: str,
    url: str,
    pid: int | None,
    *,
    key: str = "texts",
    extra: Mapping[str, Any] | None = None,
    read: Callable[[httpx.Response], Vectors] = _read_lists,
) -> Endpoint:
    """Return a server that takes texts as JSON."""
    base, _, path = url.partition("://")[2].partition("/")
    address = f"{url.partition('://')[0]}://{base}"

    def body(texts: Sequence[str]) -> bytes:
        return json.dumps({key: list(texts), **(extra or {})}).encode()

    def target(requests: Requests) -> LoadTarget:
        bodies = [body(texts) for texts in requests]
        return LoadTarget(address, name, (), path=f"/{path}", bodies=bodies, headers=JSON_TYPE)

    def ask(texts: Sequence[str]) -> Vectors:
        return read(_post(url, body(texts), JSON_TYPE))

    endpoint = Endpoint(name, False, pid, target, ask)
    _wait(endpoint)
    return endpoint


def model_folder(files: Path, folder: Path) -> Path:
    """Return a folder with the model and the tokenizer side by side, as the apps read them."""
    folder.mkdir()
    (folder / "model.onnx").symlink_to(files / tree.EMBEDDING_MODEL)
    (folder / "tokenizer.json").symlink_to(files / tree.TOKENIZER_FOLDER / "tokenizer.json")
    return folder


@contextlib.contextmanager
def _started(
    command: Sequence[str],
    files: Path,
    requests: int = encoder.MAX_ROWS,
    run_rows: int = encoder.TUNED_RUN_ROWS,
) -> Iterator[tuple[str, int]]:
    """Run a server's application; return its address and its process id.

    A process group of its own ends with it: some servers leave their workers behind.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-server-") as home:
        environment = {
            **os.environ,
            encoder.MODEL_FOLDER: str(files),
            encoder.PORT: str(port),
            encoder.MAX_REQUESTS: str(requests),
            encoder.RUN_ROWS: str(run_rows),
            "PYTHONPATH": str(FOLDER.parent),
            "TOKENIZERS_PARALLELISM": "false",
            "BENTOML_HOME": home,
            "BENTOML_DO_NOT_TRACK": "True",
        }
        words = [word.format(port=port) for word in command]
        log = Path(home) / "server.log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                words,
                cwd=FOLDER.parent,
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            ) as process,
        ):
            try:
                _wait_for_port(port, process)
                yield f"http://127.0.0.1:{port}", process.pid
            except BaseException:
                print(*log.read_text(errors="replace").splitlines()[-20:], sep="\n")
                raise
            finally:
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and everything that it started."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start within {START_SECONDS:g} s")


def _wait(endpoint: Endpoint) -> None:
    """Wait until a server answers: some listen before their workers are ready."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            endpoint.ask(["ready"])
            return
        except (httpx.HTTPError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
    answer = httpx.post(url, content=body, headers=headers, timeout=60, trust_env=False)
    return answer.raise_for_status()


def _vectors(values: Any) -> Vectors:
    return np.asarray(values, np.float32).reshape(-1, WIDTH)
