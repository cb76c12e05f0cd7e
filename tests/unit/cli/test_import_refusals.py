"""Test what `tritonpipe import` refuses: one message with the file, the problem and the remedy.

Each test changes one thing in a small repository of a tokenizer, a model and their ensemble.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.handmade_repositories import (
    CODE,
    ENSEMBLE,
    FILES,
    MODEL,
    TOKENIZER,
    replaced,
    write_files,
)
from tests.support.messages import Messages
from tests.unit.cli.conftest import Import, Run, spec_of


def test_an_output_that_the_model_does_not_have_is_named(
    import_of: Import, messages: Messages
) -> None:
    ended = import_of(
        replaced("sentiment/config.pbtxt", 'key: "input_ids" value: "ids"', 'key: "x" value: "ids"')
    )
    assert (ended.code, ended.out) == (2, "")
    assert "ensemble_scheduling.step[0].output_map" in ended.err
    messages.check(ended.err)


DEFECTS = {
    "syntax": {"extra/config.pbtxt": "input: {"},
    "name": {"extra/config.pbtxt": 'name: "other" backend: "python"'},
    "no tensors": {"extra/config.pbtxt": 'backend: "python"', "extra/1/model.py": CODE},
    "rule": {"extra/config.pbtxt": MODEL.replace("dims: 2", "dims: 0")},
    "template": {"extra/config.pbtxt": MODEL.replace("max_batch_size: 8", "max_batch_size: ${n}")},
    "file": {"extra/config.pbtxt.template": MODEL},
    "engine": {"extra/config.pbtxt": 'backend: "vllm"', "extra/1/model.json": "{"},
    "onnx": {"extra/1/model.onnx": "not a graph"},
}


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_a_broken_model_can_be_left_out(import_of: Import, defect: str) -> None:
    ended = import_of(DEFECTS[defect])
    assert (ended.code, ended.out) == (2, "")
    assert "extra" in ended.err
    assert "auxiliaryModels" not in spec_of(import_of(DEFECTS[defect], "--without=extra"))


def test_bytes_that_are_no_text_are_named(
    tmp_path: Path, tritonpipe: Run, messages: Messages
) -> None:
    folder = write_files(tmp_path, {**FILES, "extra/1/": ""})
    (folder / "extra" / "config.pbtxt").write_bytes(b"\xff\xfe")
    ended = tritonpipe("import", str(folder))
    assert ended.code == 2
    assert "extra/config.pbtxt" in ended.err
    messages.check(ended.err)
    assert tritonpipe("import", str(folder), "--without=extra").code == 0


def test_a_model_that_a_step_calls_cannot_be_left_out(
    import_of: Import, messages: Messages
) -> None:
    ended = import_of({}, "--without=tok")
    assert ended.code == 2
    assert "--without" in ended.err
    messages.check(ended.err)


OTHER = {"other/config.pbtxt": ENSEMBLE.replace('"tok"', '"nosuch"'), "other/1/": ""}
SYNTAX = {"other/config.pbtxt": ENSEMBLE + "input: {", "other/1/": ""}


@pytest.mark.parametrize("changes", [OTHER, SYNTAX], ids=["step", "syntax"])
def test_a_broken_ensemble_does_not_block_another(
    import_of: Import, changes: dict[str, str]
) -> None:
    spec = spec_of(import_of(changes, "--ensemble=sentiment"))
    assert {spec["model"]["modelName"], spec["tokenizer"]["modelName"]} == {"bert", "tok"}
    assert "auxiliaryModels" not in spec
    assert spec_of(import_of(changes, "--without=other")) == spec
    ended = import_of(changes, "--ensemble=other")
    assert (ended.code, ended.out) == (2, "")
    assert "other/config.pbtxt" in ended.err


def test_a_broken_step_is_named_by_its_own_file(import_of: Import, messages: Messages) -> None:
    ended = import_of({"bert/config.pbtxt": MODEL.replace("TYPE_FP32", "TYPE_FLOAT")})
    assert (ended.code, ended.out) == (2, "")
    assert re.search(r"bert/config\.pbtxt", ended.err)
    messages.check(ended.err)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            replaced(
                "sentiment/config.pbtxt",
                '"bert" model_version: -1',
                '"bert" model_version: 4',
            ),
            r"ensemble_scheduling\.step\[1\]\.model_version",
        ),
        (
            {"bert/config.pbtxt": MODEL + "version_policy { specific { versions: [ 1, 2 ] } }"},
            r"version_policy\.specific\.versions",
        ),
    ],
)
def test_a_pinned_version_that_does_not_exist_is_an_error(
    import_of: Import, changes: dict[str, str], message: str, messages: Messages
) -> None:
    ended = import_of(changes)
    assert (ended.code, ended.out) == (2, "")
    assert re.search(message, ended.err), ended.err
    messages.check(ended.err)


def test_one_model_for_two_steps_is_refused(import_of: Import, messages: Messages) -> None:
    again = (
        '  step { model_name: "bert" model_version: 1'
        ' input_map { key: "input_ids" value: "ids" } output_map { key: "logits" value: "b" } }\n}'
    )
    changed = ENSEMBLE.rstrip().removesuffix("}") + again
    ended = import_of(
        {
            "sentiment/config.pbtxt": changed
            + '\noutput { name: "b" data_type: TYPE_FP32 dims: 2 }\n'
        }
    )
    assert (ended.code, ended.out) == (1, "")
    assert "ensemble_scheduling" in ended.err
    messages.check(ended.err)


def test_what_no_resource_can_express_is_refused(
    import_of: Import, tmp_path: Path, messages: Messages
) -> None:
    file = tmp_path / "made.yaml"
    changes = replaced("bert/config.pbtxt", "KIND_GPU", "KIND_GPU count: 300")
    ended = import_of(changes, "--output-file", str(file))
    assert (ended.code, file.exists()) == (1, False)
    assert "spec.model.instances.count" in ended.err
    messages.check(ended.err)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"bert/config.pbtxt.template": MODEL, "bert/1/model.plan": ""},
            "bert/config.pbtxt.template",
        ),
        (
            {"bert/1/config.pbtxt": MODEL, "bert/1/model.py": CODE},
            "bert/1/config.pbtxt",
        ),
        (
            {"bert/config.pbtext": MODEL, "bert/1/model.py": CODE},
            "bert/config.pbtext",
        ),
        (
            {f"{team}/{name}": text for team in ("blue", "red") for name, text in FILES.items()},
            "(blue, red)",
        ),
        (
            {f"models/{name}": text for name, text in FILES.items()},
            "no model",
        ),
        (
            {
                **FILES,
                "tok/config.pbtxt": TOKENIZER.replace("size: 8", "size: ${rows}"),
                "bert/config.pbtxt": MODEL.replace("size: 8", "size: ${rows}").replace(
                    "KIND_GPU", "KIND_GPU count: ${count}"
                ),
            },
            "bert/config.pbtxt",
        ),
    ],
    ids=["template", "version", "name", "parent", "nested", "placeholders"],
)
def test_one_message_says_what_a_folder_is(
    tmp_path: Path, tritonpipe: Run, files: dict[str, str], message: str, messages: Messages
) -> None:
    folder = write_files(tmp_path / "models", files)
    ended = tritonpipe("import", str(folder))
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    messages.check(ended.err)
    assert len(ended.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tok/config.pbtxt": "\ufeff" + TOKENIZER},
            "tok/config.pbtxt",
        ),
        ({"tok/config.pbtxt": '{"backend": "python"}'}, "tok/config.pbtxt"),
        ({"tok/config.pbtxt": "input {" * 4000}, "tok/config.pbtxt"),
        (
            replaced("bert/config.pbtxt", "onnxruntime_onnx", "onnx"),
            "bert/config.pbtxt",
        ),
        (
            {"extra/config.pbtxt": 'backend: "vllm"\n', "extra/1/model.json": "{}"},
            "extra/1/model.json",
        ),
    ],
    ids=["mark", "json", "depth", "platform", "engine"],
)
def test_the_field_at_fault_is_named(
    import_of: Import, changes: dict[str, str], message: str, messages: Messages
) -> None:
    ended = import_of(changes)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    messages.check(ended.err)


def test_one_model_must_remain(import_of: Import, messages: Messages) -> None:
    ended = import_of({}, "--without=sentiment", "--without=tok", "--without=bert")
    assert ended.code == 2
    assert "--without" in ended.err
    messages.check(ended.err)
