"""A sample on `tritonpipe serve` gives the same answers with each implementation."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml

from e2e.suite.clients import CLIENTS
from e2e.suite.pipelines import check_answer, golden
from tests.support.serving import SAMPLES, sample_sources, served
from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND

pytestmark = pytest.mark.integration
SHORT = 40  # tokens


@pytest.mark.proves("spec.tokenizer.implementation", "behaviour")
@pytest.mark.parametrize(
    ("implementation", "backend"),
    [(None, NATIVE_TOKENIZER_BACKEND), ("Python", "python")],
)
def test_each_implementation_gives_the_sample_s_answers(
    tmp_path: Path, implementation: str | None, backend: str
) -> None:
    document = yaml.safe_load((SAMPLES / "sentiment.yaml").read_text(encoding="utf-8"))
    if implementation is not None:
        document["spec"]["tokenizer"]["implementation"] = implementation
    file = tmp_path / "sentiment.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    rows = golden("sentiment", 8, longest=SHORT)
    with served(file, *sample_sources(), log=tmp_path / "serve.log") as running:
        for client in CLIENTS.values():
            answer = client(running.endpoint, running.model, [row["text"] for row in rows])
            check_answer("sentiment", rows, answer)
        models = httpx.get(f"{running.model_url.rpartition('/')[0]}/tokenizer/config").json()
        assert models["backend"] == backend
