"""The implementation changes what runs the tokenizer, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import graph, options, pipeline
from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND, NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.api.tokenizer import TokenizerImplementation
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.graph.quantities import bytes_of
from triton_pipelines.compile.render.model_config import configs, parse
from triton_pipelines.compile.render.model_repository import load_plan, repository

NATIVE: dict[str, Any] = {"tokenizer": {"truncation": "Refuse", "instances": {"max": 4}}}
PYTHON: dict[str, Any] = {"tokenizer": {**NATIVE["tokenizer"], "implementation": "Python"}}


@pytest.mark.proves("spec.tokenizer.implementation", "parsed")
def test_only_the_backend_differs_in_the_configs() -> None:
    python, native = configs(graph(**PYTHON)), configs(graph(**NATIVE))
    config = parse(native["tokenizer"])
    assert config.backend == NATIVE_TOKENIZER_BACKEND
    config.backend = "python"
    assert config == parse(python.pop("tokenizer"))
    native.pop("tokenizer")
    assert native == python


def test_the_plan_names_the_library_and_no_python_file() -> None:
    one = graph(**NATIVE)
    files = repository(one)
    assert "tokenizer/1/model.py" not in files
    (library,) = load_plan(one, files, "nlp", "abc").libraries
    assert library.path == f"tokenizer/1/{NATIVE_TOKENIZER_LIBRARY}"
    assert (library.step, library.field) == ("tokenizer", "spec.tokenizer.implementation")


def test_plans_of_python_steps_keep_their_bytes() -> None:
    one = graph(**PYTHON)
    assert "libraries" not in load_plan(one, repository(one), "nlp", "abc").to_json()


@pytest.mark.parametrize("default", TokenizerImplementation)
@pytest.mark.parametrize("written", [None, *TokenizerImplementation])
def test_the_default_applies_only_to_a_tokenizer_without_the_field(
    default: TokenizerImplementation, written: TokenizerImplementation | None
) -> None:
    fields = {} if written is None else {"implementation": written.value}
    one = build(pipeline(tokenizer=fields), options(tokenizer=default))
    assert one.tokenizer is not None
    assert one.tokenizer.native == ((written or default) is TokenizerImplementation.NATIVE)


def test_native_instances_are_sized_without_shared_memory() -> None:
    python = sizes(pipeline(**PYTHON), graph(**PYTHON))
    native = sizes(pipeline(**NATIVE), graph(**NATIVE))
    assert native.cpu_limit == python.cpu_limit
    assert native.memory_request == python.memory_request
    saved = bytes_of(python.shared_memory) - bytes_of(native.shared_memory)
    assert saved == 4 * 64 * 1024**2
