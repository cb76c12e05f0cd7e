"""S3: the ensemble against the architectures that it replaces.

All use the same model in the same Triton with the same padding. There are three ways from a text to
the model's answer: the ensemble (tokenizer and model in one Triton), a tokenizer service with
micro-batching before Triton, and one that handles one request at a time. Clients, texts and the
simulated GPU step are the same. Each round covers all three, so that a machine that slows down
favors none. With ``STEP=gpu`` the shared step is a real one on an NVIDIA GPU: the ONNX runner
(:mod:`bench.real_step`).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml

from bench import gpu_watch, plots, real_step
from bench.process_tree import cpu_seconds
from bench.results import FOLDER, thresholds, write
from e2e.load.workloads import TOKENIZER
from e2e.models import tree
from e2e.models.__main__ import source_map
from e2e.suite.pipelines import merged, sample
from tests.support.nullbackend import NAME, distribution
from tests.support.simulated_backends import on_simulated_backends
from tests.support.triton import triton_server
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.cli.local_pipeline import prepare_model_repository
from triton_pipelines.compile.graph import Options
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.tools.loadgen import (
    LoadSpec,
    LoadSummary,
    LoadTarget,
    SweepResult,
    TextLengths,
    generate_texts,
    run_blocking,
    summarize,
)
from triton_pipelines.tools.loadgen.plots import Chart, Point, Series
from triton_pipelines.triton.local_server import LocalTriton

RUNS, SECONDS = int(os.environ.get("RUNS", "5")), float(os.environ.get("SECONDS_EACH", "6"))
CLIENTS = 64
MODEL, INNER = "baselines", "model"
"""The ensemble, and its model step, which the services ask."""
CURVE = (8, 16, 32)
"""Further numbers of clients for the plot, a run each."""
LENGTHS = TextLengths(32, 0.6, 512)
TEXTS = 1024
DELAY_US = 1000
"""How long the tokenizer waits for company: an execution for each request would cost more than it
waits.
"""
WELL, PLAINLY, OURS = "service, micro-batches, gRPC", "service, one at a time, HTTP", "ensemble"
KINDS = {WELL: "batched", PLAINLY: "plain"}
START_SECONDS = 60
TOKENIZERS = 4
"""Tokenizer instances before a real step; the simulated one is measured with one."""
TOLERANCE = 0.0 if not real_step.is_real() else 0.05
"""How far logits may be apart: kernels for other shapes round otherwise."""
LAUNCH_US, TOKEN_US = 2000.0, 1.5
# In C, as the backends that it stands in for: one in Python would add its own work to every request
# of the ensemble, and to every batch of the service alone.
STAND_IN = (
    f"simulated GPU step: a C backend that waits {LAUNCH_US / 1000:g} ms plus {TOKEN_US:g} "
    "µs per token, including padding to the longest row of the batch, "
    "and returns zeros"
)


def document() -> dict[str, Any]:
    """The ensemble: the tokenizer of the sample `sentiment` and the stand-in, as `padding.

    Auto` has a model on a GPU.

    Requests of any length share a run of the model, which pads them to the longest of them, as the
    service pads its batches.
    """
    real = {
        "inputs": [
            {"name": name, "dataType": "INT64", "dims": [-1]}
            for name in ("input_ids", "attention_mask")
        ],
        "instances": {"kind": "GPU"},
        "maxBatchSize": CLIENTS,
    }
    simulated = {
        "platform": None,
        "backend": NAME,
        "source": None,
        "parameters": {"launch_us": f"{LAUNCH_US:g}", "token_us": f"{TOKEN_US:g}"},
        "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1], "ragged": "Enabled"}],
        "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
        "maxBatchSize": CLIENTS,
    }
    # As the service gathers what comes while its batches are under way, the tokenizer waits a
    # moment for company.
    tokenizer: dict[str, Any] = {
        "padding": "Ragged",
        "maxLength": LENGTHS.cap,
        "dynamicBatching": {"maxQueueDelayMicroseconds": DELAY_US},
    }
    if real_step.is_real():
        tokenizer["instances"] = {"initial": TOKENIZERS}
    model = real if real_step.is_real() else simulated
    spec = {"tokenizer": tokenizer, "model": model, "postprocess": None}
    return merged(sample("sentiment"), {"metadata": {"name": MODEL}, "spec": spec})


@contextlib.contextmanager
def targets(wanted: list[str]) -> Iterator[dict[str, LoadTarget]]:
    """What is asked, by its name; each answers the same to the same texts, or this raises."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-baselines-")))
        files = real_step.files(folder / "files") if real_step.is_real() else tree.build()
        file = folder / "baselines.yaml"
        file.write_text(yaml.safe_dump(document(), sort_keys=False), encoding="utf-8")
        rules = SourceMap.parse(rule.removeprefix("--source-map=") for rule in source_map(files))
        if real_step.is_real():
            server = stack.enter_context(_real_server(file, rules, folder / "served"))
        else:
            server, _ = stack.enter_context(
                on_simulated_backends(
                    file, distribution(folder / "backends"), rules, folder / "served"
                )
            )
        sent = [text.encode() for text in generate_texts(LENGTHS.sample(TEXTS))]
        found = {
            OURS: LoadTarget(
                server.http_url,
                MODEL,
                [{"TEXT": np.array([[text]], dtype=np.object_)} for text in sent],
            )
        }
        for baseline in wanted:
            words = (
                KINDS[baseline],
                server.grpc_address,
                server.http_url,
                INNER,
                str(files / TOKENIZER),
                *(["masked"] if real_step.is_real() else []),
            )
            port = stack.enter_context(service(*words))
            bodies = [json.dumps({"text": text.decode()}).encode() for text in sent]
            found[baseline] = LoadTarget(
                f"http://127.0.0.1:{port}", baseline, (), path="/", bodies=bodies
            )
        refuse_different(found, [text.decode() for text in sent[:16]])
        yield found
        if real_step.is_real():
            print(*gpu_watch.notes(server.log()), sep="\n")


