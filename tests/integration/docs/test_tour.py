"""The tutorials for the sample model and for an own model, unchanged, against a real Triton.

Every request gets the answer that the page shows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.local import native
from e2e.models import tree
from tests.unit.docs import markdown

pytestmark = pytest.mark.integration

BIN = Path(sys.executable).parent
READY_SECONDS = 90.0
ANY_PORTS = ("--port=0", "--grpc-port=0", "--metrics-port=0")
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "110",
    "NO_PROXY": "127.0.0.1",
}


@contextmanager
def serving(log: Path, *command: str, cwd: Path = markdown.ROOT) -> Iterator[dict[str, str]]:
    """Run a command that serves a pipeline, and wait until it has announced its addresses.

    Yields a map from each address on the page to that of this run.
    """
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, cwd=cwd, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            tick, end, found = threading.Event(), time.monotonic() + READY_SECONDS, None
            while found is None:
                assert process.poll() is None, f"ended:\n{log.read_text()}"
                assert time.monotonic() < end, (
                    f"not served within {READY_SECONDS} s:\n{log.read_text()}"
                )
                tick.wait(0.2)
                found = re.search(
                    r"HTTP +http://[^:]+:(\d+).*gRPC +[^:]+:(\d+).*\n  metrics ",
                    log.read_text(),
                    re.DOTALL,
                )
            yield {
                "127.0.0.1:8000": f"127.0.0.1:{found[1]}",
                "127.0.0.1:8001": f"127.0.0.1:{found[2]}",
            }
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What `make serve` starts."""
    with serving(
        tmp_path_factory.mktemp("serve") / "log",
        sys.executable,
        "-m",
        "e2e.models",
        "serve",
        "manifests/samples/sentiment.yaml",
        *ANY_PORTS,
    ) as ports:
        yield ports


def with_ports(text: str, ports: dict[str, str]) -> str:
    """A page's text with the ports of this run."""
    for stands, runs in ports.items():
        text = text.replace(stands, runs)
    return text


TOUR = [
    fence
    for page in (
        markdown.ROOT / "docs/user/sample-model.md",
        markdown.ROOT / "docs/user/pipelines.md",
    )
    for fence in markdown.fences(page)
    if fence.language in ("bash", "python")
    and "127.0.0.1:8000" in fence.text
    and "kubectl" not in fence.text
]


def test_the_tour_is_found() -> None:
    assert [fence.language for fence in TOUR] == ["bash", "python", "bash"]


