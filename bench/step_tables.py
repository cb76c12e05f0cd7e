"""Tables of `bench.gpu_step` for the pages of docs/benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.gpu_step.processes import TORCH

Result = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
"""Head and rows."""

GAINS = {
    "sorted": "sorted",
    "padded-fused": "fused attention",
    "padding-free": "padding-free",
    "packed": "packed",
    "packed-host": "packed, index maps from the host",
}
"""Variants of the table of gains, and their column."""
SHORT = "lognormal"
"""Lengths of the cases that come first."""
GRID_ROWS, GRID_TOKENS = (1, 8, 32, 64), (16, 64, 128, 512)
OFFLINE = {
    "padded arrival-64": "padded, 64 texts as they arrive",
    "padded sorted-64": "padded, sorted, 64 texts",
    "padded sorted-tokens": "padded, sorted, at most 16384 padded tokens",
    "padded-fused sorted-tokens": "fused attention, sorted, at most 16384 padded tokens",
    "packed-host arrival-64": "packed, 64 texts as they arrive",
    "packed-host arrival-tokens": "packed, at most 16384 tokens as they arrive",
    "packed-host sorted-tokens": "packed, sorted, at most 16384 tokens",
}
"""Runs of the offline table, and their row."""


def gains(found: Result) -> Table:
    """Return the speed of each batch form against padding to the longest row."""
    head = ("Model and arithmetic", "Batch", "Padded to the longest row", *GAINS.values())
    rows = [
        (
            _name(block),
            f"{case['rows']} {'short texts' if case['lengths'] == SHORT else case['lengths']}",
            f"{case['variants']['padded-longest']['medianMs']:.2f} ms",
            *(f"{case['variants'][name]['gain']:.2f}" for name in GAINS),
        )
        for block, part in _measured(found)
        for case in sorted(part["cases"], key=lambda one: (one["lengths"] != SHORT, one["rows"]))
    ]
    return head, rows


def costs(found: Result) -> Table:
    """Return the step time of padded rows by shape."""
    head = (
        "Model and arithmetic",
        "Rows",
        *(f"{tokens} tokens" for tokens in GRID_TOKENS),
    )
    rows: list[Sequence[object]] = []
    for block, part in _measured(found):
        times = {(cell["rows"], cell["tokens"]): cell["medianMs"] for cell in part.get("grid", [])}
        rows += [
            (_name(block), count, *(f"{times[count, tokens]:.2f} ms" for tokens in GRID_TOKENS))
            for count in GRID_ROWS
            if times
        ]
    return head, rows


def offline(found: Result) -> Table:
    """Return the texts per second of one pass over many texts."""
    measured = [(_name(block), part["offline"]) for block, part in _measured(found)]
    measured = [(name, part) for name, part in measured if part]
    head = ("Texts per second", *(name for name, _ in measured))
    rows = [
        (meaning, *(f"{part[key]['textsPerSecond']:,}" for _, part in measured))
        for key, meaning in OFFLINE.items()
    ]
    return head, rows


def place(found: Result) -> str:
    """Return where and when the step times were measured."""
    environment = found["environment"]
    gpu, driver, *_ = environment["gpu"][-1].split(", ")
    return (
        f"The times were measured on an {gpu}, driver {driver}, with ONNX Runtime "
        f"{environment['onnxruntime-gpu']} and PyTorch {environment['torch']}, with `python -m "
        f"bench.gpu_step`, on {environment['date']} at commit {environment['commit']}."
    )


def _measured(found: Result) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the blocks of ONNX Runtime."""
    for block, part in found["blocks"].items():
        if not block.endswith(TORCH):
            yield block, {"offline": {}, **part}


def _name(block: str) -> str:
    return block.replace(":", ", ")
