"""One process per block: a CUDA error cannot be cleared within a process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.gpu_step.encoder import BERT, MINILM, RESULT, SHAPES, TINY, Form, Precision
from bench.gpu_step.measure import run_block
from bench.gpu_step.sessions import PartFile, Settings, say
from bench.gpu_step.torch_encoder import run_torch_block

TORCH = "torch"
BLOCKS = (
    f"{MINILM.name}:{Precision.FP16}",
    f"{BERT.name}:{Precision.FP16}",
    f"{MINILM.name}:{Precision.FP32}",
    f"{BERT.name}:{Precision.FP32}",
    f"{MINILM.name}:{TORCH}",
    f"{BERT.name}:{TORCH}",
    f"{MINILM.name}:{Precision.TF32}",
    f"{BERT.name}:{Precision.TF32}",
)
REHEARSED = (f"{TINY.name}:{Precision.FP32}", f"{TINY.name}:{Precision.FP16}", f"{TINY.name}:torch")
SHARES = {Precision.FP16: 1.5, Precision.FP32: 1.2, Precision.TF32: 0.8, TORCH: 0.4}
"""Of the time that is left."""
MOST_OVERRUN_S = 25.0
"""After the time is over, before a process is killed."""


def child(block: str, path: Path, seconds: float, without: Sequence[str], rehearse: bool) -> None:
    """Measure one block in this process."""
    model, _, kind = block.partition(":")
    settings = Settings(
        SHAPES[model],
        Precision.FP16 if kind == TORCH else Precision(kind),
        [Form(form) for form in without],
        time.monotonic() + seconds,
        rehearse,
    )
    if rehearse:
        settings.rows, settings.grid_rows, settings.grid_tokens = (8,), (1, 4), (16, 32)
        settings.offline_texts, settings.seconds, settings.document_rows = 96, 0.3, (8,)
    part = PartFile(path)
    (run_torch_block if kind == TORCH else run_block)(settings, part)


def environment() -> dict[str, Any]:
    """Return what the numbers depend on besides this file."""
    from importlib import metadata

    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
    }
    for package in ("onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["gpu"] = query_gpu("name,driver_version,memory.total,clocks.max.sm,power.limit")
    return found


def query_gpu(fields: str) -> list[str]:
    """Return the lines of ``nvidia-smi --query-gpu``, or the error in their place."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return done.stdout.strip().splitlines()


def run_all(folder: Path, minutes: float, blocks: Sequence[str], rehearse: bool) -> dict[str, Any]:
    """Run every block in a process of its own and write the results after every change."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + minutes * 60
    results: dict[str, Any] = {"environment": environment(), "rehearsal": rehearse, "blocks": {}}
    say(json.dumps(results["environment"]))
    for number, block in enumerate(blocks):
        left = end - time.monotonic()
        if left < 10:
            say(f"time is over: {', '.join(blocks[number:])} left out")
            break
        shares = [SHARES[one.partition(":")[2]] for one in blocks[number:]]
        _run_block(block, left * shares[0] / sum(shares), folder, results, end)
    say(f"written: {folder / RESULT}")
    return results


def _run_block(
    block: str, seconds: float, folder: Path, results: dict[str, Any], end: float
) -> None:
    without: list[str] = []
    with tempfile.TemporaryDirectory() as parts:
        path = Path(parts) / "part.json"
        while True:
            path.unlink(missing_ok=True)
            command = [sys.executable, "-m", "bench.gpu_step", str(path)]
            command += ["--block", block, "--seconds", f"{seconds:.1f}"]
            command += ["--without", ",".join(without)] if without else []
            command += ["--rehearse"] if results["rehearsal"] else []
            status = _follow(command, path, block, folder, results, end)
            suspect = results["blocks"].get(block, {}).get("attempting")
            if status == 0 or not suspect or time.monotonic() > end - 10:
                break
            say(f"{block}: status {status}; again without {suspect}")
            if suspect == Form.PADDED or suspect in without:
                break
            without.append(suspect)
    gpu = query_gpu("clocks.sm,temperature.gpu,power.draw")
    results["blocks"].setdefault(block, {}).update(status=status, gpuAfter=gpu)
    _write(folder, results)


def _follow(
    command: Sequence[str],
    path: Path,
    block: str,
    folder: Path,
    results: dict[str, Any],
    end: float,
) -> int:
    """Wait for a process and copy its results every second; returns its exit status."""
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            if path.is_file():
                results["blocks"][block] = json.loads(path.read_text(encoding="utf-8"))
                _write(folder, results)
            if process.poll() is None and time.monotonic() > end + MOST_OVERRUN_S:
                say(f"{block}: killed, the time is over")
                process.kill()
        return process.wait()


def _write(folder: Path, results: Mapping[str, Any]) -> None:
    draft = folder / f"{RESULT}.draft"
    draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / RESULT)
