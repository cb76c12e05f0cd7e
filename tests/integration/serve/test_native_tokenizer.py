"""A sample on `tritonpipe serve` gives its answers with the native tokenizer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from e2e.suite.clients import CLIENTS
from e2e.suite.pipelines import check_answer, golden
from tests.support.serving import SAMPLES, sample_sources, served
from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND

pytestmark = pytest.mark.integration
SHORT = 40  # tokens


def test_the_native_tokenizer_gives_the_sample_s_answers(tmp_path: Path) -> None:
    file = SAMPLES / "sentiment.yaml"
    rows = golden("sentiment", 8, longest=SHORT)
    with served(file, *sample_sources(), log=tmp_path / "serve.log") as running:
        for client in CLIENTS.values():
            answer = client(running.endpoint, running.model, [row["text"] for row in rows])
            check_answer("sentiment", rows, answer)
        models = httpx.get(f"{running.model_url.rpartition('/')[0]}/tokenizer/config").json()
        assert models["backend"] == NATIVE_TOKENIZER_BACKEND
