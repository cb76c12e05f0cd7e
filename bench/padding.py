"""S1 and S2: each padding mode against the plain ensemble, on one real Triton.

The plain ensemble pads each request by itself. 64 clients run in a closed loop. Every round puts
the same load on each ensemble, in a different order, and ratios are taken within a round. The step
is the simulated GPU of :mod:`bench.simulated_gpu`. In addition, the sample's real model runs on
CPU, where padding costs more than another run. With ``STEP=gpu`` the step is a real one on an
NVIDIA GPU (:mod:`bench.real_step`), and the results have ids of their own.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench import gpu_watch, plots, real_step
from bench.results import thresholds, write
from bench.variants import (
    PACKED_GPU,
    RUNNER,
    STAND_IN,
    Variant,
    described,
    load,
    served,
    workload,
)
from triton_pipelines.tools.loadgen import LoadSpec, LoadSummary
from triton_pipelines.tools.loadgen.plots import Chart, Point, Series
from triton_pipelines.triton.local_server import LocalTriton, LocalTritonError

CLIENTS = 64
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = float(os.environ.get("SECONDS", "4"))
WARM_SECONDS = 1.0
CPU_CLIENTS, CPU_FACTOR = 16, 3.0
"""A CPU step answers whole batches, some a second: fewer clients and a longer time, so that one
batch more or less does not count.
"""
TOKENIZERS = 4
"""Tokenizer instances of every variant with a real step, which needs more than one to be busy."""
COMPARED_TEXTS, TOLERANCE = 16, {real_step.TF32: 0.02, real_step.FP32: 1e-3, real_step.FP16: 0.05}
"""How many texts are compared between the variants, and how far their logits may be apart."""
PADS = {"pad_inputs": '{"input_ids": 0, "attention_mask": 0}'}
PLAIN, SORTED, PACKED, CPU_PLAIN, CPU_AUTO = "plain", "auto", "packed", "cpu-plain", "cpu-auto"
VARIANTS = (
    Variant(PLAIN),
    Variant("fixed", padding="Fixed"),
    Variant("longest", padding="Longest"),
    Variant("bucketed", padding="Bucketed"),
    Variant("ragged", ragged=True),
    Variant(SORTED, mode="Sorted", ragged=True),
    Variant(PACKED, mode="Packed", ragged=True),
    Variant(CPU_PLAIN, mode="Runner"),
    Variant(CPU_AUTO, mode="Runner", ragged=True, parameters=PADS),
)
MEANINGS = {
    PLAIN: "no padding across requests: only requests with the same shape share a batch",
    "fixed": "padded to 512 tokens in the tokenizer",
    "longest": "padded to the longest row of the tokenizer's batch",
    "bucketed": "padded to the next of seven bucket lengths, one model",
    "ragged": "ragged batches, padded to the longest row of the batch",
    SORTED: "ragged batches, sorted by length and split into the cheapest executions",
    PACKED: "ragged batches, packed: no padding is computed",
    CPU_PLAIN: "real model on CPU, requests with the same shape share an execution",
    CPU_AUTO: "real model on CPU, sorted and split by the measured cost of an execution",
}
Rounds = Mapping[str, Sequence[LoadSummary]]


def variants() -> Sequence[Variant]:
    """Return the variants that this run measures."""
    if not real_step.is_real():
        return VARIANTS
    made = []
    for variant in VARIANTS:
        if variant.mode == RUNNER:
            continue  # measured on CPU, beside the simulated step
        parameters = dict(PADS) if variant.ragged and variant.name != PACKED else {}
        if variant.mode == "Together" and variant.ragged:
            parameters["run_cost_tokens"] = str(10**9)  # always one run
        mode = PACKED_GPU if variant.name == PACKED else RUNNER
        made.append(replace(variant, mode=mode, parameters=parameters, tokenizers=TOKENIZERS))
    return made


def run() -> None:
    """Measure, print and write S1 and S2 with their parts; 6 minutes."""
    real_step.prepare()
    startable = _startable(variants())
    found: dict[str, list[LoadSummary]] = {}
    busy: dict[str, list[float]] = {}
    texts, order = workload(), random.Random(1)
    gpu = LoadSpec(concurrency=CLIENTS, duration_s=SECONDS, warmup_s=WARM_SECONDS)
    cpu = LoadSpec(concurrency=CPU_CLIENTS, duration_s=SECONDS * CPU_FACTOR, warmup_s=WARM_SECONDS)
    with served(startable) as server:
        chosen = _agreeing(server, startable, texts[:COMPARED_TEXTS])
        _warm_up(server, chosen, texts, gpu)
        for number in range(ROUNDS):
            for variant in order.sample(chosen, len(chosen)):
                on_cpu = variant.mode == RUNNER and not real_step.is_real()
                with gpu_watch.utilization(busy.setdefault(variant.name, [])):
                    one = load(server, variant.name, cpu if on_cpu else gpu, texts)
                if one.failed:
                    raise SystemExit(f"{variant.name}: {one.errors}")
                found.setdefault(variant.name, []).append(one)
                print(
                    (
                        f"round {number + 1} {variant.name:10} {one.requests_per_s:7.0f}/s p99 "
                        f"{one.p99_s * 1000:6.1f} ms"
                    ),
                    flush=True,
                )
        notes = gpu_watch.notes(server.log()) if real_step.is_real() else []
    print(*notes, sep="\n")
    _write(found, busy, notes)
    _plot(found)


def _startable(wanted: Sequence[Variant]) -> Sequence[Variant]:
    """Return the variants without the packed one if PyTorch cannot run it here."""
    if not real_step.is_real():
        return wanted
    packed = [variant for variant in wanted if variant.mode == PACKED_GPU]
    try:
        with served(packed) as server:
            print(*gpu_watch.notes(server.log()), sep="\n", flush=True)
        return wanted
    except LocalTritonError as error:
        print(f"{PACKED}: left out, its step does not start: {str(error)[:1000]}", flush=True)
    return [variant for variant in wanted if variant.mode != PACKED_GPU]


def _agreeing(
    server: LocalTriton, wanted: Sequence[Variant], texts: Sequence[str]
) -> Sequence[Variant]:
    """Return the variants whose answers are those of the plain one."""
    if not real_step.is_real():
        return wanted
    expected = _answers(server, PLAIN, texts)
    kept = []
    for variant in wanted:
        apart = float(np.abs(_answers(server, variant.name, texts) - expected).max())
        agrees = apart <= TOLERANCE[real_step.PRECISION]
        print(
            f"{variant.name}: logits at most {apart:.2g} from those of {PLAIN}"
            + ("" if agrees else ": left out"),
            flush=True,
        )
        kept += [variant] if agrees else []
    return kept


def _warm_up(
    server: LocalTriton, chosen: Sequence[Variant], texts: Sequence[str], spec: LoadSpec
) -> None:
    """Let each variant choose its kernels and grow its memory."""
    if not real_step.is_real():
        return
    for variant in chosen:
        load(server, variant.name, spec, texts)
    gpu_watch.refuse_idle_memory(len(chosen))


def _answers(server: LocalTriton, name: str, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return logits [texts, classes], each text alone in its request."""
    return np.concatenate([gpu_watch.logits(server.http_url, name, [text]) for text in texts])


