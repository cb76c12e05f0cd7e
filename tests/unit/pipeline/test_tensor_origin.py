"""Trace a wrong tensor to the step that produced it."""

from __future__ import annotations

import pytest

from tests.support.builders import built
from triton_pipelines.triton.faulty_tensor import FaultyTensor, rejected_input
from triton_pipelines.triton.tensor_origin import with_tensor_origin

MADE = "(produced by spec.model: step 'model' must return its output as declared, logits FP32[2])"


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (
            "inference on 'sentiment' at 10.0.0.1:8001: in ensemble 'sentiment', "
            "[request id: x] inference input 'logits' data-type is 'FP64', but model "
            "'postprocess' expects 'FP32'",
            None,
        ),
        (
            "in ensemble 'sentiment', unexpected shape for input 'logits' for model "
            "'postprocess'. Expected [-1,2], got [2,3,1]. NOTE: Setting a non-zero "
            "max_batch_size in the model config requires a batch dimension to be prepended to "
            "each input shape. If you want to specify the full shape\n",
            (
                "in ensemble 'sentiment', unexpected shape for input 'logits' for model "
                "'postprocess'. Expected [-1,2], got [2,3,1]"
            ),
        ),
        (
            (
                "input byte size mismatch for input 'logits' for model 'postprocess'. Expected "
                "12, got 0"
            ),
            None,
        ),
        ("input 'logits' has no shape but model requires batch dimension for 'postprocess'", None),
        (
            "expected 1 inputs but got 0 inputs for model 'postprocess'. Got input(s) [], but "
            "missing required input(s) ['logits']. Please provide all "
            "required input(s).",
            None,
        ),
    ],
)
def test_an_input_that_a_step_rejects_is_traced_to_the_step_that_produced_it(
    said: str, reported: str | None
) -> None:
    found = rejected_input(said)
    assert found == FaultyTensor("logits", "postprocess")
    assert with_tensor_origin(built().graph, said, found) == f"{reported or said} {MADE}"


def test_an_output_for_clients_is_traced_to_the_step_that_produced_it() -> None:
    message = with_tensor_origin(built(postprocess=None).graph, "a fault", FaultyTensor("logits"))
    assert message == f"a fault {MADE}"


@pytest.mark.parametrize(
    "tensor",
    [
        None,
        FaultyTensor("OTHER"),
        FaultyTensor("TEXT", "tokenizer"),
        FaultyTensor("other", "postprocess"),
        FaultyTensor("logits", "somebody"),
    ],
)
def test_a_tensor_that_no_step_produced_adds_nothing(tensor: FaultyTensor | None) -> None:
    assert with_tensor_origin(built().graph, "a fault", tensor) == "a fault"


def test_other_errors_of_triton_name_no_tensor() -> None:
    assert rejected_input("Stub process 'tokenizer_0_0' is not healthy") is None
