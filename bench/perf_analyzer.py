"""Compare the engine of ``tritonpipe bench`` with NVIDIA's perf_analyzer.

Both run in turn with the same pipeline, texts and numbers of clients. perf_analyzer is installed
from its package on PyPI. It needs glibc 2.38. On an older system it uses the C library of Debian
13, which is unpacked next to it in the cache (the system itself is not changed):
``ld-linux --library-path … perf_analyzer``.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.results import thresholds, write
from e2e.local.cache import cache_root, digest, locked
from tests.support import pipelines
from tests.support.triton import triton_server
from triton_pipelines.tools.loadgen import (
    InferenceProtocol,
    LoadSpec,
    LoadSummary,
    LoadTarget,
    TextLengths,
    generate_texts,
    run_blocking,
    summarize,
)

VERSION = "2.60.0"
WHEEL_SHA256 = "23ef56b107ae9233e5cf09fbdf508dd9b936a52f1bae2f63f53c8117087b3f25"
NEEDED_GLIBC = (2, 38)
LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6", "libssl3t64", "zlib1g", "libzstd1")
RELEASE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ROUNDS, SECONDS = int(os.environ.get("RUNS", "5")), float(os.environ.get("SECONDS_EACH", "6"))
CLIENTS = (1, 4, 16)
DOWNLOAD_SECONDS = 300
_SLACK_SECONDS = 60


@dataclass(frozen=True)
class Tool:
    """perf_analyzer as a command."""

    command: tuple[str, ...]


class ToolError(RuntimeError):
    """perf_analyzer cannot run here; says why."""


def obtain() -> Tool:
    """perf_analyzer from the cache, or fetched.

    Raises:
        ToolError: it cannot be had on this machine.
    """
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise ToolError("perf_analyzer is built for Linux on x86-64")
    old = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2]) < NEEDED_GLIBC
    folder = (
        cache_root()
        / f"perf-analyzer-{digest([VERSION, WHEEL_SHA256, RELEASE, *LIBRARIES, str(old)])}"
    )
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(
                dir=folder.parent, prefix=".perf-analyzer-"
            ) as temporary:
                made = Path(temporary) / "made"
                made.mkdir()
                _program(made)
                if old:
                    _libraries(made)
                made.rename(folder)
    program = folder / "perf_analyzer" / "bin" / "perf_analyzer"
    if not old:
        return Tool((str(program),))
    libraries = folder / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    return Tool(
        (str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(program))
    )


def _program(folder: Path) -> None:
    wanted = [
        "--no-deps",
        "--only-binary=:all:",
        "--platform=manylinux_2_38_x86_64",
        "--python-version=3.12",
        f"perf-analyzer=={VERSION}",
    ]
    _done([sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *wanted], folder)
    (wheel,) = folder.glob("*.whl")
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != WHEEL_SHA256:
        raise ToolError(f"{wheel.name} has SHA-256 {found}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "perf_analyzer" / "bin" / "perf_analyzer").chmod(0o755)
    wheel.unlink()


def _libraries(folder: Path) -> None:
    """Fetch Debian's packages of a newer release into separate folders.

    apt checks their signatures.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ToolError(
                f"glibc is older than {NEEDED_GLIBC[0]}.{NEEDED_GLIBC[1]}, and there is no "
                f"{program} to fetch a newer one"
            )
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial", "etc"):
        (apt / name).mkdir(parents=True)
    (apt / "etc" / "sources.list").write_text(
        f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {RELEASE} main\n", encoding="utf-8"
    )
    (apt / "status").touch()
    options = {
        "Dir::Etc::sourcelist": apt / "etc" / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    get = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    _done([*get, "update"], folder)
    _done([*get, "download", *LIBRARIES], apt)
    for package in apt.glob("*.deb"):
        _done(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)
    shutil.rmtree(apt)


def _done(command: Sequence[str], folder: Path, seconds: float = DOWNLOAD_SECONDS) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise ToolError(
            f"{' '.join(command[:3])} …: {' | '.join(done.stdout.strip().splitlines()[-3:])}"
        )
    return done.stdout


@dataclass(frozen=True)
class Figures:
    """Requests/s, and latencies in seconds."""

    requests_per_s: float
    p50_s: float
    p99_s: float

    @classmethod
    def of(cls, summary: LoadSummary) -> Figures:
        """Ours."""
        return cls(summary.requests_per_s, summary.p50_s, summary.p99_s)


def asked(
    tool: Tool,
    address: str,
    protocol: InferenceProtocol,
    model: str,
    data: Path,
    clients: int,
    seconds: float,
) -> Figures:
    """One run of perf_analyzer: the windows that ours has, whether they agree or not."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.csv"
        windows = [
            f"--measurement-interval={seconds / 3 * 1000:.0f}",
            "--max-trials=3",
            "--stability-percentage=999",
            "--percentile=99",
        ]
        what = [
            "-m",
            model,
            "-i",
            str(protocol),
            "-u",
            address,
            "--input-data",
            str(data),
            f"--concurrency-range={clients}:{clients}",
        ]
        _done(
            [*tool.command, *what, *windows, "-f", str(out)],
            Path(folder),
            seconds * 10 + _SLACK_SECONDS,
        )
        (row,) = csv.DictReader(out.open(encoding="utf-8"))
    return Figures(
        float(row["Inferences/Second"]),
        float(row["p50 latency"]) / 1e6,
        float(row["p99 latency"]) / 1e6,
    )


def compared(
    tool: Tool, clients: Sequence[int], rounds: int, seconds: float
) -> list[tuple[InferenceProtocol, int, Figures, Figures]]:
    """Return pairs of our result and perf_analyzer's.

    Rounds cover both protocols and all numbers of clients. The tools alternate in going first.
    """
    result = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pipelines.write_pipeline(folder / "models")
        words = generate_texts(TextLengths(16, 0.5, 32).sample(256))
        data = folder / "data.json"
        data.write_text(
            json.dumps({"data": [{"TEXT": [text]} for text in words]}), encoding="utf-8"
        )
        requests = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in words]
        with triton_server(folder / "models", [pipelines.ENSEMBLE]) as server:
            for number in range(rounds):
                for protocol in InferenceProtocol:
                    url = (
                        server.http_url
                        if protocol is InferenceProtocol.HTTP
                        else server.grpc_address
                    )
                    target = LoadTarget(url, pipelines.ENSEMBLE, requests, protocol)
                    for count in clients:
                        spec = LoadSpec(concurrency=count, duration_s=seconds)
                        plain = url.removeprefix("http://")
                        if number % 2:
                            theirs = asked(
                                tool, plain, protocol, pipelines.ENSEMBLE, data, count, seconds
                            )
                        ours = Figures.of(summarize(run_blocking(target, spec)))
                        if not number % 2:
                            theirs = asked(
                                tool, plain, protocol, pipelines.ENSEMBLE, data, count, seconds
                            )
                        result.append((protocol, count, ours, theirs))
    return result


def run() -> None:
    """Measure, print and write the result."""
    pairs = compared(obtain(), CLIENTS, ROUNDS, SECONDS)
    detail = {}
    for protocol in InferenceProtocol:
        for count in CLIENTS:
            rows = [
                (ours, theirs)
                for kind, clients, ours, theirs in pairs
                if (kind, clients) == (protocol, count)
            ]
            line = {}
            for name in ("requests_per_s", "p50_s", "p99_s"):
                ratios = [getattr(ours, name) / getattr(theirs, name) for ours, theirs in rows]
                line[name] = [
                    round(value, 3)
                    for value in (statistics.median(ratios), min(ratios), max(ratios))
                ]
            load = f"{protocol}, {count} client{'s' * (count > 1)}"
            detail[load] = line
            print(f"{load}: tritonpipe bench / perf_analyzer: {line}")
    rates = [ours.requests_per_s / theirs.requests_per_s for _, _, ours, theirs in pairs]
    medians = [line["requests_per_s"][0] for line in detail.values()]
    write(
        "PA",
        rates,
        unit="times perf_analyzer's requests/s",
        goal=thresholds()["PA"]["goal"],
        met=all(0.9 <= value <= 1.1 for value in medians),
        workload=(
            f"a tiny classifier, {', '.join(map(str, CLIENTS))} clients in a closed loop, HTTP "
            "and gRPC, one text per request"
        ),
        stand_ins=["a tiny ONNX model on the project's CPU runner"],
        detail=detail,
    )