def ratios(found: Rounds, one: str, other: str) -> list[float]:
    """Requests/s of the one against the other's, by round."""
    return [
        mine.requests_per_s / theirs.requests_per_s
        for mine, theirs in zip(found[one], found[other], strict=True)
    ]


def tails(found: Rounds, one: str, other: str) -> list[float]:
    """p99 of the one against the other's, by round."""
    return [
        mine.p99_s / theirs.p99_s for mine, theirs in zip(found[one], found[other], strict=True)
    ]


def _write(found: Rounds, busy: Mapping[str, Sequence[float]], notes: Sequence[str]) -> None:
    rows = {name: _row(name, summaries) for name, summaries in found.items()}
    for name, percents in busy.items():
        if percents:
            rows[name]["gpuPercent"] = round(statistics.fmean(percents), 1)
    extra = {**real_step.record(), "serverNotes": list(notes)} if real_step.is_real() else {}

    def result(
        identity: str, one: str, other: str, least: float, most_tail: float | None = None
    ) -> None:
        if one not in found or other not in found:
            return
        clients, seconds = (
            (CPU_CLIENTS, SECONDS * CPU_FACTOR) if one == CPU_AUTO else (CLIENTS, SECONDS)
        )
        gains, late = ratios(found, one, other), tails(found, one, other)
        met = statistics.median(gains) >= least and (
            most_tail is None or statistics.median(late) <= most_tail
        )
        goal = thresholds()[identity]["goal"]
        write(
            identity + real_step.step_suffix(),
            gains,
            unit=f"times the requests/s ({statistics.median(late):.2f} times the p99)",
            goal=goal,
            met=met,
            workload=(
                f"{described()}; {clients} clients over HTTP, {ROUNDS} rounds of {seconds:g} s, "
                "interleaved"
            ),
            stand_ins=[] if one == CPU_AUTO or real_step.is_real() else [STAND_IN],
            detail={"p99Ratios": [round(value, 3) for value in late], "variants": rows, **extra},
            command=real_step.command(identity),
        )
        print(
            f"{identity}{real_step.step_suffix()}: {statistics.median(gains):.2f} times, p99 "
            f"{statistics.median(late):.3f} of it; goal {goal}: {'met' if met else 'missed'}"
        )

    result("S1", SORTED, PLAIN, 7.5, 1 / 5)
    result("S1-packed", PACKED, PLAIN, 9.0, 1 / 6)
    result("S1-cpu", CPU_AUTO, CPU_PLAIN, 0.98)
    result("S2-fixed", SORTED, "fixed", 3.0)
    result("S2-longest", SORTED, "longest", 2.5)
    result("S2-bucketed", SORTED, "bucketed", 5.0)


