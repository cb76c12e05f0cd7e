"""Test `tritonpipe import`.

The tests cover which models are accepted, what is asked for, and every message with its file and
field.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support import tinymodel
from tests.support.imports import REPOSITORIES
from tests.support.messages import Messages
from tests.unit.cli.conftest import Run
from triton_pipelines.runtime import source

FILL = (
    "--set=triton_max_batch_size=8",
    "--set=preprocessing_instance_count=2",
    "--set=decoupled_mode=true",
)


@pytest.fixture
def repository(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a repository of the corpus, to be changed."""
    return lambda name: Path(shutil.copytree(REPOSITORIES / name, tmp_path / name))


def test_strict_fails_where_something_was_changed(tritonpipe: Run, messages: Messages) -> None:
    assert tritonpipe("import", str(REPOSITORIES / "article")).code == 0
    ended = tritonpipe("import", str(REPOSITORIES / "article"), "--strict")
    assert ended.code == 1
    assert "sentiment_ensemble/config.pbtxt" in ended.err
    messages.check(ended.err)
    assert tritonpipe("import", str(REPOSITORIES / "versions"), "--strict").code == 0


def test_what_the_server_does_not_know_is_left_out(
    tritonpipe: Run, tmp_path: Path, messages: Messages
) -> None:
    file = tmp_path / "detector.yaml"
    image = "--image=example.com/tritonserver:24.10-py3"
    ended = tritonpipe(
        "import", str(REPOSITORIES / "accelerated"), image, "--output-file", str(file)
    )
    assert ended.code == 0, ended.err
    assert "detector/config.pbtxt" in ended.err
    messages.check(ended.err)
    assert tritonpipe("validate", str(file)).code == 0
    assert tritonpipe("import", str(REPOSITORIES / "accelerated"), image, "--strict").code == 1


def test_the_placeholder_is_named_by_validate(
    tritonpipe: Run, tmp_path: Path, messages: Messages
) -> None:
    file = tmp_path / "match.yaml"
    ended = tritonpipe("import", str(REPOSITORIES / "branches"), "--output-file", str(file))
    assert (ended.code, ended.out) == (0, "")
    assert str(file) in ended.err
    messages.check(ended.err)
    judged = tritonpipe("validate", str(file))
    assert "spec.model.source.uri: pvc://replace-me is a placeholder" in judged.out


def test_templates_are_asked_for_and_filled(tritonpipe: Run, messages: Messages) -> None:
    folder = str(REPOSITORIES / "tensorrtllm")
    ended = tritonpipe("import", folder)
    assert ended.code == 2
    assert "triton_max_batch_size" in ended.err
    messages.check(ended.err)
    filled = tritonpipe("import", folder, *FILL, "--set=tokenizer_dir=/engines/tokenizer")
    assert filled.code == 0, filled.err
    assert (
        yaml.safe_load(filled.out)["spec"]["steps"][0]["parameters"]["tokenizer_dir"]
        == "/engines/tokenizer"
    )
    assert "preprocessing/config.pbtxt" in filled.err
    messages.check(filled.err)


def test_the_model_that_clients_call_may_be_code(tritonpipe: Run, messages: Messages) -> None:
    ended = tritonpipe(
        "import", str(REPOSITORIES / "tensorrtllm"), "--ensemble=tensorrt_llm_bls", *FILL
    )
    assert ended.code == 0, ended.err
    spec = yaml.safe_load(ended.out)["spec"]
    assert spec["ensemble"] == {"entryPoint": "model"}
    assert spec["model"]["modelName"] == "tensorrt_llm_bls"
    assert [step["modelName"] for step in spec["auxiliaryModels"] if "modelName" in step] == [
        "tensorrt_llm"
    ]
    assert [step["name"] for step in spec["auxiliaryModels"]] == [
        "postprocessing",
        "preprocessing",
        "tensorrt-llm",
    ]
    messages.check(ended.err)


def test_models_may_be_left_out(tritonpipe: Run) -> None:
    folder = str(REPOSITORIES / "tensorrtllm")
    assert "auxiliaryModels" in yaml.safe_load(tritonpipe("import", folder, *FILL).out)["spec"]
    assert (
        "auxiliaryModels"
        not in yaml.safe_load(
            tritonpipe("import", folder, *FILL, "--without=tensorrt_llm_bls").out
        )["spec"]
    )


