"""The parts of the local server that need no server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import Messages
from triton_pipelines.triton import local_server
from triton_pipelines.triton.distribution import Distribution
from triton_pipelines.triton.local_server import LocalTriton, LocalTritonError, compile_python

FOUND = Distribution(Path("/r"), (), Path("/b"), ())


def test_flags_are_those_of_a_pod() -> None:
    server = LocalTriton(
        Path("/models"),
        ["pipeline", "extra"],
        control_key="k",
        http_port=1,
        grpc_port=2,
        metrics_port=3,
    )
    arguments = server.arguments(FOUND)
    restricted = "model-repository,shared-memory,trace,logging:admin-key=k"
    expected = {
        "--model-repository=/models",
        "--model-control-mode=explicit",
        "--load-model=pipeline",
        "--load-model=extra",
        "--disable-auto-complete-config",
        "--exit-on-error=false",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--http-restricted-api={restricted}",
        f"--grpc-restricted-protocol={restricted}",
    }
    assert expected <= set(arguments)
    assert not [
        flag for flag in LocalTriton(Path("/m"), ["p"]).arguments(FOUND) if "restricted" in flag
    ]


def test_free_ports_differ_and_wanted_ones_stay() -> None:
    ports = local_server._free_ports("127.0.0.1", (0, 4711, 0))
    assert ports[1] == 4711
    assert len(set(ports)) == 3
    assert 0 not in ports


def test_only_regions_of_ended_owners_are_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "_SHM", tmp_path)
    ended = 2**22 + 1  # above the largest process id of Linux
    names = {
        f"tritonpipe-local-{ended}-aa-1": False,
        f"tritonpipe-local-{os.getpid()}-aa-1": True,
        "triton_python_backend_shm_1": True,
    }
    for name in names:
        (tmp_path / name).touch()
    local_server.remove_stale_shared_memory()
    assert {name: (tmp_path / name).exists() for name in names} == names


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "I1121 11:45:34.1 7 a.cc:1] fine\nlast words\n",
            "I1121 11:45:34.1 7 a.cc:1] fine | last words",
        ),
        (
            'E1121 11:45:34.1 7 pinned.cc:1] "unable to create CUDA stream"\nE1121 11:45:34.1 '
            '7 a.cc:12] "cause"\nE1121 11:45:34.2 7 b.cc:1] "effect"\n',
            "cause | effect",
        ),
        (
            "/x/tritonserver: unrecognized option '--y'\nUsage: tritonserver [options]\n",
            "unrecognized option '--y'",
        ),
        ("[libprotobuf ERROR /a/text_format.cc:337] no field named x\n", "no field named x"),
        (
            'E1121 11:45:34.1 7 server.cc:241] "CudaDriverHelper has not been initialized."\n'
            "terminate called after throwing an instance of 'std::invalid_argument'\n"
            "  what():  Invalid label name\n",
            "uncaught std::invalid_argument: Invalid label name",
        ),
        ("", "it logged nothing"),
    ],
)
def test_the_reason_is_taken_from_the_log(tmp_path: Path, log: str, reason: str) -> None:
    file = tmp_path / "log"
    file.write_text(log)
    assert LocalTriton(tmp_path, ["p"], log_file=file)._reason() == reason


def test_a_missing_repository_is_named(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(LocalTritonError):
        LocalTriton(tmp_path / "absent", ["p"], distribution=FOUND).start()


def test_stop_without_start_does_nothing(tmp_path: Path, messages: Messages) -> None:
    server = LocalTriton(tmp_path, ["p"])
    server.stop()
    assert not server.running()
    with messages.raises(LocalTritonError):
        _ = server.pid


def test_bytecode_lies_where_the_isolated_interpreter_of_triton_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "elsewhere"))
    version = tmp_path / "models" / "tokenizer" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("answer = 42\n")
    (version / "broken.py").write_text("answer =\n")
    compile_python(tmp_path / "models")
    (compiled,) = (version / "__pycache__").iterdir()
    assert compiled.name == f"model.{sys.implementation.cache_tag}.pyc"
    assert not (tmp_path / "elsewhere").exists()


def test_a_signal_during_the_start_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        """A process whose constructor runs while the signal arrives."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(local_server.subprocess, "Popen", Interrupted)
    # A process that was started in the background may ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    found = Distribution(tmp_path, (), tmp_path, ())
    server = LocalTriton(tmp_path, ["p"], distribution=found, stop_s=1)
    try:
        with pytest.raises(KeyboardInterrupt):
            server.start()
    finally:
        signal.signal(signal.SIGINT, before)
    (process,) = started
    assert not Path(f"/proc/{process}").exists()
