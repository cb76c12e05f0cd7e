"""Test the import of repositories as people write them.

The rendered import has the same configs, except for the differences that are listed here and
reported to the user.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, event, given, settings
from tritonclient.grpc import model_config_pb2

from tests.support.differential import Repository
from tests.support.differential.repositories import repositories
from tests.support.imports import (
    FILLED,
    NAMED,
    REPOSITORIES,
    configs_of,
    corpus_import,
    golden_of,
    golden_text,
    graph_of,
    imported,
)
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import Options, build, check
from triton_pipelines.compile.render import review
from triton_pipelines.tools.importer.import_notes import ModelRepositoryError, NoteSeverity

NAMES = sorted(path.name for path in REPOSITORIES.iterdir())
BACKENDS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
}

# Lines of a config that are gone (-) or new (+) after an import, by repository and model. All else
# is equal.
BATCHER = [
    "+dynamic_batching {",
    *(f"+  preferred_batch_size: {size}" for size in (32, 64, 128, 256)),
    "+  max_queue_delay_microseconds: 10000",
    "+}",
]
VLLM = [
    *(
        f'+  name: "{tensor}"'
        for tensor in (
            "text_input",
            "stream",
            "sampling_parameters",
            "exclude_input_in_output",
            "text_output",
        )
    ),
    *["+  data_type: TYPE_STRING"] * 3,
    *["+  data_type: TYPE_BOOL"] * 2,
    *["+input {"] * 4,
    *["+  optional: true"] * 3,
    *["+  dims: 1"] * 4,
    "+output {",
    "+  dims: -1",
    "+model_transaction_policy {",
    "+  decoupled: true",
    *["+}"] * 6,
]
DIFFERENT: dict[str, dict[str, list[str]]] = {
    # The ensemble's batcher, with which Triton refuses it, went to the step that had none.
    "article": {"bert_classifier": BATCHER},
    "image": {
        # The file of labels has no place.
        "resnet50_trt": ['-  label_filename: "labels.txt"'],
        "preprocess": [
            '-    string_value: "$$TRITON_MODEL_DIRECTORY/pillow.tar.gz"',
            '+    string_value: "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"',
        ],
    },
    "single": {"densenet_onnx": ['-  label_filename: "densenet_labels.txt"']},
    # What the backend's own code would complete is written out, since nothing is completed in a
    # pod.
    "vllm": {"vllm_model": VLLM},
    "accelerated": {
        "detector": [
            '-        value: "/models/detector/1/cache"',
            '+        value: "/tritonpipe-engines/detector"',
            # Not in the release of the default server.
        ]
    },
    "branches": {"clip_tokenizer": ["+  kind: KIND_CPU"]},
    "oddities": {
        "count": [
            "-parameters {",
            '-  key: "TRITON_BATCH_STRATEGY_PATH"',
            "-  value {",
            '-    string_value: "/opt/models/count/libvolume.so"',
            "-  }",
            "-}",
            "-model_repository_agents {",
            "-  agents {",
            '-    name: "checksum"',
            "-    parameters {",
            '-      key: "MD5:1/model.py"',
            '-      value: "0"',
            "-    }",
            "-  }",
            "-}",
        ],
        "lines": [
            "-  dims: -1",
            "+  dims: 1",
            "-metric_tags {",
            '-  key: "team"',
            '-  value: "text"',
            "-}",
        ],
    },
}


def as_written(name: str) -> dict[str, Any]:
    """Return the configs of a repository, with Triton's own defaults written out.

    They are read here without the code under test.
    """
    made = {}
    for folder in sorted(path for path in (REPOSITORIES / name).iterdir() if path.is_dir()):
        chosen = folder / "configs" / f"{NAMED.get(name)}.pbtxt"
        file = chosen if chosen.is_file() else folder / "config.pbtxt"
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8")
        for key, value in FILLED.items():
            text = text.replace(f"${{{key}}}", value)
        if name == "article" and folder.name == "sentiment_ensemble":
            text = text[: text.index("dynamic_batching")]
        config = text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
        config.name = folder.name
        if config.platform != "ensemble":
            config.backend = config.backend or BACKENDS[config.platform]
            config.platform = config.platform or {
                backend: platform for platform, backend in BACKENDS.items()
            }.get(config.backend, "")
            if not config.instance_group:
                config.instance_group.add(count=1)
            if config.HasField("sequence_batching") and not config.sequence_batching.WhichOneof(
                "strategy_choice"
            ):
                config.sequence_batching.direct.SetInParent()
        made[folder.name] = config
    return made


def lines(config: Any) -> Counter[str]:
    """Return a config as lines, without what has no effect.

    That is the names of instance groups, the names of tensors inside an ensemble, and the order of
    its steps.
    """
    copy = type(config)()
    copy.CopyFrom(config)
    for group in copy.instance_group:
        group.name, group.count = "", max(group.count, 1)
    public = {tensor.name for tensor in (*copy.input, *copy.output)}
    made = {
        tensor: f"{step.model_name} {output}"
        for step in copy.ensemble_scheduling.step
        for output, tensor in step.output_map.items()
    }
    for step in copy.ensemble_scheduling.step:
        step.model_version = step.model_version or -1
        for mapped in (step.input_map, step.output_map):
            for key, tensor in list(mapped.items()):
                mapped[key] = tensor if tensor in public else made[tensor]
    return Counter(text_format.MessageToString(copy, as_utf8=True).splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_configs_say_the_same(name: str) -> None:
    written = as_written(name)
    rendered = configs_of(graph_of(corpus_import(name).document))
    assert set(rendered) == set(written)
    found = {}
    for model, config in written.items():
        before, after = lines(config), lines(rendered[model])
        different = [
            *(f"-{line}" for line in (before - after).elements()),
            *(f"+{line}" for line in (after - before).elements()),
        ]
        if different:
            found[model] = sorted(different)
    assert found == {model: sorted(listed) for model, listed in DIFFERENT.get(name, {}).items()}


@pytest.mark.parametrize("name", NAMES)
def test_imports_read_as_expected(name: str) -> None:
    """After a wanted change: ``python -m tests.support.imports``, and read the difference."""
    assert golden_text(name) == golden_of(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_imports_are_valid(name: str) -> None:
    pipeline, findings = parse(corpus_import(name).document)
    assert pipeline is not None, findings
    graph = build(pipeline, Options())
    findings = check(pipeline, graph, Options()) or review(pipeline, graph, Options())
    assert [finding.path for finding in findings] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_differs_is_said(name: str) -> None:
    """Every model whose config differs is named by a note; nothing else is called lost."""
    said = [str(note) for note in corpus_import(name).notes]
    for model in DIFFERENT.get(name, {}):
        assert name == "vllm" or any(model in text for text in said), model
    if name not in DIFFERENT:
        assert [
            note for note in corpus_import(name).notes if note.severity is not NoteSeverity.INFO
        ] == []


def test_there_are_a_dozen(tmp_path: Path) -> None:
    assert len(NAMES) >= 12


# What Triton means by what a config leaves out, which the operator writes.
COMPLETED = (
    "+backend",
    "+platform",
    "+instance_group {",
    "+  count: 1",
    "+}",
    "+  direct {",
    "+  }",
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(repository=repositories(faults=False))
def test_whatever_differs_of_any_repository_is_said(repository: Repository) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, config in repository.configs.items():
            config.name = name
            for path, content in repository.beside(name).items():
                target = Path(folder, name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.mkdir(exist_ok=True) if path.endswith("/") else target.write_bytes(content)
            Path(folder, name, "config.pbtxt").write_text(text_format.MessageToString(config))
        try:
            made = imported(Path(folder), "e")
        except ModelRepositoryError as error:
            event("refused")
            refused = str(error)
        else:
            refused = ""
    if refused:
        assert re.search(r"config\.pbtxt|/\d+/", refused), refused
        return
    pipeline, findings = parse(made.document)
    if pipeline is None or findings:
        event("not valid")
        return
    event("compared")
    rendered = configs_of(graph_of(made.document))
    for name, config in repository.configs.items():
        if name in rendered and not any(name in str(note) for note in made.notes):
            before, after = lines(config), lines(rendered[name])
            assert list((before - after).elements()) == []
            assert [
                line for line in (after - before).elements() if not f"+{line}".startswith(COMPLETED)
            ] == []
