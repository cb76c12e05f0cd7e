"""Ensembles that ensembles call become one: who reads what stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import Messages
from triton_pipelines.tools.importer.import_notes import ModelRepositoryError, NoteSeverity
from triton_pipelines.tools.importer.model_selection import select_models
from triton_pipelines.tools.importer.repository_reader import read_repository


def model(name: str, inputs: str, outputs: str) -> str:
    """The config of a python model whose tensors are texts of one row."""
    reported = [
        f'{kind} [{{ name: "{tensor}" data_type: TYPE_STRING dims: [1] }}]'
        for kind, tensors in (("input", inputs), ("output", outputs))
        for tensor in tensors.split()
    ]
    return f'name: "{name}" backend: "python" max_batch_size: 8 ' + " ".join(reported)


def step(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    """One step of an ensemble."""
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, named in (("input_map", inputs), ("output_map", outputs))
        for key, value in named.items()
    ]
    return f'step {{ model_name: "{name}" model_version: -1 {" ".join(maps)} }}'


def ensemble(inputs: str, outputs: str, *steps: str, more: str = "") -> str:
    """The config of an ensemble."""
    named = model("", inputs, outputs).replace('""', '"NAME"')
    return f"{named} ensemble_scheduling {{ {' '.join(steps)} }} {more}".replace(
        'backend: "python"', 'platform: "ensemble"'
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a repository in which `outer` calls `inner`, which calls `deep`.

    All tensors inside have the same names, and one outer tensor has the name of an inner one.
    """
    configs = {
        "clean": model("clean", "IN", "OUT"),
        "cut": model("cut", "IN", "OUT"),
        "score": model("score", "IN", "OUT"),
        "deep": ensemble(
            "A",
            "B",
            step("cut", {"IN": "A"}, {"OUT": "x"}),
            step("score", {"IN": "x"}, {"OUT": "B"}),
        ),
        "inner": ensemble(
            "A", "B", step("clean", {"IN": "A"}, {"OUT": "x"}), step("deep", {"A": "x"}, {"B": "B"})
        ),
        "last": model("last", "IN", "OUT"),
        "outer": ensemble(
            "TEXT",
            "ANSWER",
            step("inner", {"A": "TEXT"}, {"B": "x"}),
            step("last", {"IN": "x"}, {"OUT": "ANSWER"}),
        ),
    }
    for name, config in configs.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config.replace('"NAME"', f'"{name}"'))
        if "ensemble" not in config:
            (tmp_path / name / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    return tmp_path


def wires(config: Any) -> Iterator[tuple[str, str, str, str]]:
    """Return (producer, output, reader, input) of every tensor; clients have the empty name."""
    made = {
        value: (one.model_name, key)
        for one in config.ensemble_scheduling.step
        for key, value in one.output_map.items()
    }
    made |= {tensor.name: ("", tensor.name) for tensor in config.input}
    for one in config.ensemble_scheduling.step:
        yield from ((*made[value], one.model_name, key) for key, value in one.input_map.items())
    yield from ((*made[tensor.name], "", tensor.name) for tensor in config.output)


def test_the_outer_ensemble_is_taken_with_all_steps(folder: Path) -> None:
    choice = select_models(read_repository(folder), None)
    assert choice.entry.name == "outer"
    assert [one.name for one in choice.steps] == ["clean", "cut", "score", "last"]
    assert set(wires(choice.entry.config)) == {
        ("", "TEXT", "clean", "IN"),
        ("clean", "OUT", "cut", "IN"),
        ("cut", "OUT", "score", "IN"),
        ("score", "OUT", "last", "IN"),
        ("last", "OUT", "", "ANSWER"),
    }
    assert choice.unused == ()
    assert [(note.where, note.severity, note.text.split()[1]) for note in choice.notes] == [
        ("outer/config.pbtxt: ensemble_scheduling", NoteSeverity.CHANGED, "'inner'"),
        ("outer/config.pbtxt: ensemble_scheduling", NoteSeverity.CHANGED, "'deep'"),
    ]


def test_an_inner_one_may_be_named(folder: Path) -> None:
    choice = select_models(read_repository(folder), "inner")
    assert [one.name for one in choice.steps] == ["clean", "cut", "score"]
    assert set(choice.unused) == {"outer", "last"}


def test_what_is_read_is_left_as_it_was(folder: Path) -> None:
    repository = read_repository(folder)
    before = repository.models["outer"].config.SerializeToString(deterministic=True)
    select_models(repository, None)
    assert repository.models["outer"].config.SerializeToString(deterministic=True) == before


def test_an_ensemble_called_twice_has_each_of_its_models_once(folder: Path) -> None:
    path = folder / "outer" / "config.pbtxt"
    again = step("inner", {"A": "TEXT"}, {"B": "y"})
    path.write_text(
        path.read_text().replace("ensemble_scheduling {", f"ensemble_scheduling {{ {again}")
        + ' output [{ name: "y" data_type: TYPE_STRING dims: [1] }]'
    )
    choice = select_models(read_repository(folder), None)
    called = [one.model_name for one in choice.entry.config.ensemble_scheduling.step]
    assert called == ["clean", "cut", "score", "clean", "cut", "score", "last"]
    assert [one.name for one in choice.steps] == ["clean", "cut", "score", "last"]


def test_an_unconnected_optional_input_is_not_read(folder: Path) -> None:
    path = folder / "inner" / "config.pbtxt"
    text = path.read_text().replace(
        'input [{ name: "A"',
        'input [{ name: "HINT" data_type: TYPE_STRING dims: [1] optional: true }]'
        ' input [{ name: "A"',
    )
    clean = folder / "clean" / "config.pbtxt"
    clean.write_text(
        clean.read_text()
        + ' input [{ name: "HINT" data_type: TYPE_STRING dims: [1] optional: true }]'
    )
    path.write_text(
        text.replace(
            'input_map { key: "IN" value: "A" }',
            'input_map { key: "IN" value: "A" } input_map { key: "HINT" value: "HINT" }',
        )
    )
    choice = select_models(read_repository(folder), None)
    assert dict(choice.entry.config.ensemble_scheduling.step[0].input_map) == {"IN": "TEXT"}


def test_a_cache_within_is_told(folder: Path) -> None:
    path = folder / "deep" / "config.pbtxt"
    path.write_text(path.read_text() + " response_cache { enable: true }")
    choice = select_models(read_repository(folder), None)
    assert [(note.where, note.severity) for note in choice.notes][-1] == (
        "deep/config.pbtxt: response_cache",
        NoteSeverity.LOST,
    )


def test_a_circle_is_refused(folder: Path, messages: Messages) -> None:
    path = folder / "deep" / "config.pbtxt"
    path.write_text(
        path.read_text()
        .replace('model_name: "cut"', 'model_name: "inner"')
        .replace('key: "IN" value: "A"', 'key: "A" value: "A"')
        .replace('key: "OUT" value: "x"', 'key: "B" value: "x"')
    )
    with messages.raises(ModelRepositoryError):
        select_models(read_repository(folder), "outer")