@pytest.mark.parametrize("fence", TOUR, ids=str)
def test_requests_are_answered(sentiment: dict[str, str], fence: markdown.Fence) -> None:
    command = (
        ["bash", "-euo", "pipefail", "-c"] if fence.language == "bash" else [sys.executable, "-c"]
    )
    done = subprocess.run(
        [*command, with_ports(fence.text, sentiment)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "positive" in done.stdout
    if "queue was endless" in fence.text:
        assert "negative" in done.stdout


BINARY = next(
    fence
    for fence in markdown.fences(markdown.ROOT / "docs/user/quickstart.md")
    if fence.language == "bash" and "binary_data_size" in fence.text
)


def shown(page: str, command: str, words: str = "") -> str:
    """What a page shows below a command in the first console block that has these words."""
    for fence in markdown.fences(markdown.ROOT / page):
        _, found, rest = fence.text.partition(f"$ {command}")
        if fence.language == "console" and found and words in rest:
            return rest.partition("\n")[2].partition("\n$ ")[0].strip()
    raise AssertionError(f"{page} shows no `{command}`")


def test_the_table_is_the_one_of_the_tutorial(sentiment: dict[str, str]) -> None:
    texts = ["Best concert of my life.", "The queue was endless and the food cold."]
    url = with_ports("http://127.0.0.1:8000", sentiment)
    command = [
        str(BIN / "tritonpipe"),
        "infer",
        "manifests/samples/sentiment.yaml",
        *texts,
        "--url",
        url,
    ]
    done = subprocess.run(
        command,
        cwd=markdown.ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == shown("docs/user/sample-model.md", "tritonpipe infer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the quickstart's working folder.

    It holds `topics/` with the sample's files, and `topics.yaml` as on the page.
    """
    native.install()
    place, built = tmp_path_factory.mktemp("quickstart"), tree.build()
    (place / "topics").mkdir()
    for name in (
        "s3/models/sentiment/model.onnx",
        "hub/sentence-transformers/all-MiniLM-L6-v2/tokenizer.json",
    ):
        (place / "topics" / Path(name).name).symlink_to(built / name)
    resource = next(
        fence.text
        for fence in markdown.fences(markdown.ROOT / "docs/user/quickstart.md")
        if "kind: InferencePipeline" in fence.text
    )
    (place / "topics.yaml").write_text(resource)
    return place


def test_the_quickstart_corrects_its_guess_and_serves(folder: Path) -> None:
    tool = str(BIN / "tritonpipe")
    serve = (
        tool,
        "serve",
        "topics.yaml",
        "--source-map",
        f"s3://models/=file://{folder}/",
        *ANY_PORTS,
    )
    valid = subprocess.run(
        [tool, "validate", "topics.yaml"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert valid.stdout.strip() == shown("docs/user/quickstart.md", "tritonpipe validate")

    guess = subprocess.run(
        serve, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=90
    )
    assert guess.returncode == 1
    reported = shown("docs/user/quickstart.md", "tritonpipe serve").removeprefix("…\n")
    assert reported in guess.stderr

    text = (folder / "topics.yaml").read_text()
    outputs = re.search(r"spec\.model\.outputs: (.*)", guess.stderr)
    assert outputs
    text = re.sub(r"outputs:\n.*\n", f"outputs: {outputs[1]}\n", text).replace(
        "[sports, politics, science]", "[complaint, praise]"
    )
    (folder / "topics.yaml").write_text(text)
    with serving(folder / "log", *serve, cwd=folder) as ports:
        url = with_ports("http://127.0.0.1:8000", ports)
        asked = [
            tool,
            "infer",
            "topics.yaml",
            "Best concert of my life.",
            "The queue was endless.",
            "--url",
            url,
        ]
        done = subprocess.run(
            asked,
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        sent = ["bash", "-euo", "pipefail", "-c", with_ports(BINARY.text, ports)]
        binary = subprocess.run(
            sent, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60
        )
    served = (
        shown("docs/user/quickstart.md", "tritonpipe serve", "topics is served")
        .partition("topics is served")[2]
        .splitlines()
    )
    announced = (folder / "log").read_text()
    assert [
        line for line in served[4:] if line not in announced
    ] == []  # inputs, outputs, padding; ports are this run's
    assert "praise" in binary.stdout
    assert done.stdout.strip() == shown("docs/user/quickstart.md", "tritonpipe infer")


BLOCKS = {
    tuple(fence.text.splitlines()[:2])
    for page in ("bench", "cli-measuring", "cli-serving", "tuning")
    for fence in markdown.fences(markdown.ROOT / f"docs/user/{page}.md")
    if "make --silent models" in fence.text
}
"""The first two lines of blocks that use the models of the samples."""
BUILDS = {build for build, _ in BLOCKS}
# What a command prints once the sample is served and under load.
BEGUN = {"serve": " is served", "bench": "run 1 of ", "tune": "timing the steps"}
SAMPLES = [
    min((command for _, command in BLOCKS if command.split()[1] == program), key=len)
    for program in BEGUN
]
"""The shortest command of each program."""
SHORT = {"bench": " --duration=1 --warmup=0.2"}
"""Options that end the first run of a command soon, since the results are not used."""


def test_the_blocks_with_samples_are_found() -> None:
    assert len(BUILDS) == 1, "the first line of each block is the same command"
    assert {command.split()[1] for _, command in BLOCKS} == set(BEGUN)


@pytest.mark.parametrize("command", SAMPLES)
def test_a_sample_runs_with_the_models_that_make_builds(command: str) -> None:
    """The first two lines of a block as written, until the sample is served and under load.

    The options of further commands are checked in tests/unit/docs/test_examples.py.
    """
    (build,) = BUILDS
    program = command.split()[1]
    begun = BEGUN[program]
    # Ports are those of this run.
    command = command.replace("--port 8000", " ".join(ANY_PORTS)) + SHORT.get(program, "")
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"{build}\nexec {command}"],
        cwd=markdown.ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed: list[str] = []
        try:
            for line in process.stdout:
                printed.append(line)
                if begun in line:
                    return
            raise AssertionError("".join(printed))
        finally:
            process.terminate()
            process.stdout.read()
            process.wait(60)
