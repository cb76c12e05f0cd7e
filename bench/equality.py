"""S6: how far the output of a batched text differs from that of the same text alone.

Measured in every padding mode on a real Triton with the sample's real model. Each ensemble gets the
same texts in client batches of several sizes, 64 requests at once. The reference is the plain
ensemble with one text at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import numpy as np

from bench.padding import PADS
from bench.results import thresholds, write
from bench.variants import LENGTHS, Variant, described, served
from triton_pipelines.tools.loadgen import generate_texts
from triton_pipelines.triton.client import TritonClient

ROWS = int(os.environ.get("ROWS", "192"))
SIZES = (1, 1, 2, 3, 8)
MOST = 1e-5
SLOW = 4
"""Padding to 512 computes so many times more that it gets this fraction of the texts."""
DEADLINE_SECONDS = 300.0
VARIANTS = (
    Variant("ragged", mode="Runner"),
    Variant("longest", padding="Longest", mode="Runner"),
    Variant("bucketed", padding="Bucketed", mode="Runner"),
    Variant("auto", mode="Runner", ragged=True, parameters=PADS),
    Variant(
        "together", mode="Runner", ragged=True, parameters={**PADS, "run_cost_tokens": "10000"}
    ),
    Variant("fixed", padding="Fixed", mode="Runner"),
)


def run() -> None:
    """Measure, print and write S6; 2 minutes."""
    rows = generate_texts(LENGTHS.sample(ROWS, 7), 7)
    with served(VARIANTS) as server:
        differences = asyncio.run(_differences(server.grpc_address, rows))
    worst = max(differences.values())
    write(
        "S6",
        [worst * 1e6],
        unit="millionths of a logit",
        goal=thresholds()["S6"]["goal"],
        met=worst <= MOST,
        workload=(
            f"{len(rows)} {described()}; client batches of {', '.join(map(str, SIZES))} rows, "
            "concurrently; the sample's real model"
        ),
        stand_ins=["Triton's ONNX Runtime backend: replaced by the project's ONNX runner"],
        detail={
            "differences": {name: float(f"{value:.3g}") for name, value in differences.items()},
            "exact": float(f"{worst:.3g}"),
        },
    )
    print(f"S6: {worst:.2g} (goal {MOST:g}): {differences}")


async def _differences(address: str, rows: Sequence[str]) -> dict[str, float]:
    async with TritonClient(address, deadline_s=DEADLINE_SECONDS) as client:

        async def logits(name: str, batch: Sequence[str]) -> np.ndarray:  # type: ignore[type-arg]
            answer = await client.infer(
                name, {"TEXT": np.array([[row.encode()] for row in batch], dtype=np.object_)}
            )
            return np.asarray(answer["logits"])

        truth = np.concatenate([await logits(VARIANTS[0].name, [row]) for row in rows])
        found = {}
        for variant in VARIANTS:
            some = rows[:: SLOW if variant.padding == "Fixed" else 1]
            batches, start, number = [], 0, 0
            while start < len(some):
                batches.append(some[start : start + SIZES[number % len(SIZES)]])
                start, number = start + len(batches[-1]), number + 1
            answers = await asyncio.gather(*(logits(variant.name, batch) for batch in batches))
            found[variant.name] = float(
                np.abs(
                    np.concatenate(answers) - truth[:: SLOW if variant.padding == "Fixed" else 1]
                ).max()
            )
            print(
                f"{variant.name:10} {found[variant.name]:.2g} in {len(batches)} requests",
                flush=True,
            )
    return found
