"""C9: live scaling of the tokenizer before a real model step on an NVIDIA GPU.

The workload is *documents* with MiniLM in the ONNX runner (:mod:`bench.real_step`). A
fivefold load step is measured with the operator's loop (``managed``) and with one tokenizer
instance (``one instance``).

    STEP=gpu make bench ID=C9
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

from bench import gpu_watch, real_step
from bench.closedloop import DIRECT, STABILIZATION_SECONDS, STAND_INS
from bench.phases import Played, play
from bench.plots import Timeline, save
from bench.responses import Phase
from bench.results import thresholds, write
from bench.step_response import MOST_SECONDS, NEVER
from e2e.load import workloads
from e2e.load.workloads import Workload
from e2e.suite.pipelines import merged, sample

ID = "C9"
MANAGED, ONE = "managed", "one instance"
LOW = float(os.environ.get("LOW", "24"))
"""Requests/s of 16 documents; the load steps up to ``FACTOR`` times as many."""
FACTOR = 5
SECONDS = {MANAGED: (5.0, 33.0, 5.0), ONE: (3.0, 13.0, 3.0)}
MOST_INSTANCES = 12
MOST_ERRORS = 3
"""Error texts that a result and the message of a failed run keep, the most frequent first."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, and the GPU's utilization (percent) in each phase; empty without a GPU."""

    name: str
    phases: Sequence[Phase]
    played: Played
    gpu_percent: Sequence[float]

    def detail(self) -> dict[str, Any]:
        """For the result file."""
        found, phase = self.played.response, self.phases[1]
        begin = int(self.phases[0].seconds + phase.seconds / 2)
        settled = self.played.seconds[begin : int(self.phases[0].seconds + phase.seconds)]
        return {
            "requestsPerSecond": [one.rate for one in self.phases],
            "recoverySeconds": found.recovery,
            "counts": list(found.counts),
            "failed": found.failed,
            "errors": dict(self.played.errors.most_common(MOST_ERRORS)),
            "verdicts": list(found.verdicts),
            "starvedPercent": round(100 * found.starved, 1),
            "gpuPercent": list(self.gpu_percent),
            "settled": {
                "answeredPerSecond": round(statistics.fmean(one.answered for one in settled), 1),
                "modelStepBusyPercent": round(
                    100 * statistics.fmean(one.gpu_busy for one in settled), 1
                ),
                "instances": statistics.median(one.count for one in settled),
            },
        }


def documents() -> Workload:
    """The workload *documents* before a real step, with a tokenizer of byte-level BPE."""
    base = workloads.documents()
    # The small encoder of a rehearsal knows the words of its own tokenizer only.
    small = real_step.STEP == real_step.CPU
    tokenizer: dict[str, Any] = {
        "instances": {"max": MOST_INSTANCES},
    }
    if small:
        tokenizer["source"] = sample("documents")["spec"]["tokenizer"]["source"]
    model = {
        "platform": "onnxruntime_onnx",
        "python": None,
        "source": {"uri": "s3://models/sentiment/model.onnx"},
        "maxBatchSize": 64,
        "inputs": [
            {"name": name, "dataType": "INT64", "dims": [-1]}
            for name in ("input_ids", "attention_mask")
        ],
        "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
        "instances": {"kind": "GPU"},
    }
    spec = {"tokenizer": tokenizer, "model": model, "postprocess": {"labels": ["no", "yes"]}}
    return dataclasses.replace(
        base,
        document=merged(base.document, {"spec": spec}),
        low=LOW,
        high=FACTOR * LOW,
        alone=LOW,
        stand_ins=(),
        tokenizer="WordPiece" if small else base.tokenizer,
    )


def run() -> None:
    """Measure, print and write C9; about 2 minutes.

    Raises:
        StepError: the step is the simulated one.
        SystemExit: requests failed; what was measured is written.
    """
    if not real_step.is_real():
        raise real_step.StepError(f"{ID} needs a real step: STEP=gpu make bench ID={ID}")
    real_step.prepare()
    workload, runs = documents(), {}
    for name in SECONDS:
        runs[name] = asyncio.run(_run(name, workload))
        print(name, runs[name].detail(), flush=True)
        _write(workload, runs)  # a run that is cut short leaves what it has
        if errors := runs[name].played.errors:
            most = "; ".join(f"{count} x {text}" for text, count in errors.most_common(MOST_ERRORS))
            raise SystemExit(f"{ID}, {name}: {errors.total()} requests failed: {most}")
    _plot(workload, runs)


async def _run(name: str, workload: Workload) -> Run:
    phases = [
        Phase(seconds, rate)
        for seconds, rate in zip(SECONDS[name], (LOW, FACTOR * LOW, LOW), strict=True)
    ]
    busy: list[float] = []
    played = await play(
        workload,
        phases,
        None if name == ONE else DIRECT,
        during=lambda: gpu_watch.utilization(busy),
    )
    return Run(name, phases, played, busy)


def _write(workload: Workload, runs: dict[str, Run]) -> None:
    recovery = runs[MANAGED].played.response.recovery
    path = write(
        f"{ID}{real_step.suffix()}",
        [NEVER if recovery is None else recovery],
        unit="s",
        goal=thresholds()[ID]["goal"],
        met=recovery is not None and recovery <= MOST_SECONDS[DIRECT],
        workload=workload.text,
        stand_ins=list(STAND_INS),
        command=real_step.command(ID),
        detail={
            **real_step.record(),
            "stabilizationSeconds": STABILIZATION_SECONDS,
            "runs": {name: one.detail() for name, one in runs.items()},
        },
    )
    print(f"{path.name} written", flush=True)


def _plot(workload: Workload, runs: dict[str, Run]) -> None:
    managed = runs[MANAGED]
    compared = (managed, runs[ONE])
    run = Timeline(
        title=f"{ID}: load step before a real step ({real_step.device()})",
        note=f"{workload.text}; {real_step.described()}",
        load=[phase.rate for phase in managed.phases for _ in range(math.ceil(phase.seconds))],
        counts={one.name: [float(each.count) for each in one.played.seconds] for one in compared},
        p99={one.name: one.played.p99 for one in compared},
        verdicts=[each.verdict for each in managed.played.seconds],
        slo=workload.slo,
    )
    save(f"{ID}{real_step.suffix()}", run)
