"""What an NVIDIA GPU does with the real model step, outside a server.

``python -m bench.gpu_probe provider`` fails unless ONNX Runtime runs on the GPU. Without an
argument, it prints and writes, for each precision: the run times by rows and tokens, how far an
answer moves when its row is padded or shares a run, and what the ONNX runner concludes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import real_step
from bench.results import RESULTS
from triton_pipelines.runtime.onnx_runner.batches import BatchRunner
from triton_pipelines.runtime.onnx_runner.sample_runs import COST_TOKENS, Feed, run_cost_tokens

REHEARSED = real_step.STEP == real_step.CPU
ROWS, TOKENS = (1, 8, 32, 64), (16, 64, 128, 512)
RUNS = 5
PADS = {"input_ids": 0, "attention_mask": 0}
PROVIDER = "CUDAExecutionProvider" if not REHEARSED else "CPUExecutionProvider"
PRECISION_SECONDS = 120


def session(model: bytes) -> Any:
    """Return a session as the ONNX runner makes it.

    Raises:
        RuntimeError: it runs on another device.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    made = onnxruntime.InferenceSession(
        model, options, providers=list(dict.fromkeys([PROVIDER, "CPUExecutionProvider"]))
    )
    if made.get_providers()[0] != PROVIDER:
        raise RuntimeError(f"ONNX Runtime has {made.get_providers()}, not {PROVIDER}")
    return made


def sample(length: int, rows: int = 1) -> Feed:
    """Return rows of one length."""
    ones = np.ones((rows, length), np.int64)
    return {"input_ids": ones, "attention_mask": ones}


def differences(run: Callable[[Feed], list[Any]]) -> dict[str, float]:
    """Return how far answers move: alone against padded, and against beside other rows."""
    random = np.random.default_rng(1)
    most = {"padded": 0.0, "beside others": 0.0}
    highest = real_step.checkpoint().config.vocab_size
    for length in (3, 5, 17, 40, 100):
        ids = random.integers(4, highest, (1, length), dtype=np.int64)
        alone = run({"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        wide, mask = np.zeros((8, 128), np.int64), np.zeros((8, 128), np.int64)
        wide[:, :length], mask[:, :length] = ids, 1
        padded = run({"input_ids": wide[:1], "attention_mask": mask[:1]})[0]
        beside = run({"input_ids": wide, "attention_mask": mask})[0][:1]
        for name, other in (("padded", padded), ("beside others", beside)):
            most[name] = max(most[name], float(np.abs(alone - other).max()))
    return most


def measured() -> dict[str, Any]:
    """Return everything about the precision of this process."""
    made = session(real_step.model())
    warned: list[str] = []

    def run(feed: Feed) -> list[Any]:
        return list(made.run(["logits"], feed))

    runner = BatchRunner(run, ["logits"], dict(PADS), True, 1300, warned.append)
    runner.check(sample)
    times = {}
    for rows in ROWS:
        for tokens in TOKENS:
            feed, taken = sample(tokens, rows), []
            for number in range(RUNS + 2):
                begin = time.perf_counter()
                run(feed)
                if number >= 2:
                    taken.append(time.perf_counter() - begin)
            times[f"{rows}x{tokens}"] = round(statistics.median(taken) * 1000, 3)
    return {
        "step": real_step.described(),
        "padsInUse": runner.pads,
        "warnings": warned,
        "runCostTokens": run_cost_tokens(run, sample(COST_TOKENS)),
        "largestDifference": differences(run),
        "millisecondsPerRun": times,
    }


def main(wanted: list[str]) -> int:
    """Run what the module's docstring says; ``one`` measures the precision of this process."""
    if wanted == ["provider"]:
        session(real_step.model())
    elif wanted == ["one"]:
        print(json.dumps(measured()))
    else:
        real_step.prepare()
        found = {}
        for precision in real_step.WRITTEN:
            environment = {**os.environ, "PRECISION": precision}
            if precision == real_step.FP32:
                environment["NVIDIA_TF32_OVERRIDE"] = "0"
            done = subprocess.run(
                [sys.executable, "-m", "bench.gpu_probe", "one"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=PRECISION_SECONDS,
                check=False,
            )
            try:
                found[precision] = json.loads(done.stdout.strip().splitlines()[-1])
            except (ValueError, IndexError):
                found[precision] = {"failed": (done.stderr or done.stdout)[-2000:]}
        text = json.dumps(found, indent=1)
        print(text)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"gpu-probe{real_step.suffix()}.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
