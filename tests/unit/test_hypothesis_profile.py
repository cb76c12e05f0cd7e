"""Check that random examples are the same whichever modules are imported."""

import sys
import types
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal import constants_ast

CONSTANT = "of a module"


def drawn() -> list[str]:
    texts: list[str] = []

    @given(st.text(max_size=40))
    @settings(max_examples=300)
    def draw(text: str) -> None:
        texts.append(text)

    draw()
    return texts


@pytest.mark.skipif(not settings().derandomize, reason="new examples are wanted")
def test_a_local_module_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    file = tmp_path / "imported_later.py"
    file.write_text(f"TEXTS = {[f'{CONSTANT} {number}' for number in range(50)]}\n")
    module = types.ModuleType("imported_later")
    module.__file__ = str(file)
    assert constants_ast.is_local_module_file(str(file))
    monkeypatch.setitem(sys.modules, "imported_later", module)
    assert drawn() == before


def test_a_failure_can_be_repeated_from_its_output() -> None:
    profile = settings()
    assert profile.print_blob
    assert Phase.explain not in profile.phases
