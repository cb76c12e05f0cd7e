"""Check that Triton can load a graph and that it computes what the user intends.

The rules are Triton's own (ensemble_utils.cc, model_config_utils.cc; facts measured against Triton
24.10) and a few of this product. Each message says what to write instead. The rest of Triton's
rules are checked on the rendered configs (:mod:`triton_pipelines.compile.validation`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .batching_checks import check_batching
from .example_request import check_example
from .graph import Graph
from .model_checks import check_models
from .name_checks import check_names
from .options import Options
from .postprocess_checks import check_postprocess
from .repeated_steps import check_repeated
from .server_checks import check_server
from .source_checks import check_sources
from .tokenizer_checks import check_tokenizer
from .wiring import check_wiring

# Of the resource as JSON. What is rendered of it must fit one ConfigMap (1 MiB): quoting doubles a
# text at worst, and the operator's own files, the pod template and the load plan come on top.
SPEC_BYTES_MAX = 350_000


def check(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """Return every error that would prevent the pipeline from loading or from answering correctly.

    If the result is empty, the pipeline may be rendered.
    """
    return [
        *check_repeated(pipeline, graph),
        *check_wiring(pipeline, graph),
        *check_names(pipeline, graph),
        *check_batching(graph),
        *check_tokenizer(pipeline, graph),
        *check_postprocess(pipeline, graph),
        *check_models(pipeline, graph, options),
        *check_sources(graph),
        *check_server(pipeline, graph, options),
        *check_example(pipeline, graph),
        *_size(pipeline),
    ]


def _size(pipeline: InferencePipeline) -> Iterator[Finding]:
    spec = pipeline.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    total = _bytes(spec)
    if total > SPEC_BYTES_MAX:
        parts = {
            f"spec.{name}.{key}": _bytes(value)
            for name, part in spec.items()
            if isinstance(part, dict)
            for key, value in part.items()
        }
        largest = max(parts, key=lambda name: parts[name])
        yield Finding(
            largest,
            f"the resource has {total} bytes, {parts[largest]} of them in this field, but "
            f"the ConfigMap of a revision can contain at most {SPEC_BYTES_MAX}; shorten "
            "this field",
            code=FindingCode.TOO_LARGE,
        )


def _bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str).encode())
