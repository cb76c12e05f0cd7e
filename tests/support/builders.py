"""Short ways to a resource, its graph and what is rendered of it, for tests.

``document(**changes)`` is the sentiment pipeline with a deep merge of ``changes`` into its spec:
mappings are merged, everything else is replaced, and a ``None`` removes the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.copies import copied
from triton_pipelines.api import Finding, InferencePipeline, parse
from triton_pipelines.compile.graph import Graph, Options, build, check, lint
from triton_pipelines.compile.render import Revision, render

SERVER_IMAGE = "registry.example/tritonserver:26.07-py3"
LOADER_IMAGE = "registry.example/triton-pipelines:1.2.3"
SHA256 = "0123456789abcdef" * 4

SENTIMENT: Mapping[str, Any] = {
    "apiVersion": "tritonpipelines.io/v1alpha1",
    "kind": "InferencePipeline",
    "metadata": {
        "name": "sentiment",
        "namespace": "nlp",
        "uid": "11111111-2222-3333-4444-555555555555",
    },
    "spec": {
        "tokenizer": {"source": {"uri": "hf://org/sentiment"}},
        "model": {
            "platform": "onnxruntime_onnx",
            "source": {"uri": "s3://models/sentiment/model.onnx"},
            "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
        },
        "postprocess": {"type": "Softmax", "labels": ["negative", "positive"]},
    },
}


def merge(base: Any, changes: Any) -> Any:
    """``base`` with ``changes`` merged in; neither is modified."""
    return _merged(copied(base), copied(changes))


def _merged(base: Any, changes: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(changes, Mapping)):
        return changes
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key, {}), value)
    return merged


def document(*, name: str = "sentiment", namespace: str = "nlp", **spec: Any) -> dict[str, Any]:
    """The sentiment resource with changes to its spec, as a user would write it."""
    changed: dict[str, Any] = merge(
        SENTIMENT, {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    )
    return changed


def options(**changes: Any) -> Options:
    """Return the operator's start options.

    Images are fixed, so that a new default changes no expected value.
    """
    return Options(**{"server_image": SERVER_IMAGE, "loader_image": LOADER_IMAGE, **changes})


def pipeline(**changes: Any) -> InferencePipeline:
    """The parsed resource; :class:`ValueError` when schema or rules find anything."""
    parsed, findings = parse(document(**changes))
    if parsed is None or findings:
        raise ValueError("; ".join(map(str, findings)))
    return parsed


@dataclass(frozen=True)
class Built:
    """A resource with its graph and what the checks say."""

    pipeline: InferencePipeline
    options: Options
    graph: Graph

    @property
    def findings(self) -> list[Finding]:
        """What would keep it from being rendered."""
        return check(self.pipeline, self.graph, self.options)

    @property
    def warnings(self) -> list[Finding]:
        """What lint says."""
        return lint(self.pipeline, self.graph)

    def render(self, digests: Mapping[str, str] | None = None) -> Revision:
        """The revision; :class:`ValueError` when a check finds something."""
        if self.findings:
            raise ValueError("; ".join(map(str, self.findings)))
        return render(self.pipeline, self.graph, self.options, digests)


def built(given: Options | None = None, **changes: Any) -> Built:
    """The sentiment resource with changes to its spec, parsed and built."""
    chosen, parsed = given or options(), pipeline(**changes)
    return Built(parsed, chosen, build(parsed, chosen))


def graph(given: Options | None = None, **changes: Any) -> Graph:
    """The graph of the sentiment resource with changes to its spec."""
    return built(given, **changes).graph
