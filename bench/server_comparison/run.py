"""``make bench ID=S7``: measure all servers in turn; about 11 minutes.

Two phases: with MiniLM, throughput, latency, CPU time and memory; with a table as the model, the
CPU time outside the model. In each round every server gets the same load, in reversed order in
every second round. Answers are compared with plain ONNX Runtime before anything is timed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import plots
from bench.process_tree import cpu_by_command, cpu_seconds, memory_bytes
from bench.results import thresholds, write
from bench.server_comparison import figures, models
from bench.server_comparison.apps import encoder
from bench.server_comparison.figures import Sample
from bench.server_comparison.servers import MANY, Endpoint, all_servers, model_folder
from bench.variants import LENGTHS
from triton_pipelines.tools.loadgen import LoadSpec, generate_texts, run_blocking, summarize
from triton_pipelines.tools.loadgen.plots import Chart, Point, Series

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SCALE = float(os.environ.get("SECONDS_SCALE", "1"))
"""Factor on the length of every load, for a short rehearsal."""
WARMUP_S = 0.5
LONGER = 5
"""Factor on the length of a load that is repeated."""
TEXTS = 1024
TOLERANCE = 1e-5
MIB = 2**20


@dataclass(frozen=True)
class Load:
    """Requests of some texts each."""

    name: str
    """In words."""
    texts: int
    """Texts per request."""
    clients: int
    """Requests in flight."""
    fewer_clients: int
    """Requests in flight in one more run, for throughput at a lower p99."""
    seconds: float
    """Measured time of a run with MiniLM."""


ONE, SIXTEEN = Load("one text", 1, 64, 16, 2.0), Load(f"{MANY} texts", MANY, 8, 4, 3.0)
LOADS = (ONE, SIXTEEN)
TABLE_SECONDS, CURVE_SECONDS = 1.5, 1.5
STAND_INS = (
    "Triton's ONNX Runtime backend: the ONNX runner, in the pipeline and in the handwritten "
    "ensemble (a step of the Python backend with ONNX Runtime)",
)
Measured = dict[str, dict[str, list[Sample]]]
"""Samples by load, then by server."""


@dataclass(frozen=True)
class Phase:
    """All results with one model."""

    measured: Measured
    curves: Mapping[str, Mapping[int, Mapping[str, list[Sample]]]]
    """Samples by load, number of clients and server."""
    memory: Mapping[str, int]
    """MiB by server."""
    difference: float
    """Greatest difference from plain ONNX Runtime."""
    ours: Sequence[str]
    """Names of the pipeline's forms."""
    shares: Mapping[str, Mapping[str, Mapping[str, float]]]
    """µs of CPU time per request by server, load and process, of the pipeline."""


def run() -> None:
    """Measure, print, write S7 and plot."""
    with tempfile.TemporaryDirectory(prefix="bench-models-") as folder:
        minilm = phase(Path(folder), models.MINILM, None)
        table = phase(Path(folder), models.TABLE, TABLE_SECONDS)
    losses = all_losses(minilm, table)
    baselines = [name for name in minilm.measured[ONE.name] if name not in minilm.ours]
    singles = minilm.measured[ONE.name]
    first, second = (figures.best(singles, names) for names in (minilm.ours, baselines))
    ratios = [
        a.requests_per_s / b.requests_per_s
        for a, b in zip(singles[first], singles[second], strict=True)
    ]
    path = write(
        "S7",
        ratios,
        unit=(
            f"times the requests/s of the best baseline ({second}), single texts "
            f"({cpu_ratio(table):.2f} times the least CPU time outside the model)"
        ),
        goal=thresholds()["S7"]["goal"],
        met=not losses,
        workload=workload(),
        stand_ins=STAND_INS,
        command=command(),
        detail={
            "loads": {name: figures.document(own) for name, own in minilm.measured.items()},
            "outsideModel": {name: figures.document(own) for name, own in table.measured.items()},
            "curves": {
                name: {str(clients): figures.document(own) for clients, own in curve.items()}
                for name, curve in minilm.curves.items()
            },
            "memoryMebibytes": minilm.memory,
            "shares": table.shares,
            "pipeline": list(minilm.ours),
            "largestDifference": minilm.difference,
            "losses": [asdict(loss) for loss in losses],
            "loadAverage": [round(value, 1) for value in os.getloadavg()],
        },
    )
    draw(minilm, table)
    for loss in losses:
        print(f"S7: {loss}")
    print(f"S7: {first} against {second}: {sorted(ratios)}; {path.name} written")


