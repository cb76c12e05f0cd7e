"""`TOKENIZER` selects the implementation of the pipelines of tests and benchmarks."""

from __future__ import annotations

from typing import Any

import pytest

from e2e import tokenizer
from e2e.load import workloads
from e2e.suite import pipelines, tiny
from triton_pipelines.api.tokenizer import TokenizerImplementation

PYTHON, NATIVE = TokenizerImplementation.PYTHON, TokenizerImplementation.NATIVE


def test_the_default_is_native() -> None:
    assert tokenizer.chosen({}) is NATIVE
    assert tokenizer.chosen({"TOKENIZER": ""}) is NATIVE
    assert tokenizer.chosen({"TOKENIZER": "Python"}) is PYTHON


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match="TOKENIZER=native: use Python or Native"):
        tokenizer.chosen({"TOKENIZER": "native"})


@pytest.mark.parametrize("selected", TokenizerImplementation)
def test_pipelines_get_the_selected_implementation(
    monkeypatch: pytest.MonkeyPatch, selected: TokenizerImplementation
) -> None:
    monkeypatch.setattr(tokenizer, "IMPLEMENTATION", selected)
    expected = PYTHON if selected is PYTHON else None
    documents = [
        pipelines.small("sentiment"),
        tiny.document(tokenizer={"padding": "Ragged"}),
        *(make().document for make in workloads.WORKLOADS.values()),
    ]
    assert [item["spec"]["tokenizer"].get("implementation") for item in documents] == (
        [expected] * len(documents)
    )


def test_each_implementation_has_results_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (tokenizer.suffix(), tokenizer.command("C4")) == ("-native", "make bench ID=C4")
    monkeypatch.setattr(tokenizer, "IMPLEMENTATION", PYTHON)
    assert tokenizer.suffix() == ""
    assert tokenizer.command("C4") == "TOKENIZER=Python make bench ID=C4"


@pytest.mark.parametrize("spec", [{}, {"tokenizer": None}, {"tokenizer": {"type": "Python"}}])
def test_a_spec_without_a_built_in_tokenizer_keeps_it(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    monkeypatch.setattr(tokenizer, "IMPLEMENTATION", PYTHON)
    assert tokenizer.with_implementation(spec) == spec
