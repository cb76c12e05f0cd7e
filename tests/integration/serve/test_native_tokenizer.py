"""A sample on `tritonpipe serve` with the native tokenizer gives the sample's answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from e2e.local import native
from e2e.suite.clients import CLIENTS
from e2e.suite.pipelines import check_answer, golden
from tests.support.serving import SAMPLES, sample_sources, served
from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND

pytestmark = pytest.mark.integration
SHORT = 40  # tokens


@pytest.mark.proves("spec.tokenizer.implementation", "behaviour")
def test_the_sample_answers_as_with_the_python_step(tmp_path: Path) -> None:
    native.install()
    text = (SAMPLES / "sentiment.yaml").read_text(encoding="utf-8")
    file = tmp_path / "sentiment.yaml"
    file.write_text(text.replace("  tokenizer:\n", "  tokenizer:\n    implementation: Native\n"))
    assert file.read_text(encoding="utf-8") != text
    rows = golden("sentiment", 8, longest=SHORT)
    with served(file, *sample_sources(), log=tmp_path / "serve.log") as running:
        for client in CLIENTS.values():
            answer = client(running.endpoint, running.model, [row["text"] for row in rows])
            check_answer("sentiment", rows, answer)
        models = httpx.get(f"{running.model_url.rpartition('/')[0]}/tokenizer/config").json()
        assert models["backend"] == NATIVE_TOKENIZER_BACKEND