def phase(folder: Path, kind: str, seconds: float | None) -> Phase:
    """Measure all servers with one model; fewer clients are measured with MiniLM only."""
    files = models.write_models(folder / kind, kind)
    texts = generate_texts(LENGTHS.sample(TEXTS, 7), 7)
    with all_servers(files) as endpoints:
        difference = refuse_different(
            endpoints, texts[:32], reference(files, folder / f"plain-{kind}")
        )
        measured: Measured = {load.name: {one.name: [] for one in endpoints} for load in LOADS}
        for number in range(ROUNDS):
            for load in LOADS:
                for one in endpoints if number % 2 == 0 else reversed(endpoints):
                    found = sample(one, load, texts, load.clients, seconds or load.seconds)
                    measured[load.name][one.name].append(found)
                    line = f"{kind}, round {number + 1}, {load.name}, {one.name}: {found}"
                    print(line, flush=True)
        curves = {
            load.name: {load.clients: measured[load.name]}
            | {
                clients: {
                    one.name: [sample(one, load, texts, clients, CURVE_SECONDS)]
                    for one in endpoints
                }
                for clients in (load.fewer_clients,)
                if seconds is None
            }
            for load in LOADS
        }
        memory = {
            one.name: round(memory_bytes(one.pid) / MIB) for one in endpoints if one.pid is not None
        }
        ours = [one for one in endpoints if one.is_ours]
        shares = {
            one.name: {load.name: process_shares(one, load, texts) for load in LOADS}
            for one in ours
            if seconds is not None
        }
    names = [one.name for one in ours]
    return Phase(measured, curves, memory, difference, names, shares)


def process_shares(one: Endpoint, load: Load, texts: Sequence[str]) -> dict[str, float]:
    """Return the µs of CPU time per request of the server itself and of each step's processes."""
    assert one.pid is not None
    before = cpu_by_command(one.pid)
    result = run_blocking(one.target(requests_of(texts, load)), spec_of(load.clients, 1.0))
    after = cpu_by_command(one.pid)
    return figures.shares(before, after, len(result.due))


def sample(one: Endpoint, load: Load, texts: Sequence[str], clients: int, seconds: float) -> Sample:
    """Put one load on one server.

    A load that answers nothing in its measured time, on a busy machine, is repeated for longer.

    Raises:
        RuntimeError: a request failed, or none was answered in the longer time either.
    """
    one = one.serving(load.texts)
    target = one.target(requests_of(texts, load))
    for factor in (1, LONGER):
        before = 0.0 if one.pid is None else cpu_seconds(one.pid)
        result = run_blocking(target, spec_of(clients, factor * seconds))
        after = 0.0 if one.pid is None else cpu_seconds(one.pid)
        summary = summarize(result)
        if summary.errors:
            raise RuntimeError(f"{one.name}: requests failed: {dict(summary.errors)}")
        if summary.requests:
            cost = None if one.pid is None else (after - before) / max(1, len(result.due))
            return Sample(summary.requests_per_s, summary.p50_s, summary.p99_s, cost)
    raise RuntimeError(f"{one.name}: no request was answered in {LONGER * seconds * SCALE:g} s")


def requests_of(texts: Sequence[str], load: Load) -> list[Sequence[str]]:
    """Return the texts of each request."""
    return [texts[first : first + load.texts] for first in range(0, len(texts), load.texts)]


def spec_of(clients: int, seconds: float) -> LoadSpec:
    """Return a closed loop."""
    return LoadSpec(
        concurrency=clients,
        duration_s=seconds * SCALE,
        warmup_s=WARMUP_S,
        timeout_s=60,
        statistics=False,
    )


def reference(files: Path, folder: Path) -> Callable[[Sequence[str]], Any]:
    """Return what plain ONNX Runtime answers, one text at a time."""
    os.environ[encoder.MODEL_FOLDER] = str(model_folder(files, folder))
    plain = encoder.Encoder()
    return lambda texts: np.concatenate([plain.encode([text]) for text in texts])


