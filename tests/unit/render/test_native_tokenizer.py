"""The native tokenizer runs as a backend library; only custom code runs as Python processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import graph, pipeline
from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND, NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.graph.quantities import bytes_of
from triton_pipelines.compile.render.model_config import configs, parse
from triton_pipelines.compile.render.model_repository import load_plan, repository

NATIVE: dict[str, Any] = {"tokenizer": {"instances": {"max": 4}}}
CUSTOM: dict[str, Any] = {
    "tokenizer": {
        **NATIVE["tokenizer"],
        "type": "Python",
        "source": None,
        "python": {"code": {"inline": "x = 1"}},
        "outputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
    }
}


@pytest.mark.parametrize(
    ("spec", "backend"), [(NATIVE, NATIVE_TOKENIZER_BACKEND), (CUSTOM, "python")]
)
def test_the_backend_of_a_tokenizer(spec: dict[str, Any], backend: str) -> None:
    assert parse(configs(graph(**spec))["tokenizer"]).backend == backend


def test_the_plan_names_the_library_and_no_python_file() -> None:
    one = graph(**NATIVE)
    files = repository(one)
    assert "tokenizer/1/model.py" not in files
    (library,) = load_plan(one, files, "nlp", "abc").libraries
    assert library.path == f"tokenizer/1/{NATIVE_TOKENIZER_LIBRARY}"
    assert (library.step, library.field) == ("tokenizer", "spec.tokenizer")


def test_plans_of_custom_code_have_no_library() -> None:
    one = graph(**CUSTOM)
    assert "libraries" not in load_plan(one, repository(one), "nlp", "abc").to_json()


def test_native_instances_are_sized_without_shared_memory() -> None:
    custom = sizes(pipeline(**CUSTOM), graph(**CUSTOM))
    native = sizes(pipeline(**NATIVE), graph(**NATIVE))
    assert native.cpu_limit == custom.cpu_limit
    assert native.memory_request == custom.memory_request
    saved = bytes_of(custom.shared_memory) - bytes_of(native.shared_memory)
    assert saved == 4 * 64 * 1024**2
