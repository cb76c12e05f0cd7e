"""Compare `tritonpipe bench` and the load engine with Triton's own figures.

Triton is real.
"""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner, Result

from e2e.load.workloads import TOKENIZER
from e2e.models import tree
from tests.support import pipelines
from tests.support.serving import SAMPLES, TRITONPIPE, sample_sources
from tests.support.serving import run as command
from tests.support.triton import triton_server
from triton_pipelines.cli.errors import CommandError
from triton_pipelines.cli.main import app
from triton_pipelines.tools.loadgen import (
    InferenceProtocol,
    LoadGeneratorError,
    LoadSpec,
    LoadTarget,
    TextLengths,
    generate_texts,
    run_blocking,
    run_load,
    summarize,
)
from triton_pipelines.tools.loadgen.triton_statistics import (
    ModelStatisticsCounters,
    StatisticsReader,
    parse_statistics,
)
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
SHORT = ("--duration=0.3", "--warmup=0.1", "--runs=1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp("models")
    pipelines.write_pipeline(repository, count=2)
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield running


def target(server: LocalTriton, protocol: InferenceProtocol, rows: int = 1) -> LoadTarget:
    inputs = [{"TEXT": np.array([[b"a b"], [b"b"], [b"c a b"]][:rows], dtype=np.object_)}]
    return LoadTarget(
        server.http_url if protocol is InferenceProtocol.HTTP else server.grpc_address,
        pipelines.ENSEMBLE,
        inputs,
        protocol,
    )


def url(server: LocalTriton) -> str:
    return f"{server.http_url}/v2/models/{pipelines.ENSEMBLE}"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further windows: whether a run is stable is not asked here."""
    monkeypatch.setattr("triton_pipelines.cli.bench_options.EXTRA_WINDOWS", 0)


def bench(*arguments: str, columns: str = "400") -> Result:
    """The command in this process, which spares its start."""
    done = CliRunner().invoke(app, ["bench", *SHORT, *arguments], env={"COLUMNS": columns})
    if done.exception is not None:
        raise done.exception
    return done


async def read_statistics(target: LoadTarget) -> dict[str, ModelStatisticsCounters]:
    async with StatisticsReader(target, 10.0) as reader:
        return parse_statistics((await reader.sample())())


@pytest.mark.parametrize("protocol", list(InferenceProtocol))
async def test_every_request_of_a_load_is_in_tritons_own_count(
    server: LocalTriton, protocol: InferenceProtocol
) -> None:
    before = await read_statistics(target(server, protocol))
    result = await run_load(
        target(server, protocol, rows=3), LoadSpec(concurrency=4, duration_s=0.6, warmup_s=0.2)
    )
    after = await read_statistics(target(server, protocol))
    assert set(result.error.tolist()) == {-1}
    assert after[pipelines.ENSEMBLE].counts["success"] - before[pipelines.ENSEMBLE].counts[
        "success"
    ] == len(result.end)
    assert after[pipelines.TOKENIZER].rows - before[pipelines.TOKENIZER].rows == 3 * len(result.end)


@pytest.mark.parametrize("protocol", list(InferenceProtocol))
def test_steps_are_those_of_the_measured_time(
    server: LocalTriton, protocol: InferenceProtocol
) -> None:
    summary = summarize(
        run_blocking(target(server, protocol), LoadSpec(rate=100, duration_s=3.0, warmup_s=0.3))
    )
    assert set(summary.steps) == {
        pipelines.ENSEMBLE,
        pipelines.TOKENIZER,
        pipelines.MODEL,
        pipelines.POSTPROCESS,
    }
    tokenizer = summary.steps[pipelines.TOKENIZER]
    # Looks are taken a little after the bounds of the windows: a fifth of 300 requests is allowed
    # for it.
    assert tokenizer.requests == pytest.approx(summary.requests, rel=0.2)
    assert (
        tokenizer.executions
        <= tokenizer.rows
        == sum(rows * count for rows, count in tokenizer.batches.items())
    )
    # The client's mean is of a slightly different window, in which a pause of the machine may be
    # missing, so its maximum is the bound.
    in_step = tokenizer.queue_s + tokenizer.input_s + tokenizer.infer_s + tokenizer.output_s
    assert 0 < in_step <= summary.max_s
    assert 0 < tokenizer.busy < 2


async def test_what_the_server_refuses_is_counted_by_its_own_words(server: LocalTriton) -> None:
    wrong = LoadTarget(server.http_url, pipelines.ENSEMBLE, [{"TEXT": np.array([[1]])}])
    summary = summarize(await run_load(wrong, LoadSpec(concurrency=1, duration_s=0.3, warmup_s=0)))
    (message,) = summary.errors
    assert message.startswith("400 Bad Request: ")
    assert "TEXT" in message
    assert summary.requests == 0


async def test_a_server_without_grpc_there_is_one_message(server: LocalTriton) -> None:
    with pytest.raises(LoadGeneratorError, match="gRPC"):
        await run_load(
            LoadTarget(
                "127.0.0.1:9",
                "m",
                target(server, InferenceProtocol.GRPC).requests,
                InferenceProtocol.GRPC,
            ),
            LoadSpec(concurrency=1, timeout_s=0.5),
        )


@pytest.mark.parametrize("protocol", list(InferenceProtocol))
def test_bench_prints_json(
    server: LocalTriton, tmp_path: Path, protocol: InferenceProtocol
) -> None:
    data, plot = tmp_path / "data.json", tmp_path / "curve.svg"
    data.write_text(
        json.dumps(
            {"data": [{"TEXT": ["a text"]}, {"TEXT": {"content": ["another"], "shape": [1]}}]}
        )
    )
    options = (
        f"--texts={data}",
        "--concurrency=1,4",
        "--rate=50",
        f"--plot={plot}",
        f"--protocol={protocol}",
        f"--grpc-address={server.grpc_address}",
    )
    if protocol is InferenceProtocol.HTTP:  # once as a process, as users have it
        done = command("bench", url(server), *SHORT, *options, "--output=json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
    else:
        document = json.loads(bench(url(server), *options, "--output=json").stdout)
    assert [point["load"] for point in document["points"]] == [
        {"concurrency": 1},
        {"concurrency": 4},
        {"rate": 50, "arrivals": "poisson"},
    ]
    for point in document["points"]:
        (only,) = point["runs"]
        assert only["failed"] == 0
        assert 0 < only["p50Milliseconds"] <= only["p99Milliseconds"] <= only["maxMilliseconds"]
        assert only["steps"][pipelines.TOKENIZER]["executions"] > 0
    assert document["requests"]["source"].endswith("(perf_analyzer's input data)")
    assert ET.parse(plot).getroot().tag.endswith("svg")


def test_bench_prints_a_table_and_a_csv_with_the_baselines(server: LocalTriton) -> None:
    done = bench(url(server), "--concurrency=2", "--rows=4", columns="110")
    for words in (
        "one by one",
        "one client, 4 rows per request",
        "concurrency 2",
        "time per request at",
        *(pipelines.TOKENIZER, pipelines.MODEL),
    ):
        assert words in done.stdout
    # 80 requests are due; a pause of a busy machine makes the last ones late.
    seconds = "--duration=2"
    done = bench(url(server), "--rate=40", "--arrivals=constant", seconds, "--output=csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["load"] for row in rows] == ["one by one", "40/s constant"]
    assert float(rows[1]["requests_per_second"]) == pytest.approx(40, rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("http://127.0.0.1:9/v2/models/m",),
            3,
            "cannot reach http://127.0.0.1:9/v2/models/m",
        ),
        (("URL", "--input=NONE=1"), 2, "--input 'NONE=1': the value must have the form NAME=VALUE"),
        (("URL", "--texts=/none.txt"), 2, "--texts: cannot read /none.txt: "),
        (("URL", "--plot=curve.png"), 2, "--plot curve.png: the format is SVG; name it curve.svg"),
        (("URL", "--concurrency=0"), 2, "--concurrency 0"),
        (
            ("URL", "--protocol=grpc", "--grpc-address=127.0.0.1:9", "--timeout=0.5"),
            3,
            "cannot connect to 127.0.0.1:9 over gRPC",
        ),
        (("FILE", "--grpc-address=127.0.0.1:9"), 2, "--grpc-address: allowed only with a URL"),
    ],
)
def test_what_is_wrong_is_one_message(
    server: LocalTriton, arguments: tuple[str, ...], code: int, message: str
) -> None:
    words = [
        {"URL": url(server), "FILE": "manifests/samples/sentiment.yaml"}.get(word, word)
        for word in arguments
    ]
    with pytest.raises(CommandError) as caught:
        bench(*words)
    assert message in str(caught.value)
    assert caught.value.code == code


def test_made_up_texts_have_as_many_tokens_as_asked_for() -> None:
    tokenizer = Tokenizer.from_file(str(tree.build() / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    lengths = TextLengths(32, 0.6, 512).sample(300, seed=2)
    counted = [
        len(encoding.ids) for encoding in tokenizer.encode_batch(generate_texts(lengths, seed=2))
    ]
    assert counted == [max(length, 3) for length in lengths]


def as_in_the_foreground() -> None:
    """Handle signals as a command in a terminal does.

    A process that a shell runs in the background ignores SIGINT, and so do its children. Tests may
    run like that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_load_and_the_server_that_it_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    log = tmp_path / "triton.log"
    options = (
        "--concurrency=1",
        "--no-baseline",
        "--duration=0.3",
        "--warmup=0",
        f"--log={log}",
        *sample_sources(),
    )
    file = str(SAMPLES / "sentiment.yaml")
    command = [*TRITONPIPE, "bench", file, *options, "--runs=100"]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=as_in_the_foreground,
    ) as process:
        assert process.stderr is not None
        said = [next(line for line in process.stderr if line.startswith("run 1 of 100"))]
        process.send_signal(number)
        said += process.stderr.readlines()
        assert process.wait(30) == 128 + number, said
    assert said[-1] == "stopped\n"
    assert "Traceback" not in "".join(said)
    # It received the signal to end, and did.
    assert "Waiting for in-flight requests to complete" in log.read_text()
