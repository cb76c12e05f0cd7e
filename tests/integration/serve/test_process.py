"""`tritonpipe serve` as a process.

Every external error ends in one message and the right exit code.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.suite.clients import http_json
from e2e.suite.pipelines import merged, sample
from tests.support.serving import (
    FREE_PORTS,
    SAMPLES,
    STOP_SECONDS,
    begun,
    run,
    sample_sources,
    served,
)
from triton_pipelines.api.names import API_VERSION, KIND

pytestmark = pytest.mark.integration
SAMPLE = SAMPLES / "custom-python.yaml"


def ended(process: subprocess.Popen[str], log: Path) -> tuple[int, str]:
    """Exit code and messages of a command that ends by itself."""
    code = process.wait(STOP_SECONDS)
    said = log.read_text()
    assert "Traceback" not in said, said
    return code, said


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something observed while the process runs."""
    deadline = time.monotonic() + STOP_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        with pytest.raises(subprocess.TimeoutExpired):  # waits a little, and must not end
            process.wait(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def changed(tmp_path: Path, name: str, **spec: Any) -> Path:
    """A sample with changes, as a file."""
    document = sample(name)
    document["spec"] = merged(document["spec"], spec)
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def test_one_folder_one_server_and_downloads_are_reused(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    options = [*sample_sources(), f"--folder={folder}"]
    with served(SAMPLE, *options, log=tmp_path / "first.log") as first:
        with begun(SAMPLE, *FREE_PORTS, *options, log=tmp_path / "other.log") as other:
            code, said = ended(other, tmp_path / "other.log")
            assert code == 3
            assert "in use by another `tritonpipe serve`" in said
        port = first.endpoint.http.rpartition(":")[2]
        with begun(
            SAMPLE, f"--port={port}", *FREE_PORTS[1:], *sample_sources(), log=tmp_path / "port.log"
        ) as other:
            code, said = ended(other, tmp_path / "port.log")
            assert code == 3
            assert f"--port: cannot use 127.0.0.1:{port}" in said
            assert "preparing the files" not in said
        assert first.stop() == 0
    assert "fetched" in (tmp_path / "first.log").read_text()
    with served(SAMPLE, *options, log=tmp_path / "second.log") as second:
        assert http_json(second.endpoint, second.model, ["my parcel"])["LABEL"].tolist() == [
            [b"shipping"]
        ]
        assert second.stop(signal.SIGTERM) == 0
    said = (tmp_path / "second.log").read_text()
    assert "complete since an earlier attempt" in said
    assert "fetched" not in said


def test_triton_killed_underneath(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with served(SAMPLE, *sample_sources(), log=log) as running:
        (triton,) = children(running.process.pid)
        os.kill(triton, signal.SIGKILL)
        code, said = ended(running.process, log)
    assert code == 3
    assert "Triton exited unexpectedly" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_it_starts_nothing_is_left(tmp_path: Path, number: int, code: int) -> None:
    log = tmp_path / "serve.log"
    with begun(SAMPLE, *FREE_PORTS, *sample_sources(), log=log) as process:
        wait_until(lambda: bool(children(process.pid)), process)
        begun_children = children(process.pid)
        process.send_signal(number)
        found, said = ended(process, log)
    assert found == code
    place = re.search(r"preparing the files of revision \S+ in (\S+)", said)
    assert place is not None
    assert not Path(place[1]).exists()
    assert not any(Path(f"/proc/{child}").exists() for child in begun_children)


def test_a_model_that_fails_at_load(tmp_path: Path) -> None:
    code = (
        "class TritonPythonModel:\n    def initialize(self, args):\n"
        "        raise ValueError('no weights here')\n"
    )
    file = changed(tmp_path, "custom-python", model={"python": {"code": {"inline": code}}})
    with begun(file, *FREE_PORTS, *sample_sources(), log=tmp_path / "serve.log") as process:
        exit_code, said = ended(process, tmp_path / "serve.log")
    assert exit_code == 3
    assert "tritonpipe: router: " in said
    assert "ValueError: no weights here" in said


WRONG_NAME = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            scores = pb_utils.Tensor("{name}", np.ones((len(text), 1), np.float32))
            responses.append(pb_utils.InferenceResponse([scores]))
        return responses
"""


@pytest.mark.parametrize(
    ("name", "fault"), [("MARGIN", None), ("MARGINS", "output MARGIN is missing from the response")]
)
def test_an_answer_that_would_keep_it_from_becoming_ready_is_told(
    tmp_path: Path, name: str, fault: str | None
) -> None:
    model = {
        "platform": "python",
        "python": {"code": {"inline": WRONG_NAME.replace("{name}", name)}},
        "inputs": [{"name": "TEXT", "dataType": "STRING", "dims": [1]}],
        "outputs": [{"name": "MARGIN", "dataType": "FP32", "dims": [1]}],
    }
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "margin"},
        "spec": {"model": model, "server": {"gpu": {"count": 0}}},
    }
    file, log = tmp_path / "margin.yaml", tmp_path / "serve.log"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    with served(file, log=log) as running:
        if fault is not None:
            wait_until(lambda: "InferenceFailed" in log.read_text(), running.process)
            assert (
                f"margin: warning: the test inference failed: {fault} (produced by spec.model: "
                in log.read_text()
            )
        else:
            assert run("infer", running.model_url, "a text").returncode == 0
            assert running.stop() == 0
            assert "test inference failed" not in log.read_text()


def test_a_file_that_does_not_fit(tmp_path: Path) -> None:
    file = changed(
        tmp_path,
        "sentiment",
        model={"outputs": [{"name": "logits", "dataType": "FP32", "dims": [3]}]},
        postprocess={"labels": None},
    )
    done = run("serve", str(file), *FREE_PORTS, *sample_sources())
    assert done.returncode == 1
    assert "ModelMismatch spec.model" in done.stderr
    assert "FP32 [-1, 3]" in done.stderr
    assert "FP32 [batch, 2]" in done.stderr


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    done = run("serve", str(SAMPLE), *FREE_PORTS, f"--source-map=hf://={tmp_path.as_uri()}/")
    assert done.returncode == 1
    assert "SourceUnavailable spec.tokenizer.source" in done.stderr
    assert "could not prepare the model repository" in done.stderr
