"""A python model that records what Triton's scheduler gives it, and a server to load it.

The model waits where a test requests it.

Tests of scheduling fields observe conditions, never times: a request is held in the model, others
queue up behind it (Triton's own count of pending requests says when), the hold ends, and the
model's record tells which batches were formed, in which order, by which instance.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import np_to_triton_dtype

from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.local_server import LocalTriton

T = TypeVar("T")
SECONDS = 30.0
_POLL_S = 0.005

# Output number i is input number i plus one (texts as they are); an output without such an input
# holds the number of rows.
RECORDER = """
import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def plain(array):
    if array.dtype == np.object_:
        return [value.decode() for value in array.ravel().tolist()]
    return array.ravel().tolist()


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in self.config["parameters"].items()}
        self.about = {"version": int(args["model_version"]), "instance": args["model_instance_name"]}
        self.say("load", parameters=self.parameters, cores=sorted(os.sched_getaffinity(0)), kind=args["model_instance_kind"])

    def say(self, event, **facts):
        line = json.dumps({"event": event, "at": time.time(), **self.about, **facts})
        with open(os.path.join(self.parameters["record"], self.config["name"] + ".jsonl"), "a") as file:
            file.write(line + "\\n")

    def held(self, value):
        return os.path.exists(os.path.join(self.parameters["record"], f"{self.config['name']}.hold.{value}"))

    def execute(self, requests):
        seen = []
        for request in requests:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            seen.append(
                {
                    "inputs": {name: plain(array) for name, array in tensors.items()},
                    "shapes": {name: list(array.shape) for name, array in tensors.items()},
                    "correlation": request.correlation_id(),
                }
            )
        self.say("begin", requests=seen)
        first = self.config["input"][0]["name"]
        for entry in seen:
            for value in entry["inputs"].get(first, []):
                while self.held(value):
                    time.sleep(0.002)
        self.say("end", requests=seen)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensors = []
        for number, output in enumerate(self.config["output"]):
            source = self.config["input"][number]["name"] if number < len(self.config["input"]) else None
            given = None if source is None else pb_utils.get_input_tensor_by_name(request, source)
            array = np.array([[len(request.inputs())]]) if given is None else given.as_numpy()
            kind = pb_utils.triton_string_to_numpy(output["data_type"])
            tensors.append(pb_utils.Tensor(output["name"], array if array.dtype == np.object_ else (array + 1).astype(kind)))
        return pb_utils.InferenceResponse(tensors)
"""  # noqa: E501


async def until(
    condition: Callable[[], T | Awaitable[T]], what: str, seconds: float = SECONDS
) -> T:
    """Return what ``condition`` returns as soon as it is true.

    Raises:
        AssertionError: the condition did not become true; the error names ``what``.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        value: Any = await found if isinstance(found, Awaitable) else found
        if value:
            return value  # type: ignore[no-any-return]
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(_POLL_S)


def compiled(source: Path, folder: Path, *flags: str) -> bytes:
    """The shared library that a C file makes."""
    file = folder / f"{source.stem}.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        *flags,
        "-o",
        str(file),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return file.read_bytes()


def tensor(name: str, data_type: str = "TYPE_INT32", dims: str = "1", more: str = "") -> str:
    """One entry of a config's inputs or outputs."""
    return f"{{ name: {json.dumps(name)} data_type: {data_type} dims: [ {dims} ] {more} }}"


@dataclass(frozen=True)
class Model:
    """A loaded recorder.

    Attributes:
        name: its name.
        record: the folder of the records and holds.
        server: where it runs.
    """

    name: str
    record: Path
    server: LocalTriton

    def events(self, event: str) -> list[dict[str, Any]]:
        """The record's entries of one kind: load, begin, end."""
        file = self.record / f"{self.name}.jsonl"
        lines = (
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        )
        return [line for line in lines if line["event"] == event]

    def batches(self, event: str = "begin", tensor: str = "X") -> list[list[Any]]:
        """Values of one input of every execution so far, request by request, in order."""
        return [
            [value for request in line["requests"] for value in request["inputs"].get(tensor, [])]
            for line in self.events(event)
        ]

    def order(self) -> list[Any]:
        """Values in the order of their executions."""
        return [value for batch in self.batches() for value in batch]

    def hold(self, value: Any) -> None:
        """Let executions that hold this value wait."""
        (self.record / f"{self.name}.hold.{value}").touch()

    def release(self, value: Any) -> None:
        """End a hold."""
        (self.record / f"{self.name}.hold.{value}").unlink()

    async def pending(self) -> int:
        """Requests that Triton has accepted and no execution has taken yet."""
        async with httpx.AsyncClient(timeout=SECONDS, trust_env=False) as web:
            lines = (await web.get(self.server.metrics_url)).text.splitlines()
        prefix = f'nv_inference_pending_request_count{{model="{self.name}"'
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(prefix))

    async def until_pending(self, count: int) -> None:
        """Wait until exactly so many requests are pending."""

        async def reached() -> bool:
            return await self.pending() == count

        await until(reached, f"{count} pending requests of {self.name}")

    async def until_executing(self, value: Any) -> None:
        """Wait until an execution has this value."""
        await until(
            lambda: value in self.order(), f"{value} reaches {self.name}; so far {self.order()}"
        )