def test_a_repository_without_configs_is_completed_from_its_graph(
    tmp_path: Path, tritonpipe: Run, messages: Messages
) -> None:
    tinymodel.write(tmp_path / "tiny" / "1")
    (tmp_path / "tiny" / "1" / "tokenizer.json").unlink()
    ended = tritonpipe("import", str(tmp_path), "--source-uri=s3://models")
    assert ended.code == 0, ended.err
    model = yaml.safe_load(ended.out)["spec"]["model"]
    assert model["source"]["uri"] == "s3://models/tiny/1/model.onnx"
    assert (model["maxBatchSize"], model["platform"]) == (4, "onnxruntime_onnx")
    assert model["inputs"] == [
        {"name": name, "dataType": "INT64", "dims": [-1]}
        for name in ("input_ids", "attention_mask")
    ]
    assert model["outputs"][0] == {
        "name": "hidden",
        "dataType": "FP32",
        "dims": [-1, tinymodel.WIDTH],
    }
    assert "model.onnx" in ended.err
    messages.check(ended.err)


def test_changed_code_of_the_operators_own_is_told(
    tmp_path: Path, tritonpipe: Run, messages: Messages
) -> None:
    folder = tmp_path / "models"
    done = tritonpipe("render", "manifests/samples/sentiment.yaml", "--repository", str(folder))
    assert done.code == 0, done.err
    assert "postprocess" not in tritonpipe("import", str(folder)).err
    (folder / "postprocess" / "1" / "model.py").write_text(source("postprocess") + "\n# mine\n")
    changed = tritonpipe("import", str(folder))
    assert "postprocess/1/model.py" in changed.err
    messages.check(changed.err)


def _replace(file: str, old: str, new: str) -> Callable[[Path], list[str]]:
    def change(folder: Path) -> list[str]:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        return []

    return change


def _remove(name: str) -> Callable[[Path], list[str]]:
    def change(folder: Path) -> list[str]:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return []

    return change


RANK, RANKER = "rank/config.pbtxt", "ranker/config.pbtxt"


@pytest.mark.parametrize(
    ("name", "change", "reported"),
    [
        (
            "versions",
            _replace(RANKER, 'name: "ranker"', 'name: "other"'),
            r"ranker/config\.pbtxt",
        ),
        (
            "versions",
            _replace(RANKER, "max_batch_size: 64", "max_batch_size: many"),
            r"ranker/config\.pbtxt",
        ),
        (
            "versions",
            _replace(RANKER, "metric_tags", "sequence_batching { } metric_tags"),
            r"ranker/config\.pbtxt",
        ),
        (
            "versions",
            _replace(RANK, 'model_name: "ranker"', 'model_name: "nosuch"'),
            "ensemble_scheduling",
        ),
        (
            "versions",
            _replace(RANK, 'model_name: "ranker"', 'model_name: "rank"'),
            "ensemble_scheduling",
        ),
        (
            "versions",
            _replace(RANKER, "output [", "# output ["),
            "v2/models/ranker/config",
        ),
        (
            "scripted",
            _remove("router"),
            "--ensemble",
        ),
        ("single", _remove("densenet_onnx/config.pbtxt"), "no model"),
        (
            "vllm",
            _replace("vllm_model/1/model.json", '"model":', "model:"),
            r"vllm_model/1/model\.json",
        ),
        (
            "configs",
            lambda _: [],
            "encoder: .* configs/ contains",
        ),
        (
            "versions",
            lambda _: ["--ensemble=nosuch"],
            "--ensemble",
        ),
        (
            "versions",
            lambda _: ["--without=nosuch"],
            "--without",
        ),
        ("versions", lambda _: ["--set=x"], "--set"),
        ("versions", lambda _: ["--source-uri=x"], "--source-uri"),
        ("versions", lambda folder: ["--output-file", str(folder / RANK)], "already exists"),
    ],
)
def test_what_is_wrong_is_named(
    repository: Callable[[str], Path],
    tritonpipe: Run,
    name: str,
    change: Callable[[Path], list[str]],
    reported: str,
    messages: Messages,
) -> None:
    folder = repository(name)
    options = change(folder)
    ended = tritonpipe("import", str(folder), *options)
    assert (ended.code, ended.out) == (2, "")
    assert re.search(reported, ended.err), ended.err
    messages.check(ended.err)


def test_a_models_own_folder_is_no_repository(tritonpipe: Run, messages: Messages) -> None:
    ended = tritonpipe("import", str(REPOSITORIES / "single" / "densenet_onnx"))
    assert ended.code == 2
    assert str(REPOSITORIES / "single") in ended.err
    messages.check(ended.err)
    assert tritonpipe("import", "nosuch").code == 2
