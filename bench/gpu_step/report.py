"""Results as Markdown tables and a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.gpu_step.encoder import NODE_COUNTS
from bench.gpu_step.processes import TORCH


def report(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results as lines of Markdown."""
    yield f"Environment: `{json.dumps(results['environment'])}`"
    for block, part in results["blocks"].items():
        yield from ("", f"## {block.replace(':', ' ')}", "")
        if "stepCost" in part:
            cost = part["stepCost"]
            yield f"Step: {cost['launchUs']:.0f} us + {cost['tokenUs']:.3f} us per padded token."
        for key, text in part.get("errors", {}).items():
            yield f"- `{key}`: {text.splitlines()[0][:200]}"
        for case in part.get("cases", []):
            yield from _case_table(case)
        yield from _grid_table(part.get("grid", []))
        yield from _offline_table(part.get("offline", {}))
        yield from _placement_table(part.get("placement", {}))


def _case_table(case: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{case['rows']} rows, {case['lengths']} lengths, {case['fill']:.0%} of the cells tokens:"
    yield ""
    yield "| variant | ms | gain | 10 to 90 % of the rounds | executions | largest difference |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, one in case["variants"].items():
        yield (
            f"| {name} | {one['medianMs']:.2f} | {one['gain']:.2f} | "
            f"{one['gainP10']:.2f}–{one['gainP90']:.2f} | {one['executions']:.1f} | "
            f"{one['maxDifference']:.1e} |"
        )


def _grid_table(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not cells:
        return
    rows = sorted({cell["rows"] for cell in cells})
    yield from ("", "Plain graph, ms (in brackets: inputs and output stay on the GPU):", "")
    yield "| tokens | " + " | ".join(f"{number} rows" for number in rows) + " |"
    yield "| --- " * (len(rows) + 1) + "|"
    for tokens in sorted({cell["tokens"] for cell in cells}):
        texts = []
        for number in rows:
            here = [c for c in cells if (c["rows"], c["tokens"]) == (number, tokens)]
            bound = f" ({here[0]['bound']['medianMs']:.2f})" if here and "bound" in here[0] else ""
            texts.append(f"{here[0]['medianMs']:.2f}{bound}" if here else "")
        yield f"| {tokens} | " + " | ".join(texts) + " |"


def _offline_table(offline: Mapping[str, Any]) -> Iterator[str]:
    if not offline:
        return
    yield from ("", "Offline, one pass over all texts:", "")
    yield "| graph and order | executions | tokens/s | texts/s |"
    yield "| --- | --- | --- | --- |"
    for name, one in offline.items():
        yield (
            f"| {name} | {one['executions']} | {one['tokensPerSecond']:,} | "
            f"{one['textsPerSecond']:,} |"
        )


def _placement_table(placement: Mapping[str, Any]) -> Iterator[str]:
    if not placement:
        return
    yield from ("", "Nodes of one execution:", "")
    yield "| graph | nodes per provider | copies | on the CPU |"
    yield "| --- | --- | --- | --- |"
    for form, one in placement.items():
        cells = [_counts(one[key]) for key in NODE_COUNTS]
        yield f"| {form} | " + " | ".join(cells) + " |"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"


PLOTTED = ("sorted", "padded-fused", "padding-free", "padding-free-groups", "packed-host")
MOST_GAIN = 2.5


def plot(name: str, results: Mapping[str, Any], rows: int = 32) -> None:
    """Draw the gains at ``rows`` rows of lognormal lengths as a plot of `bench.plots`."""
    from bench import plots

    groups = {
        block.replace(":", " "): {
            variant: case["variants"][variant]["gain"]
            for variant in PLOTTED
            if variant in case["variants"]
        }
        for block, part in results["blocks"].items()
        for case in part.get("cases", [])
        if (case["rows"], case["lengths"]) == (rows, "lognormal") and not block.endswith(TORCH)
    }
    gpu = results["environment"]["gpu"][-1].split(",")[0]
    title = f"Speed against padding to the longest of {rows} rows ({gpu})"
    plots.save(name, plots.Bars(title, groups, "times the speed", MOST_GAIN))