class Workbench:
    """A running server, its model repository, and a client of each kind."""

    def __init__(self, server: LocalTriton, repository: Path, record: Path) -> None:
        self.server, self.repository, self.record = server, repository, record

    async def deploy(
        self,
        name: str,
        scheduling: str = "",
        *,
        max_batch_size: int = 8,
        inputs: str | None = None,
        outputs: str | None = None,
        parameters: Mapping[str, str] | None = None,
        code: str = RECORDER,
        versions: tuple[int, ...] = (1,),
        files: Mapping[str, bytes] | None = None,
        instances: str = "count: 1 kind: KIND_CPU",
        platform: str = 'backend: "python"',
    ) -> Model:
        """Write and load a model, by default from X INT32 [1] to Y INT32 [1].

        ``files`` are stored in the model's folder.
        """
        strings = {"record": str(self.record), **(parameters or {})}
        lines = [
            f"name: {json.dumps(name)}",
            platform,
            f"max_batch_size: {max_batch_size}",
            f"input [ {inputs or tensor('X')} ]",
            f"output [ {outputs or tensor('Y')} ]",
        ]
        if "ensemble" not in platform:
            lines.append(f"instance_group [ {{ {instances} }} ]")
            lines += [
                (
                    f"parameters {{ key: {json.dumps(key)} value: {{ string_value: "
                    f"{json.dumps(value)} }} }}"
                )
                for key, value in strings.items()
            ]
        folder = self.repository / name
        for version in versions:
            (folder / str(version)).mkdir(parents=True)
            if "ensemble" not in platform:
                (folder / str(version) / "model.py").write_text(code)
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        (folder / "config.pbtxt").write_text("\n".join([*lines, scheduling]) + "\n")
        async with TritonClient(self.server.grpc_address) as client:
            await client.load_model(name)
        return Model(name, self.record, self.server)


class Asker:
    """Sends single requests without waiting for them; an async context manager."""

    def __init__(self, server: LocalTriton) -> None:
        self._client = InferenceServerClient(server.grpc_address)
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    def ask(
        self,
        model: Model | str,
        value: Any = None,
        inputs: Mapping[str, np.ndarray] | None = None,
        **options: Any,
    ) -> asyncio.Task[dict[str, Any]]:
        """Start a request with ``value`` as X [1, 1], or with ``inputs``.

        The options are those of tritonclient's ``infer``. The task returns lists by output name.
        """
        arrays = {"X": np.array([[value]], np.int32)} if inputs is None else inputs
        task = asyncio.create_task(
            self._infer(model if isinstance(model, str) else model.name, arrays, options)
        )
        self._tasks.append(task)
        return task

    async def stream(self, name: str, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """All answers of a decoupled model to one request, in order, as lists by output name."""

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": name, "inputs": _inputs(arrays)}

        answers = []
        # The client says that nothing follows; the server ends the stream after the last answer.
        async for result, error in self._client.stream_infer(requests(), stream_timeout=SECONDS):
            if error is not None:
                raise error
            answers.append(
                {
                    output.name: result.as_numpy(output.name).tolist()
                    for output in result.get_response().outputs
                }
            )
        return answers

    async def line_up(
        self, model: Model, *values: Any, **options: Any
    ) -> list[asyncio.Task[dict[str, Any]]]:
        """Requests that have arrived in exactly this order, while the instance is kept busy.

        The queue may refuse any that wait, at any time.
        """
        while (rest := await self._rest(model)) is None:
            pass

        async def arrived() -> bool:
            return await self._rest(model) == rest

        tasks = []
        for value in values:
            tasks.append(self.ask(model, value, **options))
            await until(arrived, f"{value} arrives at {model.name}")
        return tasks

    async def _rest(self, model: Model) -> int | None:
        """Pending requests without those of this client; ``None`` if one of them ended meanwhile.

        The one that keeps the instance busy is no longer pending, so this may be negative.
        """
        before = sum(not task.done() for task in self._tasks)
        pending = await model.pending()
        after = sum(not task.done() for task in self._tasks)
        return pending - after if after == before else None

    async def _infer(
        self, name: str, arrays: Mapping[str, np.ndarray], options: dict[str, Any]
    ) -> dict[str, Any]:
        answer = await self._client.infer(name, _inputs(arrays), client_timeout=SECONDS, **options)
        return {
            output.name: answer.as_numpy(output.name).tolist()
            for output in answer.get_response().outputs
        }


def _inputs(arrays: Mapping[str, np.ndarray]) -> list[InferInput]:
    given = []
    for name, array in arrays.items():
        entry = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        entry.set_data_from_numpy(array)
        given.append(entry)
    return given
