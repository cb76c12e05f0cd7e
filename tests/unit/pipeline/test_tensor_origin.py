"""Which step made the tensor that an error of Triton, or a look at an answer, speaks of."""

from __future__ import annotations

import pytest

from tests.support.builders import built
from triton_pipelines.compile.graph.tensor_origin import with_tensor_origin

MADE = (
    "(produced by spec.model: step model declares its output as logits FP32[2], and must return "
    "exactly that)"
)


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
def test_what_a_step_reads(said: str, reported: str | None) -> None:
    assert with_tensor_origin(built().graph, said) == f"{reported or said} {MADE}"


def test_what_clients_read() -> None:
    graph = built(postprocess=None).graph
    assert (
        with_tensor_origin(graph, "output logits is FP64, declared FP32")
        == f"output logits is FP64, declared FP32 {MADE}"
    )
    for fault in (
        "is missing from the response",
        "has 1 rows for 2 rows of input",
        "has shape [2, 3, 1], declared [-1, 2]",
        "is empty: shape [2, 0]",
    ):
        assert with_tensor_origin(graph, f"output logits {fault}").endswith(MADE)


@pytest.mark.parametrize(
    "said",
    [
        "output logits holds NaN",
        "output OTHER is FP64, declared FP32",
        "Stub process 'tokenizer_0_0' is not healthy",
        "inference input 'TEXT' data-type is 'FP64', but model 'tokenizer' expects 'BYTES'",
        "inference input 'other' data-type is 'FP64', but model 'postprocess' expects 'FP32'",
        "inference input 'logits' data-type is 'FP64', but model 'somebody' expects 'FP32'",
    ],
)
def test_what_no_step_made(said: str) -> None:
    assert (
        with_tensor_origin(
            built(postprocess=None).graph if said.startswith("output") else built().graph, said
        )
        == said
    )
