"""Repository control, health and failures of one real Triton.

Access is through the client, the probe and the local server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tests.support import pipelines
from tests.support.python_backend import texts
from tests.support.triton import triton_server, write_model
from triton_pipelines.api import names
from triton_pipelines.triton import local_server
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import (
    DeadlineError,
    NotReadyError,
    RejectedError,
    RestrictedError,
    TooLargeError,
    UnreachableError,
)
from triton_pipelines.triton.local_server import LocalTriton, LocalTritonError
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import probe

pytestmark = pytest.mark.integration
KEY = "0f8ad1c2-test-key"
EXAMPLE = {"TEXT": texts("the quick fox", "a dog")}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("control")
    pipelines.write_pipeline(path, is_custom=True)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[LocalTriton]:
    with triton_server(repository, [pipelines.ENSEMBLE], control_key=KEY) as running:
        yield running


def full_config(repository: Path, model: str, count: int = 1, max_batch_size: int = 64) -> str:
    """The model's whole config in JSON, with another instance count or batch size."""
    config = text_format.Parse(
        (repository / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    config.instance_group[0].count = count
    config.max_batch_size = max_batch_size
    return json_format.MessageToJson(config, preserving_proto_field_name=True)


def stubs(server: LocalTriton, model: str) -> set[int]:
    """Process ids of the model's python processes."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                os.getpgid(int(folder.name)) == server.pid
                and f"/{model}/1/model.py".encode() in (folder / "cmdline").read_bytes()
            ):
                found.add(int(folder.name))
        except (ProcessLookupError, FileNotFoundError):
            continue  # ended meanwhile
    return found


async def test_count_changes_in_place(server: LocalTriton, repository: Path) -> None:
    async with TritonClient(server.grpc_address, KEY) as client:
        first = stubs(server, pipelines.TOKENIZER)
        assert len(first) == 1

        await client.load_model(
            pipelines.TOKENIZER, full_config(repository, pipelines.TOKENIZER, 3)
        )
        grown = stubs(server, pipelines.TOKENIZER)
        assert len(grown) == 3
        assert first < grown, (
            "the running process was replaced: a full reload, not a change in place"
        )
        assert await client.instance_count(pipelines.TOKENIZER) == 3
        assert await client.model_ready(pipelines.ENSEMBLE)
        await client.infer(pipelines.ENSEMBLE, EXAMPLE)

        await client.load_model(
            pipelines.TOKENIZER, full_config(repository, pipelines.TOKENIZER, 1)
        )
        shrunk = stubs(server, pipelines.TOKENIZER)
        assert len(shrunk) == 1
        assert shrunk < grown
        assert await client.instance_count(pipelines.TOKENIZER) == 1
        await client.infer(pipelines.ENSEMBLE, EXAMPLE)


@pytest.mark.parametrize("key", [None, "wrong-key"])
async def test_control_over_grpc_needs_the_key(
    server: LocalTriton, repository: Path, key: str | None
) -> None:
    async with TritonClient(server.grpc_address, key) as client:
        for call in (client.repository_index(), client.load_model(pipelines.TOKENIZER)):
            with pytest.raises(RestrictedError) as caught:
                await call
            assert KEY not in str(caught.value)
            assert "wrong-key" not in str(caught.value)
        # What clients need stays open.
        assert await client.model_ready(pipelines.ENSEMBLE)
        assert (await client.model_config(pipelines.TOKENIZER)).max_batch_size == 64
        assert await client.statistics(pipelines.TOKENIZER)
        assert await client.infer(pipelines.ENSEMBLE, EXAMPLE)


async def test_control_over_http_needs_the_key(server: LocalTriton) -> None:
    index = f"{server.http_url}/v2/repository/index"
    load = f"{server.http_url}/v2/repository/models/{pipelines.TOKENIZER}/load"
    async with httpx.AsyncClient(timeout=60, trust_env=False) as web:
        for url in (index, load):
            assert (await web.post(url)).status_code == httpx.codes.FORBIDDEN
            assert (
                await web.post(url, headers={names.CONTROL_HEADER: "wrong-key"})
            ).status_code == httpx.codes.FORBIDDEN
        assert (
            await web.post(index, headers={names.CONTROL_HEADER: KEY})
        ).status_code == httpx.codes.OK
        assert (
            await web.get(f"{server.http_url}/v2/models/{pipelines.ENSEMBLE}/ready")
        ).status_code == httpx.codes.OK


async def test_index_names_every_model(server: LocalTriton) -> None:
    async with TritonClient(server.grpc_address, KEY) as client:
        index = await client.repository_index()
    assert {(state.name, state.ready, state.reason) for state in index} == {
        (name, True, "")
        for name in (
            pipelines.ENSEMBLE,
            pipelines.TOKENIZER,
            pipelines.MODEL,
            pipelines.POSTPROCESS,
        )
    }


async def test_errors_in_our_words(server: LocalTriton, repository: Path) -> None:
    async with TritonClient(server.grpc_address, KEY) as client:
        assert not await client.model_ready("absent")
        for call in (client.infer("absent", EXAMPLE), client.model_config("absent")):
            with pytest.raises(NotReadyError, match="absent"):
                await call
        with pytest.raises(RejectedError, match=r"inference on 'pipeline'.*'OTHER'"):
            await client.infer(pipelines.ENSEMBLE, {"OTHER": texts("x")})
        with pytest.raises(RejectedError, match="complex64"):
            await client.infer(pipelines.ENSEMBLE, {"TEXT": np.zeros((1, 1), np.complex64)})
        with pytest.raises(RejectedError):
            await client.load_model(
                pipelines.TOKENIZER, full_config(repository, pipelines.TOKENIZER, max_batch_size=-1)
            )
        with pytest.raises(DeadlineError):
            await client.infer(pipelines.ENSEMBLE, EXAMPLE, deadline_s=1e-6)
        assert await client.model_ready(pipelines.ENSEMBLE)
    # The port of a finished server: nothing listens there.
    async with TritonClient("127.0.0.1:1") as client:
        with pytest.raises(UnreachableError, match=r"model 'm' is ready at 127\.0\.0\.1:1"):
            await client.model_ready("m")


async def test_a_healthy_pod_passes_the_probe(server: LocalTriton) -> None:
    result = await probe(server.grpc_address, pipelines.ENSEMBLE, KEY, ProbeRequest(EXAMPLE))
    assert (result.healthy, result.error, result.inference_error) == (True, None, None)
    assert len(result.models) == 4
    assert result.inference_ok


async def test_the_probe_without_the_key_says_so(server: LocalTriton) -> None:
    result = await probe(server.grpc_address, pipelines.ENSEMBLE, None, ProbeRequest(EXAMPLE))
    assert not result.healthy
    assert "control key" in (result.error or "")


async def test_an_unreachable_pod_fails_the_probe() -> None:
    result = await probe(
        "127.0.0.1:1", pipelines.ENSEMBLE, KEY, ProbeRequest(EXAMPLE), deadline_s=3
    )
    assert not result.healthy
    assert "cannot be reached" in (result.error or "")


async def test_a_dead_python_process_fails_the_probe(tmp_path: Path) -> None:
    pipelines.write_pipeline(tmp_path, is_custom=True)
    with triton_server(tmp_path, [pipelines.ENSEMBLE]) as server:
        (pid,) = stubs(server, pipelines.TOKENIZER)
        os.kill(pid, signal.SIGKILL)
        result = await probe(server.grpc_address, pipelines.ENSEMBLE, None, ProbeRequest(EXAMPLE))
        # Triton itself says that all is well: only the inference tells.
        assert result.ensemble_ready
        assert all(state.ready for state in result.models)
        assert not result.healthy
        assert pipelines.TOKENIZER in (result.inference_error or "")


async def test_an_insane_answer_fails_the_probe(tmp_path: Path) -> None:
    code = (
        "import numpy as np, triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        y = pb_utils.Tensor('Y', np.full((1, 1), np.nan, np.float32))\n"
        "        return [pb_utils.InferenceResponse([y]) for _ in requests]\n"
    )
    inputs, outputs = (
        [pipelines.tensor("TEXT", "TYPE_STRING", "1")],
        [pipelines.tensor("Y", "TYPE_FP32", "1")],
    )
    write_model(tmp_path, "nan", pipelines.config("nan", inputs, outputs, {}), {"model.py": code})
    with triton_server(tmp_path, ["nan"]) as server:
        result = await probe(server.grpc_address, "nan", None, ProbeRequest({"TEXT": texts("x")}))
    assert (result.healthy, result.inference_error) == (False, "output Y contains NaN")


def test_a_model_that_cannot_load_is_named_with_its_reason(tmp_path: Path) -> None:
    pipelines.write_pipeline(tmp_path)
    (tmp_path / pipelines.TOKENIZER / "1" / "tokenizer.json").write_text("{")
    server = LocalTriton(tmp_path, [pipelines.ENSEMBLE], deadline_s=60, stop_s=2)
    with (
        pytest.raises(LocalTritonError, match="tokenizer\\.json: cannot be read as a tokenizer"),
        server,
    ):
        pass
    assert not server.running()


def test_a_config_that_triton_refuses_is_named_with_its_reason(tmp_path: Path) -> None:
    pipelines.write_pipeline(tmp_path)
    config = tmp_path / pipelines.POSTPROCESS / "config.pbtxt"
    config.write_text(config.read_text() + "no_such_field: 1\n")
    server = LocalTriton(tmp_path, [pipelines.ENSEMBLE], deadline_s=60, stop_s=2)
    with pytest.raises(LocalTritonError, match="no_such_field"), server:
        pass


def test_an_unknown_flag_is_named(repository: Path) -> None:
    server = LocalTriton(
        repository, [pipelines.ENSEMBLE], extra_args=["--no-such-flag"], deadline_s=60
    )
    with pytest.raises(LocalTritonError, match="no-such-flag"), server:
        pass


def _regions() -> set[str]:
    """Return the shared memory of this process's servers; other workers' comes and goes."""
    return {
        region.name for region in Path("/dev/shm").iterdir() if f"-{os.getpid()}-" in region.name
    }


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    pipelines.write_pipeline(tmp_path)
    before = _regions()
    with triton_server(tmp_path, [pipelines.ENSEMBLE]) as server:
        group = server.pid
        assert _regions() > before
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)
    assert _regions() == before


async def test_as_an_async_context_manager(repository: Path) -> None:
    async with (
        LocalTriton(repository, [pipelines.ENSEMBLE], stop_s=2) as server,
        TritonClient(server.grpc_address) as client,
    ):
        assert await client.model_ready(pipelines.ENSEMBLE)
    assert not server.running()


async def test_a_start_that_is_cancelled_ends_the_server(tmp_path: Path) -> None:
    code = (
        "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n        "
        "time.sleep(60)\n    def execute(self, requests):\n        return []\n"
    )
    inputs, outputs = (
        [pipelines.tensor("X", "TYPE_FP32", "1")],
        [pipelines.tensor("Y", "TYPE_FP32", "1")],
    )
    write_model(tmp_path, "slow", pipelines.config("slow", inputs, outputs, {}), {"model.py": code})
    server = LocalTriton(tmp_path, ["slow"], stop_s=1)
    task = asyncio.create_task(server.__aenter__())
    async with asyncio.timeout(20):
        while not server.running():  # noqa: ASYNC110 a process has no event to await
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not server.running()


def test_a_port_that_is_taken_meanwhile_is_replaced(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = local_server._free_ports
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answers = iter(
            [
                (*choose("127.0.0.1", (0, 0, 0))[:position], taken.getsockname()[1])
                for position in (0, 1, 2)
            ]
        )

        def unlucky_first(address: str, wanted: tuple[int, int, int]) -> tuple[int, int, int]:
            begin = next(answers, None)
            return (
                choose(address, wanted)
                if begin is None
                else (*begin, *choose(address, wanted)[len(begin) :])
            )  # type: ignore[return-value]

        monkeypatch.setattr(local_server, "_PORT_TRIES", 5)
        monkeypatch.setattr(local_server, "_free_ports", unlucky_first)
        with triton_server(repository, [pipelines.ENSEMBLE]) as server:
            assert taken.getsockname()[1] not in (
                server.http_port,
                server.grpc_port,
                server.metrics_port,
            )
            assert next(answers, None) is None, "not every port was tried as a taken one"


def test_a_wanted_port_that_is_taken_is_an_error(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = LocalTriton(
            repository,
            [pipelines.ENSEMBLE],
            http_port=port,
            grpc_port=port + 1,
            metrics_port=port + 2,
            deadline_s=30,
        )
        with (
            pytest.raises(LocalTritonError, match="exited with code 1 before it was ready"),
            server,
        ):
            pass


LARGE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        rows = np.zeros((1, 5 * 1024 * 1024), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", rows)]) for _ in requests]
"""


async def test_a_probe_takes_in_no_more_than_it_can_afford(tmp_path: Path) -> None:
    config = (
        'name: "large" backend: "python" max_batch_size: 1 input { name: "TEXT" data_type: '
        "TYPE_STRING dims: [1] }"
        ' output { name: "Y" data_type: TYPE_FP32 dims: [-1] } instance_group { kind: '
        "KIND_CPU count: 1 }"
    )
    write_model(tmp_path, "large", config, {"model.py": LARGE})
    with triton_server(tmp_path, ["large"]) as server:
        async with TritonClient(server.grpc_address, max_response_bytes=1024**2) as client:
            with pytest.raises(TooLargeError):
                await client.infer("large", {"TEXT": np.array([[b"a"]], dtype=object)})
        result = await probe(
            server.grpc_address,
            "large",
            None,
            ProbeRequest({"TEXT": np.array([[b"a"]], dtype=object)}),
        )
    assert result.healthy
