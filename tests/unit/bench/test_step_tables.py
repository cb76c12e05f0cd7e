"""The tables of step times: rows in order, blocks without a part, the place of a result."""

from __future__ import annotations

from typing import Any

from bench import step_tables


def case(rows: int, lengths: str) -> dict[str, Any]:
    variants = {name: {"medianMs": 2.0, "gain": 1.5} for name in step_tables.GAINS}
    padded = {"padded-longest": {"medianMs": 3.0, "gain": 1.0}}
    return {"rows": rows, "lengths": lengths, "variants": {**variants, **padded}}


def found() -> dict[str, Any]:
    grid = [
        {"rows": rows, "tokens": tokens, "medianMs": rows * tokens / 1000}
        for rows in step_tables.GRID_ROWS
        for tokens in step_tables.GRID_TOKENS
    ]
    offline = {key: {"textsPerSecond": 12345} for key in step_tables.OFFLINE}
    cases = [case(32, "documents"), case(32, "lognormal"), case(8, "lognormal")]
    return {
        "environment": {
            "commit": "abc1234",
            "date": "2026-11-23",
            "onnxruntime-gpu": "1.2",
            "torch": "2.3",
            "gpu": ["name, driver_version", "NVIDIA T4, 580.1, 15 GiB"],
        },
        "blocks": {
            "Small:FP16": {"cases": cases, "grid": grid, "offline": offline},
            "Small:TF32": {"cases": [case(8, "lognormal")]},
            "Small:torch": {"cases": [{"rows": 8, "lengths": "lognormal", "variants": {}}]},
        },
    }


def test_gains_are_in_the_order_of_the_batches() -> None:
    head, rows = step_tables.gains(found())
    assert [row[:3] for row in rows] == [
        ("Small, FP16", "8 short texts", "3.00 ms"),
        ("Small, FP16", "32 short texts", "3.00 ms"),
        ("Small, FP16", "32 documents", "3.00 ms"),
        ("Small, TF32", "8 short texts", "3.00 ms"),
    ]
    assert {len(row) for row in rows} == {len(head)}


def test_a_block_that_was_cut_short_has_no_step_times() -> None:
    head, rows = step_tables.costs(found())
    assert {row[0] for row in rows} == {"Small, FP16"}
    assert {len(row) for row in rows} == {len(head)}
    head, rows = step_tables.offline(found())
    assert head == ("Texts per second", "Small, FP16")
    assert rows[0] == ("padded, 64 texts as they arrive", "12,345")


def test_the_place_names_gpu_and_commit() -> None:
    text = step_tables.place(found())
    assert "NVIDIA T4, driver 580.1" in text
    assert "commit abc1234" in text