@contextlib.contextmanager
def _real_server(file: Path, rules: SourceMap, folder: Path) -> Iterator[LocalTriton]:
    """Serve the resource with the ONNX runner, on the GPU or in a rehearsal on the CPU."""
    options = Options(
        models_path=str(folder / "models"),
        engines_path=str(folder / "engines"),
        substitute_runner=frozenset({"onnxruntime_onnx"}),
        source_map=tuple(f"{prefix}={target}" for prefix, target in rules.rules),
    )
    pipeline, graph = load_pipeline(file, options)
    graph = real_step.placed(graph, INNER)
    models = prepare_model_repository(pipeline, graph, options, folder, folder, rules)
    with triton_server(models, list(graph.load), deadline_s=180) as server:
        yield server


@contextlib.contextmanager
def service(*words: str) -> Iterator[int]:
    """A baseline in a process of its own; its port."""
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join((str(FOLDER.parent), str(FOLDER.parent / "operator"))),
    }
    command = [sys.executable, "-m", "bench.baseline_service", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=FOLDER.parent, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.strip().isdecimal():
                raise RuntimeError(f"the service {words[0]} did not start")
            yield int(line)
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def refuse_different(found: Mapping[str, LoadTarget], words: list[str]) -> None:
    """Compare answers before anything is timed."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        ours = found[OURS]
        asked = {
            "inputs": [
                {"name": "TEXT", "shape": [len(words), 1], "datatype": "BYTES", "data": words}
            ]
        }
        answer = (
            client.post(f"{ours.url}/v2/models/{ours.model}/infer", json=asked)
            .raise_for_status()
            .json()
        )
        expected = np.array(answer["outputs"][0]["data"]).reshape(len(words), 2)
        for name, target in found.items():
            if target is ours:
                continue
            rows = [
                client.post(f"{target.url}/", json={"text": text})
                .raise_for_status()
                .json()["logits"]
                for text in words
            ]
            np.testing.assert_allclose(
                np.array(rows).reshape(len(words), 2),
                expected,
                rtol=0,
                atol=TOLERANCE,
                err_msg=name,
            )


@dataclass(frozen=True)
class Found:
    """A way over all its runs; ``costs``: CPU seconds of all servers for a request, by run."""

    load: SweepResult
    costs: tuple[float, ...]


def measured(
    found: Mapping[str, LoadTarget], clients: int, runs: int, seconds: float
) -> dict[str, Found]:
    """All ways at a number of clients, in rounds."""
    spec = LoadSpec(
        concurrency=clients, duration_s=seconds, warmup_s=min(1.0, seconds / 2), timeout_s=60
    )
    summaries: dict[str, list[LoadSummary]] = {name: [] for name in found}
    costs: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(runs):
        for name, target in found.items():
            before = cpu_seconds()
            result = run_blocking(target, spec)
            costs[name].append((cpu_seconds() - before) / max(1, len(result.due)))
            summaries[name].append(summarize(result))
    return {
        name: Found(SweepResult(spec, tuple(summaries[name])), tuple(costs[name])) for name in found
    }


def run() -> None:
    """Measure, print, write results and plot."""
    real_step.prepare()
    busy: list[float] = []
    with targets([WELL, PLAINLY]) as found:
        if real_step.is_real():
            measured(found, CLIENTS, 1, min(SECONDS, 2.0))  # chooses kernels, grows memory
            gpu_watch.refuse_idle_memory(1)
        with gpu_watch.utilization(busy):
            results = measured(found, CLIENTS, RUNS, SECONDS)
        curves = {clients: measured(found, clients, 1, SECONDS) for clients in CURVE} | {
            CLIENTS: results
        }
    loads = {name: item.load for name, item in results.items()}
    for name, item in loads.items():
        if item.errors:
            raise RuntimeError(f"{name}: requests failed: {dict(item.errors)}")
        low, high = item.spread("requests_per_s")
        print(
            f"{name:32} {item.median('requests_per_s'):7.0f} requests/s ({low:.0f} to "
            f"{high:.0f}), p99 {item.median('p99_s') * 1000:.1f} ms,"
            f" {statistics.median(results[name].costs) * 1e6:.0f} µs of CPU a request"
        )
    ratios = {
        baseline: [
            a.requests_per_s / b.requests_per_s
            for a, b in zip(loads[OURS].runs, loads[baseline].runs, strict=True)
        ]
        for baseline in KINDS
    }
    p99 = {name: item.median("p99_s") for name, item in loads.items()}
    wanted = {WELL: 1.5, PLAINLY: 3.0}
    met = all(
        statistics.median(ratios[baseline]) >= least and p99[OURS] <= p99[baseline]
        for baseline, least in wanted.items()
    )
    path = write(
        f"S3{real_step.suffix()}",
        ratios[WELL],
        unit="times the requests/s of the micro-batching service",
        goal=thresholds()["S3"]["goal"],
        met=met,
        workload=(
            f"{CLIENTS} clients in a closed loop, lognormal lengths ({LENGTHS}), one text per "
            "request"
        ),
        stand_ins=[] if real_step.is_real() else [STAND_IN],
        command=real_step.command("S3"),
        detail={
            **real_step.record(),
            "gpuPercent": round(statistics.fmean(busy), 1) if busy else None,
            "ratioToPlain": _spread(ratios[PLAINLY]),
            "requestsPerSecond": {
                name: _spread([run.requests_per_s for run in item.runs])
                for name, item in loads.items()
            },
            "p99Milliseconds": {
                name: _spread([run.p99_s * 1000 for run in item.runs])
                for name, item in loads.items()
            },
            "cpuMicrosecondsPerRequest": {
                name: _spread([cost * 1e6 for cost in item.costs]) for name, item in results.items()
            },
            "tokenizerQueueDelayMicroseconds": DELAY_US,
            "rowsPerExecution": round(loads[OURS].typical.steps["tokenizer"].rows_per_execution, 2),
            "generatorMicrosecondsPerRequest": round(
                loads[OURS].typical.cpu_per_request_s * 1e6, 1
            ),
        },
    )
    plots.save(f"S3{real_step.suffix()}", chart(curves))
    print(
        f"S3{real_step.suffix()}: {statistics.median(ratios[WELL]):.2f} times done well, "
        f"{statistics.median(ratios[PLAINLY]):.2f} times done plainly; {path.name} written"
    )


def chart(curves: Mapping[int, Mapping[str, Found]]) -> Chart:
    """Return p99 over requests/s by number of clients."""
    series = []
    for name in (OURS, WELL, PLAINLY):
        items = [(clients, curves[clients][name].load) for clients in sorted(curves)]
        points = [
            Point(item.median("requests_per_s"), item.median("p99_s") * 1000, str(clients))
            for clients, item in items
        ]
        series.append(Series(name, points))
    step = real_step.device() if real_step.is_real() else "simulated GPU step"
    words = real_step.described() if real_step.is_real() else STAND_IN
    return Chart(
        f"S3: ensemble against two tokenizer services ({step})",
        series,
        note=f"labels: number of clients; text lengths in tokens: {LENGTHS}; {words}",
    )


def _spread(values: list[float]) -> list[float]:
    """Median, least and greatest."""
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]
