"""Test warnings about shapes, names of TorchScript tensors and sources, and when there are none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built
from tests.support.messages import Messages
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph.lint_warnings import HEADLESS_DRAIN_SECONDS, _labels

CODE: dict[str, Any] = {
    "platform": "python",
    "python": {"code": {"inline": "class TritonPythonModel: ..."}},
}
PINNED: dict[str, Any] = {
    "tokenizer": {"source": {"revision": "1"}},
    "model": {"source": {"revision": "1"}},
}
QUEUE: dict[str, Any] = {"dynamicBatching": {"queuePolicy": {"maxQueueSize": 9}}}
GOOD: dict[str, Any] = {"tokenizer": {**PINNED["tokenizer"], **QUEUE}, "model": PINNED["model"]}
LOGITS: dict[str, Any] = {"name": "logits", "dataType": "FP32", "dims": [2]}
OWN_TOKENIZER: dict[str, Any] = {
    "type": "Python",
    "source": None,
    **QUEUE,
    "python": {"code": {"inline": "x = 1"}},
    "outputs": [{"name": "ids", "tensor": "InputIds"}, {"name": "mask", "tensor": "AttentionMask"}],
}


def reading(**tensors: str) -> list[dict[str, Any]]:
    """Inputs of these names, each with the token tensor that it reads."""
    return [
        {"name": name, "dataType": "INT64", "dims": [-1], "from": f"tokenizer.{tensor}"}
        for name, tensor in tensors.items()
    ]


WARNED: dict[str, tuple[dict[str, Any], str, FindingCode]] = {
    "label twice": (
        {
            **GOOD,
            "model": {**GOOD["model"], "outputs": [{**LOGITS, "dims": [3]}]},
            "postprocess": {"labels": ["a", "b", "a"]},
        },
        "spec.postprocess.labels",
        FindingCode.DUPLICATE_LABEL,
    ),
    "headless service with a short drain": (
        {
            **GOOD,
            "server": {"service": {"headless": "Enabled"}},
            "rollout": {"drainSeconds": HEADLESS_DRAIN_SECONDS - 1},
        },
        "spec.rollout.drainSeconds",
        FindingCode.DRAIN_TOO_SHORT,
    ),
    "longest for a backend": (
        {**GOOD, "tokenizer": {**GOOD["tokenizer"], "padding": "Longest"}},
        "spec.tokenizer.padding",
        FindingCode.PADDING_PREVENTS_BATCHING,
    ),
    "own tokenizer of any length": (
        {
            **GOOD,
            "tokenizer": OWN_TOKENIZER,
            "model": {**GOOD["model"], "inputs": reading(ids="ids", mask="mask")},
        },
        "spec.model.inputs[0]",
        FindingCode.SHAPES_PREVENT_BATCHING,
    ),
    "own step of any length": (
        {
            **GOOD,
            "steps": [
                {
                    "name": "cut",
                    **CODE,
                    "inputs": [
                        {"name": "logits", "dataType": "FP32", "dims": [2], "from": "model.logits"}
                    ],
                    "outputs": [{"name": "part", "dataType": "FP32", "dims": [-1]}],
                },
                {
                    "name": "second",
                    "platform": "onnxruntime_onnx",
                    "source": {"uri": "s3://b/m.onnx", "revision": "1"},
                    "inputs": [
                        {"name": "part", "dataType": "FP32", "dims": [-1], "from": "cut.part"}
                    ],
                    "outputs": [{"name": "o", "dataType": "FP32", "dims": [1]}],
                },
            ],
            "ensemble": {
                "outputs": [
                    {"name": "o", "from": "second.o"},
                    {"name": "LABEL", "from": "postprocess.LABEL"},
                ]
            },
        },
        "spec.steps[1].inputs[0]",
        FindingCode.SHAPES_PREVENT_BATCHING,
    ),
    "indexes beside names": (
        {
            **GOOD,
            "model": {
                **GOOD["model"],
                "platform": "pytorch_libtorch",
                "outputs": [LOGITS, {"name": "OUTPUT__1", "dataType": "FP32", "dims": [4]}],
            },
        },
        "spec.model.outputs",
        FindingCode.TORCHSCRIPT_NAMES,
    ),
    "split at the first underscores": (
        {
            **GOOD,
            "model": {
                **GOOD["model"],
                "platform": "pytorch_libtorch",
                "inputs": reading(INPUT__0="input_ids", a__b__1="attention_mask"),
            },
        },
        "spec.model.inputs",
        FindingCode.TORCHSCRIPT_NAMES,
    ),
    "an index twice": (
        {
            **GOOD,
            "model": {
                **GOOD["model"],
                "platform": "pytorch_libtorch",
                "inputs": reading(a__0="input_ids", b__0="attention_mask"),
            },
        },
        "spec.model.inputs",
        FindingCode.TORCHSCRIPT_NAMES,
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_one_warning_names_the_field_and_the_remedy(case: str) -> None:
    changes, path, code = WARNED[case]
    one = built(**changes)
    assert one.findings == []
    assert [(item.path, item.code) for item in one.warnings] == [(path, code)], one.warnings


@pytest.mark.parametrize(
    "model",
    [
        {
            "inputs": reading(INPUT__0="input_ids", INPUT__1="attention_mask"),
            "outputs": [{**LOGITS, "name": "OUTPUT__0"}],
        },
        {
            "inputs": reading(input_ids="input_ids", attention_mask="attention_mask"),
            "outputs": [LOGITS],
        },  # arguments of forward, or in this order
        {
            "inputs": reading(a__b__0="input_ids", a___1="attention_mask"),
            "outputs": [LOGITS],
        },  # no index: Triton splits at the first two underscores
    ],
    ids=["indexes", "names", "underscores"],
)
def test_lint_takes_names_that_torchscript_has_one_meaning_for(model: dict[str, Any]) -> None:
    assert (
        built(
            **{**GOOD, "model": {**PINNED["model"], "platform": "pytorch_libtorch", **model}}
        ).warnings
        == []
    )


def test_lint_takes_buckets_for_a_backend_that_batches_equal_lengths() -> None:
    assert (
        built(
            **{**GOOD, "tokenizer": {**GOOD["tokenizer"], "padding": "Bucketed", "buckets": [8]}}
        ).warnings
        == []
    )


def test_lint_does_not_check_the_lengths_of_a_custom_tokenizer() -> None:
    fixed = [
        {**output, "dims": [700]} for output in OWN_TOKENIZER["outputs"]
    ]  # longer than any default
    model = {**GOOD["model"], "lengths": {"max": 128}, "inputs": reading(ids="ids", mask="mask")}
    assert built(tokenizer={**OWN_TOKENIZER, "outputs": fixed}, model=model).warnings == []


def test_labels_are_not_compared_each_with_each(messages: Messages) -> None:
    """Keep linting fast, because every reconcile lints.

    Looking up each of 4 096 labels among all of them took 1.3 s of a reconcile.
    """
    compared = 0

    class Label(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    labels = [Label(f"class {number}") for number in range(500)]
    (reported,) = _labels([*labels, Label("class 7")])
    messages.check(reported.message)
    assert compared < len(labels)
