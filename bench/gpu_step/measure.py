"""What one block measures with ONNX Runtime: the grid, the variants and the offline run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_step.encoder import (
    BATCHES,
    CLASSES,
    OFFLINE_ROWS,
    OFFLINE_TOKENS,
    SEED,
    Array,
    Batch,
    Feeds,
    Form,
    Precision,
    draw_batch,
)
from bench.gpu_step.inputs import prepare
from bench.gpu_step.plans import BASELINE, VARIANTS, Execution, StepCost, plan_alone, split_batch
from bench.gpu_step.sessions import PartFile, Sessions, Settings, say
from bench.gpu_step.timing import (
    compare,
    equal_batch,
    interleave,
    repeat,
    step_cost,
    summarize,
    time_run,
)


def measure_grid(sessions: Sessions, settings: Settings, part: PartFile) -> None:
    """Measure the plain graph at fixed shapes, with host copies and with inputs on the GPU."""
    cells: list[dict[str, Any]] = []
    each = min(0.25, settings.seconds / 12)
    for tokens in settings.grid_tokens:
        for rows in settings.grid_rows:
            if settings.left_s < 0:
                return
            feeds = prepare(Form.PADDED, equal_batch(rows, tokens), tokens, settings.dtype)
            session = sessions.session(Form.PADDED)
            cell: dict[str, Any] = {"rows": rows, "tokens": tokens}
            cell |= summarize(repeat(lambda f=feeds, s=session: s.run(None, f), each))  # type: ignore[misc]
            if rows in (1, 32) and not settings.rehearse:
                cell["bound"] = summarize(repeat(_bound(session, feeds), each))
            cells.append(cell)
        line = " ".join(f"{cell['medianMs']:.2f}" for cell in cells if cell["tokens"] == tokens)
        say(f"  grid {tokens} tokens x rows {list(settings.grid_rows)}: {line} ms")
        part.put("grid", cells)


def _bound(session: Any, feeds: Feeds) -> Callable[[], object]:
    """Return a call with inputs and output kept in GPU memory."""
    import onnxruntime

    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(
            name, onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
        )
    binding.bind_output("logits", "cuda", 0)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run


def answer(sessions: Sessions, form: Form, executions: Sequence[Execution]) -> Array:
    """Return the logits of the whole batch, in its order of rows."""
    rows = sum(execution.batch.rows for execution in executions)
    logits = np.zeros((rows, CLASSES), np.float32)
    for execution in executions:
        logits[list(execution.rows)] = sessions.run(form, execution)
    return logits


@dataclass
class References:
    """Answers of the plain FP32 graph (TF32 off), each row alone."""

    sessions: Sessions | None
    settings: Settings
    known: dict[tuple[int, bool], Array] = field(default_factory=dict)

    def get(self, rows: int, documents: bool) -> Array:
        """Return the answers to the first batch of ``rows`` rows."""
        key = (rows, documents)
        if key not in self.known:
            batch = draw_batch(rows, batch_seed(rows, 0), documents)
            plan = plan_alone(batch, StepCost(0, 0))
            assert self.sessions is not None
            self.known[key] = answer(self.sessions, Form.PADDED, plan)
        return self.known[key]


def batch_seed(rows: int, number: int) -> int:
    """Return the seed of a drawn batch."""
    return 1000 * rows + number


def make_references(settings: Settings, part: PartFile) -> References:
    """Compute all reference answers with a plain FP32 session of their own."""
    exact = Settings(
        settings.shape,
        Precision.FP32,
        [form for form in Form if form is not Form.PADDED],
        settings.deadline,
        settings.rehearse,
        counts_nodes=False,
    )
    quiet = PartFile(Path(tempfile.mkdtemp()) / "reference.json")
    references = References(Sessions(exact, quiet), settings)
    for rows in settings.rows:
        references.get(rows, documents=False)
    for rows in settings.document_rows:
        references.get(rows, documents=True)
    references.sessions = None
    part.put("referenceSize", float(np.abs(references.get(settings.rows[0], False)).max()))
    return references


def measure_variants(
    sessions: Sessions, rows: int, documents: bool, cost: StepCost, references: References
) -> dict[str, Any]:
    """Measure every variant on the same batches, interleaved; adds the largest difference."""
    settings = references.settings
    batches = [draw_batch(rows, batch_seed(rows, n), documents) for n in range(BATCHES)]
    cases: dict[str, list[Callable[[], object]]] = {}
    notes: dict[str, dict[str, Any]] = {}
    for variant in VARIANTS:
        if variant.form not in sessions:
            continue
        plans = [variant.plan(batch, cost) for batch in batches]
        try:
            with sessions._part.attempting(variant.form):
                found = [answer(sessions, variant.form, plan) for plan in plans]
        except Exception as error:
            sessions.failed(variant.form, error)
            continue
        difference = np.abs(found[0] - references.get(rows, documents)).max()
        notes[variant.name] = {
            "maxDifference": float(f"{difference:.3g}"),
            "executions": statistics.mean(len(plan) for plan in plans),
        }
        cases[variant.name] = [
            lambda f=variant.form, p=plan: answer(sessions, f, p)  # type: ignore[misc]
            for plan in plans
        ]
    compared = compare(interleave(cases, settings.seconds), BASELINE)
    for name, one in compared.items():
        one |= notes[name]
    fill = [batch.lengths.sum() / (batch.rows * batch.longest) for batch in batches]
    return {
        "rows": rows,
        "lengths": "documents" if documents else "lognormal",
        "meanTokens": round(float(np.mean([batch.lengths.mean() for batch in batches])), 1),
        "fill": round(float(np.mean(fill)), 3),
        "variants": compared,
    }


def show_variants(found: Mapping[str, Any]) -> None:
    """Print one line per variant."""
    say(f"  {found['lengths']} rows {found['rows']}, fill {found['fill']}")
    for name, one in found["variants"].items():
        say(
            f"    {name:20} {one['medianMs']:8.2f} ms, gain {one['gain']:6.2f} "
            f"({one['gainP10']:.2f}-{one['gainP90']:.2f}), x{one['executions']:.1f}, "
            f"max diff {one['maxDifference']}"
        )


def measure_offline(sessions: Sessions, settings: Settings) -> dict[str, dict[str, float]]:
    """Measure one pass over many texts: as they come, and sorted by length (the upper limit)."""
    texts = draw_batch(settings.offline_texts, SEED)
    arrival = range(texts.rows)
    by_length = np.argsort(texts.lengths, kind="stable").tolist()
    chunks = {
        "arrival-64": _chunks(texts, arrival, OFFLINE_ROWS, None),
        "sorted-64": _chunks(texts, by_length, OFFLINE_ROWS, None),
        "sorted-tokens": _chunks(texts, by_length, texts.rows, OFFLINE_TOKENS),
        "arrival-tokens": _chunks(texts, arrival, texts.rows, OFFLINE_TOKENS),
    }
    pairs = [
        (Form.PADDED, "arrival-64"),
        (Form.PADDED, "sorted-64"),
        (Form.PADDED, "sorted-tokens"),
        (Form.FLAT, "arrival-64"),
        (Form.FLAT, "sorted-64"),
        (Form.PACKED_HOST, "arrival-64"),
        (Form.PACKED_HOST, "arrival-tokens"),
        (Form.PACKED_HOST, "sorted-64"),
        (Form.PACKED_HOST, "sorted-tokens"),
        (Form.PADDED_FUSED, "sorted-tokens"),
    ]
    found: dict[str, dict[str, float]] = {}
    for form, cut in pairs:
        if form not in sessions or settings.left_s < 0:
            continue
        executions = split_batch(texts, chunks[cut])

        def run(f: Form = form, parts: list[Execution] = executions) -> None:
            for execution in parts:
                sessions.run(f, execution)

        try:
            run()
            seconds = min(time_run(run) for _ in range(2))
        except Exception as error:
            sessions.failed(form, error)
            continue
        found[f"{form} {cut}"] = {
            "executions": len(executions),
            "seconds": round(seconds, 4),
            "tokensPerSecond": round(float(texts.lengths.sum()) / seconds),
            "textsPerSecond": round(texts.rows / seconds),
        }
        say(f"  offline {form} {cut}: {found[f'{form} {cut}']}")
    return found


def _chunks(
    texts: Batch, order: Sequence[int], most_rows: int, most_tokens: int | None
) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    width = 0
    for row in order:
        width = max(width, int(texts.lengths[row]))
        full = len(parts[-1]) >= most_rows
        if full or (most_tokens and (len(parts[-1]) + 1) * width > most_tokens):
            parts.append([])
            width = int(texts.lengths[row])
        parts[-1].append(row)
    return [part for part in parts if part]


def run_block(settings: Settings, part: PartFile) -> None:
    """Measure one model at one precision: sections in the order of their value."""
    say(f"{settings.shape.name} {settings.precision}")
    references = make_references(settings, part)
    sessions = Sessions(settings, part)
    part.put("placement", sessions.placement)
    cost = step_cost(sessions)
    part.put("stepCost", {"launchUs": cost.launch_s * 1e6, "tokenUs": cost.token_s * 1e6})
    say(f"  step: {cost.launch_s * 1e6:.0f} us + {cost.token_s * 1e6:.3f} us per token")
    part.data["cases"] = []

    def variants(rows: int, documents: bool) -> None:
        if settings.left_s > 0:
            found = measure_variants(sessions, rows, documents, cost, references)
            show_variants(found)
            part.data["cases"].append(found)
            part.save()

    for rows in settings.rows[:2]:
        variants(rows, documents=False)
    measure_grid(sessions, settings, part)
    for rows in settings.rows[2:]:
        variants(rows, documents=False)
    variants(settings.document_rows[0], documents=True)
    if settings.left_s > 0:
        part.put("offline", measure_offline(sessions, settings))
    for rows in settings.document_rows[1:]:
        variants(rows, documents=True)
    part.put("complete", settings.left_s > 0)
