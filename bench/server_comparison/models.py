"""The models of the comparison: MiniLM, and a table that costs next to nothing.

Both have the same tensors and the same tokenizer. With the table, a server's CPU time is what it
costs outside the model.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from e2e.models import minilm, tree

MINILM, TABLE = "MiniLM", "table"
WIDTH, TOKENS = 384, 30522


def write_models(folder: Path, kind: str) -> Path:
    """Write a model and its tokenizer where the sample's sources are mapped to."""
    built = tree.build()
    model, tokenizer = folder / tree.EMBEDDING_MODEL, folder / tree.TOKENIZER_FOLDER
    model.parent.mkdir(parents=True)
    if kind == MINILM:
        shutil.copy(built / tree.EMBEDDING_MODEL, model)
    else:
        onnx.save(table_model(), str(model))
    shutil.copytree(built / tree.TOKENIZER_FOLDER, tokenizer)
    return folder


def table_model() -> Any:
    """Return a model whose output is a number per token, spread over the width and masked."""
    numbers = np.linspace(-1.0, 1.0, TOKENS, dtype=np.float32).reshape(TOKENS, 1)
    spread = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32).reshape(1, 1, WIDTH)
    nodes = [
        helper.make_node("Gather", ["numbers", minilm.INPUT_IDS], ["looked_up"], axis=0),
        helper.make_node("Cast", [minilm.ATTENTION_MASK], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["cast", "last"], ["mask"]),
        helper.make_node("Mul", ["looked_up", "mask"], ["masked"]),
        helper.make_node("Mul", ["masked", "spread"], [minilm.HIDDEN_STATE]),
    ]
    shape: list[str | int] = ["batch", "sequence"]
    graph = helper.make_graph(
        nodes,
        "table",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape)
            for name in (minilm.INPUT_IDS, minilm.ATTENTION_MASK)
        ],
        [helper.make_tensor_value_info(minilm.HIDDEN_STATE, TensorProto.FLOAT, [*shape, WIDTH])],
        [
            numpy_helper.from_array(numbers, "numbers"),
            numpy_helper.from_array(spread, "spread"),
            numpy_helper.from_array(np.array([-1]), "last"),
        ],
    )
    # The IR version that the oldest supported server reads.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
