"""Configs as people write them: templates, comments, braces, fields of other releases."""

from __future__ import annotations

import pytest

from tests.support.messages import Messages
from triton_pipelines.tools.importer.import_notes import (
    ModelRepositoryError,
    NoteSeverity,
    UnfilledTemplateError,
)
from triton_pipelines.tools.importer.textproto import read_config

PLAIN = 'name: "m"\nbackend: "python"\n'
ENSEMBLE = 'platform: "ensemble"\nensemble_scheduling { step { model_name: "a" } }\n'


def test_a_plain_config_is_read_without_a_word() -> None:
    read = read_config(PLAIN, "m/config.pbtxt", {})
    assert (read.config.name, read.notes, read.misplaced) == ("m", (), None)


def test_templates_in_texts_stay_and_are_named() -> None:
    read = read_config(
        PLAIN + 'parameters { key: "dir" value { string_value: "${dir}/x" } }\n# ${comment}\n',
        "m/config.pbtxt",
        {},
    )
    assert read.config.parameters["dir"].string_value == "${dir}/x"
    assert read.templates == (("dir", "m/config.pbtxt:3"),)


def test_templates_elsewhere_are_asked_for_together(messages: Messages) -> None:
    with messages.raises(UnfilledTemplateError, match=r"m/config\.pbtxt"):
        read_config(
            "max_batch_size: ${rows}\ninstance_group { count: ${count} }\n# ${other}\n",
            "m/config.pbtxt",
            {},
        )


def test_templates_are_filled_everywhere() -> None:
    read = read_config(
        'max_batch_size: ${n}\ndefault_model_filename: "model_${n}.onnx"\n',
        "m/config.pbtxt",
        {"n": "4"},
    )
    assert (read.config.max_batch_size, read.config.default_model_filename, read.notes) == (
        4,
        "model_4.onnx",
        (),
    )


@pytest.mark.parametrize(
    "batcher",
    [
        "dynamic_batching { preferred_batch_size: [ 4 ] }",
        "dynamic_batching: {\n  # }\n  preferred_batch_size: 4\n}",
        "dynamic_batching < preferred_batch_size: 4 >",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_batcher_of_an_ensemble_is_set_aside(batcher: str, first: bool) -> None:
    tricky = 'parameters { key: "text" value { string_value: "dynamic_batching { \\" }" } }\n'
    text = f"{tricky}{batcher}\n{ENSEMBLE}" if first else f"{ENSEMBLE}{tricky}{batcher}\n"
    read = read_config(text, "m/config.pbtxt", {})
    assert read.config.ensemble_scheduling.step[0].model_name == "a"
    assert list(read.misplaced.dynamic_batching.preferred_batch_size) == [4]
    assert read.config.parameters["text"].string_value == 'dynamic_batching { " }'


def test_two_schedulers_of_a_model_are_refused(messages: Messages) -> None:
    with messages.raises(ModelRepositoryError, match="sequence_batching"):
        read_config("dynamic_batching { }\nsequence_batching { }\n", "m/config.pbtxt", {})


def test_unknown_fields_are_named_with_their_line() -> None:
    read = read_config(PLAIN + "tomorrow { deep: 1 }\n", "m/config.pbtxt", {})
    assert [(note.where, note.severity) for note in read.notes] == [
        ("m/config.pbtxt:3", NoteSeverity.LOST)
    ]
    assert "tomorrow" in read.notes[0].text
    assert read.config.backend == "python"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("name: 7\n", r"m/config\.pbtxt"),
        ("input {\n  dims: x\n}\n", r"m/config\.pbtxt"),
        ("input {\n", r"m/config\.pbtxt"),
        ("tomorrow: 1\nmax_batch_size: x\n", r"m/config\.pbtxt"),
    ],
)
def test_what_is_no_config_is_named_with_its_line(
    text: str, reported: str, messages: Messages
) -> None:
    with messages.raises(ModelRepositoryError, match=reported):
        read_config(text, "m/config.pbtxt", {})
