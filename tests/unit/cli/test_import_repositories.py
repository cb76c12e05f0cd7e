"""Test that `tritonpipe import` carries over what Triton loads, and reports the rest.

Each test changes one thing in a small repository of a tokenizer, a model and their ensemble.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.handmade_repositories import (
    CODE,
    ENSEMBLE,
    FILES,
    MODEL,
    TOKENIZER,
    replaced,
)
from tests.support.messages import Messages
from tests.unit.cli.conftest import SOURCE, Import, Run, spec_of
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render.model_repository import load_plan, repository


def test_the_repository_itself_is_carried_over(import_of: Import) -> None:
    ended = import_of({}, "--strict")
    assert not re.search("not imported|changed|note", ended.err)
    assert set(spec_of(ended)) == {"tokenizer", "model", "ensemble"}


def test_a_tokenizer_on_a_gpu_becomes_a_step(import_of: Import) -> None:
    spec = spec_of(import_of(replaced("tok/config.pbtxt", "KIND_CPU", "KIND_GPU"), "--strict"))
    assert "tokenizer" not in spec
    assert spec["steps"][0]["name"] == "tok"
    assert spec["steps"][0]["instances"] == {"count": 1, "kind": "GPU"}


def test_groups_that_differ_are_carried_over(import_of: Import) -> None:
    changes = replaced(
        "bert/config.pbtxt",
        "instance_group { kind: KIND_GPU }",
        "instance_group [ { kind: KIND_GPU gpus: 0 count: 2 },"
        " { kind: KIND_GPU gpus: 1 rate_limiter { priority: 2 } }, { kind: KIND_CPU } ]",
    )
    model = spec_of(import_of(changes, "--strict"))["model"]
    assert model["instances"]["groups"] == [
        {"count": 2, "kind": "GPU", "gpus": [0]},
        {"count": 1, "kind": "GPU", "gpus": [1]},
        {"count": 1, "kind": "CPU"},
    ]
    assert model["configPatch"]["instanceGroup"] == [{}, {"rateLimiter": {"priority": 2}}, {}]


def test_a_custom_tokenizer_with_groups_that_differ_becomes_a_step(import_of: Import) -> None:
    groups = 'kind: KIND_CPU host_policy: "a" }\ninstance_group { kind: KIND_CPU'
    spec = spec_of(import_of(replaced("tok/config.pbtxt", "kind: KIND_CPU", groups), "--strict"))
    assert "tokenizer" not in spec
    assert spec["steps"][0]["instances"]["groups"] == [
        {"count": 1, "kind": "CPU", "hostPolicy": "a"},
        {"count": 1, "kind": "CPU"},
    ]


def test_equal_groups_of_a_tokenizer_are_merged(import_of: Import, messages: Messages) -> None:
    more = "kind: KIND_CPU count: 2 }\ninstance_group { kind: KIND_CPU"
    ended = import_of(replaced("tok/config.pbtxt", "kind: KIND_CPU", more), "--strict")
    assert spec_of(ended)["tokenizer"]["instances"] == {"initial": 3}
    messages.check(ended.err)


def test_groups_of_the_built_in_tokenizer_that_differ_are_reported(
    tmp_path: Path, tritonpipe: Run, messages: Messages
) -> None:
    folder = tmp_path / "models"
    made = tritonpipe("render", "manifests/samples/sentiment.yaml", "--repository", str(folder))
    assert made.code == 0, made.err
    with (folder / "tokenizer" / "config.pbtxt").open("a") as file:
        file.write('\ninstance_group { kind: KIND_CPU count: 2 host_policy: "numa-0" }\n')
    ended = tritonpipe("import", str(folder), SOURCE, "--strict")
    assert ended.code == 1
    assert "tokenizer/config.pbtxt" in " ".join(ended.err.split())
    messages.check(" ".join(ended.err.split()))


def test_a_model_that_several_steps_call_is_repeated(import_of: Import) -> None:
    """The call whose step keeps the model comes first, wherever the ensemble has it."""
    title = "".join(
        f'step {{ model_name: "{model}" model_version: -1'
        f' input_map {{ key: "{read}" value: "{source}" }}'
        f' output_map {{ key: "{made}" value: "{tensor}" }} }}\n'
        for model, read, source, made, tensor in (
            ("bert", "input_ids", "title", "logits", "title_logits"),
            ("tok", "TEXT", "TITLE", "input_ids", "title"),
        )
    )
    changed = ENSEMBLE.replace("ensemble_scheduling {\n", f"ensemble_scheduling {{\n{title}")
    changed += 'input { name: "TITLE" data_type: TYPE_STRING dims: 1 }\n'
    changed += 'output { name: "title_logits" data_type: TYPE_FP32 dims: 2 }\n'
    spec = spec_of(import_of({"sentiment/config.pbtxt": changed}, "--strict"))
    assert [spec["tokenizer"]["modelName"], spec["model"]["modelName"]] == ["tok", "bert"]
    repeated = {one["step"]: one for one in spec["repeatedSteps"]}
    assert set(repeated) == {"tokenizer", "model"}
    declared = {
        spec["tokenizer"]["inputs"]["text"],
        repeated["tokenizer"]["inputs"][0]["from"].removeprefix("pipeline."),
    }
    assert len(repeated["model"]["inputs"]) == 1
    read = repeated["model"]["inputs"][0]["from"]
    assert read in ("tokenizer.input_ids", f"{repeated['tokenizer']['name']}.input_ids")
    assert declared <= {"TEXT", "TITLE"}


@pytest.mark.parametrize("name", ["tok/config.pbtxt", "bert/config.pbtxt"])
@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ("all { }", {"all": {}}),
        ("latest { num_versions: 2 }", {"latest": 2}),
        ("specific { versions: [ 1 ] }", {"specific": [1]}),
    ],
)
def test_version_policies_are_carried_over(
    import_of: Import, name: str, policy: str, field: dict[str, Any]
) -> None:
    spec = spec_of(import_of({name: f"{FILES[name]}version_policy {{ {policy} }}\n"}, "--strict"))
    steps = {step.get("modelName", step.get("name")): step for step in spec.get("steps", ())}
    steps |= {spec["model"]["modelName"]: spec["model"]}
    assert steps[name.split("/")[0]]["versionPolicy"] == field


def test_a_policy_on_an_ensemble_is_nothing_to_report(import_of: Import) -> None:
    policy = "version_policy { all { } }\n"
    assert import_of({"sentiment/config.pbtxt": ENSEMBLE + policy}, "--strict").code == 0


def test_policies_of_built_in_steps_are_nothing_to_report(tmp_path: Path, tritonpipe: Run) -> None:
    folder = tmp_path / "models"
    made = tritonpipe("render", "manifests/samples/sentiment.yaml", "--repository", str(folder))
    assert made.code == 0, made.err
    for name in ("tokenizer", "postprocess", "model"):
        with (folder / name / "config.pbtxt").open("a") as file:
            file.write("\nversion_policy { all { } }\n")
    ended = tritonpipe("import", str(folder), SOURCE, "--strict")
    assert yaml.safe_load(ended.out)["spec"]["model"]["versionPolicy"] == {"all": {}}
    assert ended.code == 0


def test_versions_of_custom_code_are_deployed(import_of: Import, tmp_path: Path) -> None:
    changes = {
        "tok/config.pbtxt": TOKENIZER + "version_policy { all { } }\n",
        "tok/3/model.py": CODE + "# newer\n",
    }
    spec = spec_of(import_of(changes, "--strict"))
    assert spec["steps"][0]["python"] == {
        "code": {"source": {"uri": "s3://models/repository/tok/"}}
    }
    _, graph = load_pipeline(tmp_path / "resource.yaml", Options())
    plan = load_plan(graph, repository(graph), "default", "r1")
    code = next(item for item in plan.fetch if item.slot == "code")
    assert code.versions is not None
    assert code.versions.all


def test_duplicate_outputs_are_removed_and_reported(import_of: Import, messages: Messages) -> None:
    twice = 'output { name: "logits" data_type: TYPE_FP32 dims: 2 }\n'
    changes = {"sentiment/config.pbtxt": ENSEMBLE + twice}
    ended = import_of(changes)
    assert spec_of(ended)["ensemble"]["outputs"] == [{"name": "logits", "from": "model.logits"}]
    assert "sentiment/config.pbtxt" in ended.err
    messages.check(ended.err)
    assert import_of(changes, "--strict").code == 1


def test_an_optional_input_that_a_step_requires_is_required(
    import_of: Import, messages: Messages
) -> None:
    changes = replaced("sentiment/config.pbtxt", "dims: 1 }", "dims: 1 optional: true }")
    ended = import_of(changes)
    assert "optional" not in spec_of(ended)["ensemble"]["inputs"][0]
    assert "input[0].optional" in ended.err
    messages.check(ended.err)


ENVIRONMENT = (
    'parameters { key: "EXECUTION_ENV_PATH"'
    ' value { string_value: "$$TRITON_MODEL_DIRECTORY/PLACE" } }\n'
)


def test_an_environment_folder_is_carried_over(
    import_of: Import, tmp_path: Path, tritonpipe: Run
) -> None:
    changes = {
        "tok/config.pbtxt": TOKENIZER + ENVIRONMENT.replace("PLACE", "conda/py310"),
        "tok/conda/py310/bin/activate": "true\n",
    }
    ended = import_of(changes, "--strict")
    assert spec_of(ended)["tokenizer"]["python"]["files"] == [
        {"source": {"uri": "s3://models/repository/tok/conda/py310/"}, "path": "py310"}
    ]
    rendered = tritonpipe("render", str(tmp_path / "resource.yaml"))
    assert "$$TRITON_MODEL_DIRECTORY/1/py310" in rendered.out
    assert "becomes $$TRITON_MODEL_DIRECTORY/1/py310" in ended.err


def test_an_archive_next_to_the_models_is_carried_over(import_of: Import) -> None:
    changes = {
        "tok/config.pbtxt": TOKENIZER + ENVIRONMENT.replace("PLACE", "../shared/env.tar.gz"),
        "shared/env.tar.gz": "packed",
    }
    environment = spec_of(import_of(changes, "--strict"))["tokenizer"]["python"]["environment"]
    assert environment["source"]["uri"] == "s3://models/repository/shared/env.tar.gz"


def test_an_environment_that_does_not_exist_is_reported(
    import_of: Import, messages: Messages
) -> None:
    changes = {"tok/config.pbtxt": TOKENIZER + ENVIRONMENT.replace("PLACE", "env")}
    ended = import_of(changes, "--strict")
    assert ended.code == 1
    assert "parameters[EXECUTION_ENV_PATH]" in ended.err
    messages.check(ended.err)


def test_imported_packages_are_listed(import_of: Import, messages: Messages) -> None:
    code = "import os, numpy, torch.nn\nfrom transformers import x\nimport helper\n" + CODE
    ended = import_of({"tok/1/model.py": code, "tok/1/helper.py": "import sklearn\n"})
    assert "tok/1/model.py" in ended.err
    messages.check(ended.err)


def test_the_default_file_name_is_nothing_to_report(import_of: Import) -> None:
    changes = {
        "tok/config.pbtxt": TOKENIZER + 'default_model_filename: "model.py"\n',
        "bert/config.pbtxt": MODEL + 'default_model_filename: "model.onnx"\n',
    }
    ended = import_of(changes, "--strict")
    assert ended.code == 0
    assert "default_model_filename" not in ended.err


def test_code_under_another_name_becomes_model_py(import_of: Import, messages: Messages) -> None:
    changes = {
        "tok/config.pbtxt": TOKENIZER + 'default_model_filename: "tokenize.py"\n',
        "tok/1/tokenize.py": CODE + "# this one\n",
    }
    ended = import_of(changes, "--strict")
    assert (ended.code, ended.out) == (1, "")
    assert "default_model_filename" in ended.err
    messages.check(ended.err)
    ended = import_of(changes, "--strict", remove="tok/1/model.py")
    assert "# this one" in spec_of(ended)["tokenizer"]["python"]["code"]["inline"]


def test_much_code_does_not_make_the_resource_too_large(import_of: Import) -> None:
    changes: dict[str, str] = {}
    for number in range(8):
        name = f"extra{number}"
        changes[f"{name}/config.pbtxt"] = TOKENIZER
        changes[f"{name}/1/model.py"] = CODE + f"# {'x' * 60_000}\n"
    models = spec_of(import_of(changes, "--strict"))["auxiliaryModels"]
    assert {*models[0]["python"]["code"], *models[-1]["python"]["code"]} == {"inline", "source"}


def test_large_numbers_are_carried_over(import_of: Import) -> None:
    changes = replaced(
        "bert/config.pbtxt",
        "dynamic_batching { }",
        "dynamic_batching { max_queue_delay_microseconds: 90000000"
        " default_queue_policy { default_timeout_microseconds: 5000000000 } }",
    )
    ended = import_of(changes, "--strict")
    assert spec_of(ended)["model"]["configPatch"]["dynamicBatching"] == {
        "maxQueueDelayMicroseconds": 90000000,
        "defaultQueuePolicy": {"defaultTimeoutMicroseconds": 5000000000},
    }


def test_a_batching_library_of_the_image_is_reported(import_of: Import, messages: Messages) -> None:
    parameter = (
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/opt/b.so" } }\n'
    )
    ended = import_of({"bert/config.pbtxt": MODEL + parameter}, "--strict")
    assert ended.code == 1
    assert "parameters[TRITON_BATCH_STRATEGY_PATH]" in ended.err
    messages.check(ended.err)


INFLIGHT = replaced(
    "sentiment/config.pbtxt",
    "ensemble_scheduling {",
    "ensemble_scheduling { max_inflight_requests: 4",
)


def test_the_image_decides_what_is_carried_over(import_of: Import, messages: Messages) -> None:
    ended = import_of(INFLIGHT, "--image=example.com/tritonserver:24.10-py3")
    assert "maxInflightRequests" not in spec_of(ended)["ensemble"]
    assert "max_inflight_requests" in ended.err
    messages.check(ended.err)
    newer = spec_of(import_of(INFLIGHT, "--image=example.com/tritonserver:26.04-py3", "--strict"))
    assert newer["ensemble"]["maxInflightRequests"] == 4
    assert newer["server"]["image"] == "example.com/tritonserver:26.04-py3"
    assert import_of(INFLIGHT, "--image=example.com/tritonserver:latest").code == 2


def test_notes_start_with_the_most_important(import_of: Import) -> None:
    changes = {
        "bert/config.pbtxt": MODEL.replace("dims: 2 }", 'dims: 2 label_filename: "l.txt" }'),
        "bert/l.txt": "a\nb\n",
        "tok/1/model.py": "import torch\n" + CODE,
        "sentiment/config.pbtxt": ENSEMBLE.replace("model_version: -1", ""),
    }
    kinds = re.findall(r": (not imported|changed|note): ", import_of(changes).err)
    assert sorted(set(kinds), key=kinds.index) == ["not imported", "changed", "note"]