def refuse_different(
    endpoints: Sequence[Endpoint],
    texts: Sequence[str],
    expected: Callable[[Sequence[str]], Any],
) -> float:
    """Compare answers with plain ONNX Runtime; return the greatest difference."""
    sixteen = texts[: SIXTEEN.texts]
    wanted = expected(texts)
    greatest = 0.0
    for one in endpoints:
        together = one.serving(len(sixteen)).ask(sixteen)
        alone = np.concatenate([one.ask([text]) for text in texts])
        for found, right in ((together, wanted[: len(sixteen)]), (alone, wanted)):
            np.testing.assert_allclose(found, right, rtol=0, atol=TOLERANCE, err_msg=one.name)
            greatest = max(greatest, float(np.abs(found - right).max()))
    return greatest


def all_losses(minilm: Phase, table: Phase) -> list[figures.Loss]:
    """Return every figure in which a baseline is better than the pipeline."""
    losses = []
    for load in LOADS:
        others = split(minilm.measured[load.name], minilm.ours)[1]
        points = [split(own, minilm.ours)[0] for own in minilm.curves[load.name].values()]
        losses += figures.request_losses(load.name, points, others)
        losses += figures.cpu_losses(load.name, *split(table.measured[load.name], table.ours))
    return losses


def split(
    samples: figures.Samples, ours: Sequence[str]
) -> tuple[dict[str, Sequence[Sample]], dict[str, Sequence[Sample]]]:
    """Return the samples of the pipeline and those of the others."""
    return (
        {name: own for name, own in samples.items() if name in ours},
        {name: own for name, own in samples.items() if name not in ours},
    )


def cpu_ratio(table: Phase) -> float:
    """Return the pipeline's least CPU time for a single text relative to the baselines' least."""
    ours, others = split(table.measured[ONE.name], table.ours)
    least = [
        min(value for own in samples.values() if (value := figures.median(own, "cpu_s")))
        for samples in (ours, others)
    ]
    return least[0] / least[1]


def workload() -> str:
    """Return the workload in words."""
    return (
        f"texts of lognormal length (median {LENGTHS.median:g} tokens, sigma {LENGTHS.sigma:g}, "
        f"cut at {encoder.MAX_LENGTH}); {ONE.clients} clients with one text per request and "
        f"{SIXTEEN.clients} with {SIXTEEN.texts}; every server: {encoder.WORKERS} copies of the "
        f"model with one thread each, at most {encoder.MAX_ROWS} rows per batch, "
        f"{encoder.MAX_DELAY_MS} ms of delay; {ROUNDS} rounds, interleaved"
    )


def command() -> str | None:
    """Return the command of a run with other rounds or lengths; ``None`` for the usual one."""
    if (ROUNDS, SCALE) == (3, 1.0):
        return None
    return f"ROUNDS={ROUNDS} SECONDS_SCALE={SCALE:g} make bench ID=S7"


def draw(minilm: Phase, table: Phase) -> None:
    """Plot p99 over requests/s, and the CPU time outside the model."""
    series = [
        Series(
            name,
            [
                Point(
                    figures.median(samples[name], "requests_per_s") or 0.0,
                    (figures.median(samples[name], "p99_s") or 0.0) * 1e3,
                    str(clients),
                )
                for clients, samples in sorted(minilm.curves[ONE.name].items())
            ],
        )
        for name in minilm.measured[ONE.name]
        if name not in minilm.ours or "HTTP binary" in name
    ]
    note = "labels: number of clients; the pipeline over HTTP with binary tensors"
    plots.save("S7", Chart("S7: single texts with MiniLM on CPU", series, note=note))
    costs = {
        load.name: {
            name: round(cost * 1e6, 1)
            for name, own in table.measured[load.name].items()
            if (cost := figures.median(own, "cpu_s")) is not None
        }
        for load in LOADS
    }
    for load in LOADS:
        most = max(costs[load.name].values())
        plots.save(
            f"S7-cpu-{load.texts}",
            plots.Bars(
                f"S7: CPU time outside the model, {load.name} per request",
                {"pipeline": costs[load.name]},
                "CPU time per request (µs)",
                round(1.1 * most),
            ),
        )
