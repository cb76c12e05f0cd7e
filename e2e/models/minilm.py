"""ONNX graph of a BERT encoder (MiniLM), built from its weights.

It uses standard operators of opset 17 only.

Inputs: ``input_ids`` and ``attention_mask``, INT64 ``[batch, sequence]``; token types are 0 inside
the graph. Output: ``last_hidden_state`` FP32 ``[batch, sequence, hidden]``, or with a linear head
``logits`` FP32 ``[batch, classes]``.

Masked positions get an attention weight of exactly 0 and no part in the mean, so padding never
changes a row's answer. The same weights give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from onnx import TensorProto, helper

from e2e.models.graph import Graph
from e2e.models.weights import Array, EncoderConfig, Weights

# Added to the attention score of a masked position. Its exp() is exactly 0 in FP32, whatever the
# score.
MASKED: Final = -1e9
INPUT_IDS: Final = "input_ids"
ATTENTION_MASK: Final = "attention_mask"
HIDDEN_STATE: Final = "last_hidden_state"
LOGITS: Final = "logits"


@dataclass(frozen=True)
class LinearHead:
    """A linear classifier on the mean-pooled encoder output.

    ``weight`` is ``[hidden, classes]``, ``bias`` is ``[classes]``.
    """

    weight: Array
    bias: Array


def _dense(graph: Graph, weights: Weights, source: str, value: str) -> str:
    """``value @ W.T + b``; the checkpoint holds W as ``[out, in]``."""
    weight = graph.constant(f"{source}.weight", weights[f"{source}.weight"].T)
    bias = graph.constant(f"{source}.bias", weights[f"{source}.bias"])
    return graph.node(
        "Add", [graph.node("MatMul", [value, weight], f"{source}/matmul"), bias], f"{source}/add"
    )


def _layer_norm(
    graph: Graph, weights: Weights, config: EncoderConfig, source: str, value: str
) -> str:
    scale = graph.constant(f"{source}.weight", weights[f"{source}.weight"])
    bias = graph.constant(f"{source}.bias", weights[f"{source}.bias"])
    return graph.node(
        "LayerNormalization",
        [value, scale, bias],
        f"{source}/norm",
        axis=-1,
        epsilon=config.layer_norm_eps,
    )


def _embeddings(graph: Graph, weights: Weights, config: EncoderConfig) -> str:
    """Word + position + token type 0, normalised: ``[batch, sequence, hidden]``.

    A sequence longer than the position table fails in the addition instead of giving a wrong
    answer.
    """
    words = graph.constant(
        "embeddings.word_embeddings.weight", weights["embeddings.word_embeddings.weight"]
    )
    positions = graph.constant(
        "embeddings.position_embeddings.weight", weights["embeddings.position_embeddings.weight"]
    )
    types = graph.constant(
        "embeddings.token_type_embeddings.type_0",
        weights["embeddings.token_type_embeddings.weight"][0],
    )
    shape = graph.node("Shape", [INPUT_IDS], "embeddings/shape")
    length = graph.node("Slice", [shape, graph.ints(1), graph.ints(2)], "embeddings/length")
    own_positions = graph.node(
        "Slice", [positions, graph.ints(0), length, graph.ints(0)], "embeddings/positions"
    )
    own_words = graph.node("Gather", [words, INPUT_IDS], "embeddings/words", axis=0)
    typed = graph.node("Add", [own_words, types], "embeddings/typed")
    summed = graph.node("Add", [typed, own_positions], "embeddings/sum")
    return _layer_norm(graph, weights, config, "embeddings.LayerNorm", summed)


def _attention(
    graph: Graph, weights: Weights, config: EncoderConfig, prefix: str, value: str, mask: str
) -> str:
    """Multi-head self-attention with its output projection; ``mask`` is added to the scores."""
    split = graph.ints(0, 0, config.num_attention_heads, config.head_size)

    def heads(part: str, perm: list[int]) -> str:
        source = f"{prefix}.attention.self.{part}"
        projected = graph.node(
            "Reshape", [_dense(graph, weights, source, value), split], f"{source}/heads"
        )
        return graph.node("Transpose", [projected], f"{source}/transposed", perm=perm)

    query, key, content = (
        heads("query", [0, 2, 1, 3]),
        heads("key", [0, 2, 3, 1]),
        heads("value", [0, 2, 1, 3]),
    )
    name = f"{prefix}.attention.self"
    products = graph.node("MatMul", [query, key], f"{name}/products")
    scores = graph.node(
        "Mul", [products, graph.scalar("attention_scale", config.head_size**-0.5)], f"{name}/scores"
    )
    masked = graph.node("Add", [scores, mask], f"{name}/masked")
    shares = graph.node("Softmax", [masked], f"{name}/shares", axis=-1)
    mixed = graph.node(
        "Transpose",
        [graph.node("MatMul", [shares, content], f"{name}/mixed")],
        f"{name}/back",
        perm=[0, 2, 1, 3],
    )
    joined = graph.node("Reshape", [mixed, graph.ints(0, 0, config.hidden_size)], f"{name}/joined")
    return _dense(graph, weights, f"{prefix}.attention.output.dense", joined)


def _gelu(graph: Graph, name: str, value: str) -> str:
    """The exact GELU, x · (1 + erf(x / √2)) / 2: opset 17 has no operator of its own for it."""
    scaled = graph.node("Div", [value, graph.scalar("sqrt_2", 2.0**0.5)], f"{name}/scaled")
    shifted = graph.node(
        "Add",
        [graph.node("Erf", [scaled], f"{name}/erf"), graph.scalar("one", 1.0)],
        f"{name}/shifted",
    )
    product = graph.node("Mul", [value, shifted], f"{name}/product")
    return graph.node("Mul", [product, graph.scalar("half", 0.5)], f"{name}/gelu")


def _layer(
    graph: Graph, weights: Weights, config: EncoderConfig, index: int, value: str, mask: str
) -> str:
    prefix = f"encoder.layer.{index}"
    attended = _attention(graph, weights, config, prefix, value, mask)
    residual = graph.node("Add", [attended, value], f"{prefix}.attention/residual")
    normed = _layer_norm(graph, weights, config, f"{prefix}.attention.output.LayerNorm", residual)
    inner = _gelu(
        graph,
        f"{prefix}.intermediate",
        _dense(graph, weights, f"{prefix}.intermediate.dense", normed),
    )
    outer = _dense(graph, weights, f"{prefix}.output.dense", inner)
    return _layer_norm(
        graph,
        weights,
        config,
        f"{prefix}.output.LayerNorm",
        graph.node("Add", [outer, normed], f"{prefix}/residual"),
    )


def _mean_pool(graph: Graph, hidden: str, mask: str) -> str:
    """Mean over the unmasked positions, ``[batch, hidden]``; a row without any gives zeros."""
    column = graph.node("Unsqueeze", [mask, graph.ints(2)], "pooling/mask")
    kept = graph.node("Mul", [hidden, column], "pooling/kept")
    total = graph.node("ReduceSum", [kept, graph.ints(1)], "pooling/total", keepdims=0)
    count = graph.node("ReduceSum", [mask, graph.ints(1)], "pooling/count", keepdims=1)
    return graph.node(
        "Div",
        [total, graph.node("Max", [count, graph.scalar("one", 1.0)], "pooling/tokens")],
        "pooling/mean",
    )


def build_model(weights: Weights, config: EncoderConfig, head: LinearHead | None = None) -> Any:
    """Return the checked ``onnx.ModelProto`` of the encoder.

    With ``head``, it includes mean pooling and a classifier.

    Raises:
        KeyError: the checkpoint has no such tensor; the error names it.
    """
    graph = Graph()
    mask = graph.node("Cast", [ATTENTION_MASK], "mask/float", to=TensorProto.FLOAT)
    inverse = graph.node("Sub", [graph.scalar("one", 1.0), mask], "mask/inverse")
    penalty = graph.node("Mul", [inverse, graph.scalar("masked", MASKED)], "mask/penalty")
    additive = graph.node("Unsqueeze", [penalty, graph.ints(1, 2)], "mask/additive")
    value = _embeddings(graph, weights, config)
    for index in range(config.num_hidden_layers):
        value = _layer(graph, weights, config, index, value, additive)
    if head is None:
        graph.node("Identity", [value], HIDDEN_STATE)
        output = helper.make_tensor_value_info(
            HIDDEN_STATE, TensorProto.FLOAT, ["batch", "sequence", config.hidden_size]
        )
    else:
        pooled = _mean_pool(graph, value, mask)
        scores = graph.node(
            "MatMul",
            [pooled, graph.constant("classifier.weight", head.weight)],
            "classifier/matmul",
        )
        graph.node("Add", [scores, graph.constant("classifier.bias", head.bias)], LOGITS)
        output = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", len(head.bias)])
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in (INPUT_IDS, ATTENTION_MASK)
    ]
    return graph.model("encoder", inputs, [output])