def _row(name: str, summaries: Sequence[LoadSummary]) -> dict[str, Any]:
    def median(values: Sequence[float]) -> list[float]:
        return [round(statistics.median(values), 2), round(min(values), 2), round(max(values), 2)]

    steps = [one.steps[f"{name}-model"] for one in summaries]
    return {
        "meaning": MEANINGS[name],
        "requestsPerSecond": median([one.requests_per_s for one in summaries]),
        "p50Milliseconds": median([one.p50_s * 1000 for one in summaries]),
        "p99Milliseconds": median([one.p99_s * 1000 for one in summaries]),
        "rowsPerExecution": median([step.rows_per_execution for step in steps]),
        "modelBusy": median([step.busy for step in steps]),
        "tokenizerBusy": median([one.steps[f"{name}-tokenizer"].busy for one in summaries]),
        "generatorCores": median([one.cpu_share for one in summaries]),
    }


def _plot(found: Rounds) -> None:
    series = []
    for name, summaries in found.items():
        late = sorted(one.p99_s * 1000 for one in summaries)
        rate = statistics.median(one.requests_per_s for one in summaries)
        series.append(
            Series(
                f"{name}: {MEANINGS[name]}",
                [Point(rate, statistics.median(late), name, late[0], late[-1])],
                marks_only=True,
            )
        )
    note = f"{CLIENTS} clients ({CPU_CLIENTS} for cpu-*, the real model); {described()}; {STAND_IN}"
    title = "S1: padding modes (simulated GPU step; cpu-*: real model)"
    if real_step.is_real():
        note = f"{CLIENTS} clients; {described()}; {real_step.described()}"
        title = f"S1: padding modes ({real_step.device()})"
    whiskers = f"whiskers: lowest and highest p99 of {ROUNDS} rounds"
    plots.save(
        f"S1{real_step.step_suffix()}",
        Chart(
            title,
            series,
            note=note,
            whiskers=whiskers,
        ),
    )
