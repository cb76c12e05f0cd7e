"""Inline local functions: what an input does inside a function cannot be followed otherwise."""

from __future__ import annotations

from typing import Any

from onnx import inliner

from triton_pipelines.loader.onnx_store import skeleton


def inline_local_functions(model: Any) -> None:
    """Inline the calls of a model's local functions, as ONNX Runtime does when it loads the model.

    A function that cannot be inlined stays. The inliner gets names in place of the weights, which
    saves a copy of each.
    """
    if not model.functions:
        return
    try:
        flat = inliner.inline_local_functions(skeleton(model))
    except MemoryError:
        raise
    except Exception:
        # The inliner has no common error type for what it does not support.
        return
    for part in (model.graph.node, model.graph.value_info, model.functions, model.opset_import):
        del part[:]
    model.graph.node.extend(flat.graph.node)
    model.graph.value_info.extend(flat.graph.value_info)
    model.functions.extend(flat.functions)
    model.opset_import.extend(flat.opset_import)
