"""Every padding mode gives the golden answers, for single and for batched requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from e2e.suite.pipelines import check_answer, golden, merged, sample
from tests.support.serving import sample_sources, served
from triton_pipelines.triton.client import TritonClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

MODES: Mapping[str, Mapping[str, Any]] = {
    "Ragged": {"padding": "Ragged"},
    "Fixed": {"padding": "Fixed"},
    "Bucketed": {"padding": "Bucketed", "buckets": [8, 16, 32, 160]},
    "Longest": {"padding": "Longest"},
}
SECONDS = 100.0
# Requests as numbers of golden cases, the longest text (cut at maxLength) being number 0: alone,
# with short ones, all short ones at once.
BATCHES = [
    [0],
    [1, 19, 4],
    *([[number] for number in range(2, 19)]),
    list(range(2, 19)),
    [18, 18, 3],
]
# At Fixed every row costs as much as the longest text, and so it does at Longest in its company.
FEW = [[0], [19, 4], [9], [1]]
COSTLY = ("Fixed", "Longest")


def array(rows: Sequence[Mapping[str, Any]]) -> np.ndarray[Any, Any]:
    return np.array([[row["text"].encode()] for row in rows], dtype=np.object_)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the modes share what they fetch."""
    return tmp_path_factory.mktemp("downloads")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sentiment", "embedding"])
async def test_golden_answers(name: str, mode: str, tmp_path: Path, downloads: Path) -> None:
    document = sample(name)
    document["spec"] = merged(document["spec"], {"tokenizer": MODES[mode]})
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    cases = golden(name, 20)
    with served(
        file, *sample_sources(), f"--folder={downloads / name}", log=tmp_path / "serve.log"
    ) as running:
        assert f"padding {mode} " in running.said
        async with TritonClient(running.endpoint.grpc, deadline_s=SECONDS) as client:

            async def ask(numbers: Sequence[int]) -> None:
                rows = [cases[number] for number in numbers]
                check_answer(name, rows, await client.infer(name, {"TEXT": array(rows)}))

            await asyncio.gather(
                *(ask(numbers) for numbers in (FEW if mode in COSTLY else BATCHES))
            )
            # The shorter ones once more in one another's company alone.
            await ask(list(range(2, 8 if mode == "Fixed" else 19)))
