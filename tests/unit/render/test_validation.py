"""Validate a model repository: each rule broken once, its field, and what depends on the server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.support.differential import Repository, breaks
from tests.support.differential.good import add_model, good
from triton_pipelines.compile.validation import (
    RuleId,
    ServerFacts,
    Violation,
    validate_repository,
)
from triton_pipelines.compile.validation.stricter_rules import LIMITS

ROOT = "/models"
ALL = (*breaks.REFUSED, *breaks.LIMITED, *breaks.FATAL, *breaks.DEADLY)
PART = re.compile(r'([a-z_0-9]+)((?:\[(?:\d+|"(?:[^"\\]|\\.)*")\])*)(?:\.|$)')


def said(repository: Repository, **facts: Any) -> list[Violation]:
    """The violations of a repository whose files are all known."""
    placed = Repository(
        repository.configs, {name: repository.beside(name) for name in repository.configs}
    )
    for name, config in placed.configs.items():
        for parameter in config.parameters.values():
            parameter.string_value = parameter.string_value.replace("{folder}", f"{ROOT}/{name}")
    files = {
        name: {path: len(content) for path, content in own.items()}
        for name, own in placed.files.items()
    }
    backends = {
        name: frozenset({f"libtriton_{name}.so"})
        for name in ("null", "onnxruntime", "tensorrt", "pytorch", "python")
    }
    known = {
        "release": (24, 10),
        "gpus": 0,
        "files": files,
        "backends": backends,
        "root": ROOT,
    }
    return validate_repository(placed.configs, ServerFacts(**{**known, **facts}))


def model(text: str) -> Any:
    """A model "m" of the null backend with one input and one output."""
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: 2 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    )
    config = text_format.Parse(f'name: "m" backend: "null" {tensors}', pb.ModelConfig())
    return text_format.Merge(text, config)


def rules(text: str, **facts: Any) -> list[RuleId]:
    """Rules that model "m" with ``text`` breaks."""
    return [violation.rule for violation in said(Repository({"m": model(text)}), **facts)]


def test_the_good_repository_is_accepted() -> None:
    assert said(good()) == []


@pytest.mark.parametrize("broken", ALL, ids=str)
def test_each_break_is_found_and_nothing_else(broken: breaks.Break) -> None:
    repository = good()
    broken.change(repository)
    found = said(repository)
    assert {(violation.model, violation.rule) for violation in found} == {
        (broken.model, broken.rule)
    }, found


@pytest.mark.parametrize("broken", ALL, ids=str)
def test_a_violation_names_a_field_of_the_config_and_what_to_do(broken: breaks.Break) -> None:
    repository = good()
    broken.change(repository)
    for violation in said(repository):
        _follow(violation.field)
        assert len(violation.message) > 20
        assert str(violation) == f"{violation.model}: {violation.field}: {violation.message}"


def _follow(path: str) -> None:
    """Every part of a path is a field of ModelConfig."""
    descriptor: Any = pb.ModelConfig.DESCRIPTOR
    at = 0
    while at < len(path):
        part = PART.match(path, at)
        assert part is not None, path
        field = descriptor.fields_by_name[part[1]]
        descriptor = field.message_type
        if descriptor is not None and descriptor.GetOptions().map_entry:
            descriptor = descriptor.fields_by_name["value"].message_type
        at = part.end()


def test_unknown_files_gpus_and_backends_refuse_nothing() -> None:
    repository = good()
    assert (
        validate_repository(
            {name: config for name, config in repository.configs.items() if name != "model"}
            | {"model": model("")}
        )
        != []
    )  # e needs its tensors
    for name in ("e", "outer"):
        del repository.configs[name]
    assert validate_repository(repository.configs) == []
    assert (
        validate_repository({"m": model("instance_group { kind: KIND_GPU gpus: [ 0, 7 ] }")}) == []
    )


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("kind: KIND_GPU", 0, [RuleId.INSTANCE_NO_GPU]),
        ("kind: KIND_GPU", 1, []),
        ("kind: KIND_GPU gpus: [ 0, 1 ]", 2, []),
        ("kind: KIND_GPU gpus: 2", 2, [RuleId.INSTANCE_GPUS]),
        ("kind: KIND_AUTO gpus: 1", 1, [RuleId.INSTANCE_GPUS]),
        ("kind: KIND_AUTO gpus: 0", 1, []),
        ("kind: KIND_CPU gpus: 0", 4, [RuleId.INSTANCE_GPUS]),
    ],
)
def test_gpus(text: str, gpus: int, expected: list[RuleId]) -> None:
    assert rules(f"instance_group {{ {text} }}", gpus=gpus) == expected


@pytest.mark.parametrize(
    ("text", "release", "expected"),
    [
        ("model_metrics { }", (24, 10), [RuleId.FIELD_VERSION]),
        ("model_metrics { }", (24, 11), []),
        (
            (
                "model_metrics { metric_control { metric_identifier { family: 'f' } "
                "histogram_options { buckets: 1 } } }"
            ),
            (24, 11),
            [],
        ),
        ("model_metrics { metric_control { } }", (24, 11), [RuleId.METRICS, RuleId.METRICS]),
        ("platform: 'torch_aoti' backend: 'pytorch'", (26, 3), []),
        ("platform: 'torch_aoti' backend: 'pytorch'", (26, 2), [RuleId.BACKEND_PLATFORM]),
    ],
)
def test_rules_of_a_release(text: str, release: tuple[int, int], expected: list[RuleId]) -> None:
    assert rules(text, release=release) == expected


def test_in_flight_limit_needs_its_release() -> None:
    repository = good()
    repository.configs["e"].ensemble_scheduling.max_inflight_requests = 2
    assert [violation.rule for violation in said(repository, release=(25, 10))] == [
        RuleId.FIELD_VERSION
    ]
    assert said(repository, release=(25, 11)) == []


def test_warm_up_of_text_correlation_ids_is_refused_from_25_01_on() -> None:
    text = """
        sequence_batching { control_input { name: "ID" \
control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }
        model_warmup { name: "w" batch_size: 1 \
inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }
    """
    assert rules(text, release=(24, 12)) == []
    assert rules(text, release=(25, 1)) == [RuleId.WARMUP]


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("platform: 'onnxruntime_onnx'", {"1/": 0}, []),
        ("default_model_filename: 'model.plan'", {"1/": 0}, []),
        ("", {"1/model.onnx": 1}, []),
        ("", {"1/model.py": 1}, []),
        ("", {"1/model.bin": 1}, [RuleId.BACKEND]),
        ("backend: 'tensorflow'", {"1/model.graphdef": 1}, []),
        ("backend: 'tensorflow'", {"1/": 0}, [RuleId.BACKEND_PLATFORM]),
        (
            "platform: 'pytorch_libtorch' default_model_filename: 'model.onnx'",
            {"1/": 0},
            [RuleId.BACKEND_PLATFORM],
        ),
    ],
)
def test_a_backend_is_inferred_as_triton_infers_it(
    text: str, files: dict[str, int], expected: list[RuleId]
) -> None:
    config = text_format.Parse(f'name: "m" {text}', pb.ModelConfig())
    assert [
        violation.rule
        for violation in validate_repository({"m": config}, ServerFacts(files={"m": files}))
    ] == expected


def test_a_model_may_carry_the_backend_in_its_name() -> None:
    assert (
        validate_repository({"m.null": pb.ModelConfig()}, ServerFacts(files={"m.null": {"1/": 0}}))
        == []
    )


def test_a_blank_or_nested_name_is_refused() -> None:
    for name in (" ", "..", "a/b"):
        assert [
            violation.rule
            for violation in validate_repository({name: pb.ModelConfig(backend="null")})
        ] == [RuleId.MODEL_NAME]


def test_ensembles_that_contain_each_other_are_both_refused() -> None:
    repository = Repository({})
    for name, other in (("a", "b"), ("b", "a")):
        tensors = (
            'input { name: "x" data_type: TYPE_FP32 dims: 1 } '
            'output { name: "y" data_type: TYPE_FP32 dims: 1 }'
        )
        step = (
            f'step {{ model_name: "{other}" model_version: -1 input_map {{ key: "x" value: "x" }} '
            'output_map { key: "y" value: "y" } }'
        )
        add_model(name, f'platform: "ensemble" {tensors} ensemble_scheduling {{ {step} }}')(
            repository
        )
    found = validate_repository(repository.configs)
    assert [(violation.model, violation.rule) for violation in found] == [
        ("a", RuleId.ENSEMBLE_CYCLE),
        ("b", RuleId.ENSEMBLE_CYCLE),
    ]


def test_a_mismatch_names_both_sides() -> None:
    repository = good()
    repository.configs["tok"].output[0].data_type = pb.TYPE_INT32
    assert [str(violation) for violation in said(repository)] == [
        "e: ensemble_scheduling.step[1].input_map[\"ids\"]: tensor 'tok.ids': output 'ids' of "
        "model 'tok' is INT32 [-1], "
        "input 'ids' of model 'model' is INT64 [-1]; both must have the same data type"
    ]


def test_every_limit_has_a_reason_and_no_other_rule_of_this_project() -> None:
    assert all(len(limit.reason) > 40 for limit in LIMITS.values())
    assert set(LIMITS) == {broken.rule for broken in (*breaks.LIMITED, *breaks.DEADLY)}
