"""A pipeline that starts in seconds: a tiny classifier from ConfigMaps of the test's namespace, and what it has to answer.

For tests about pods, not about models. Its answers tell the revision that gave them: the labels bear its name.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from e2e.load.clients import Answer
from e2e.load.generator import Load, under_load
from e2e.suite.kube import Kube, Object
from e2e.suite.pipelines import TOLERANCE, Pipeline, merged
from e2e.suite.reach import Reach
from tests.support import tinymodel
from triton_pipelines.api import names

NAME = "tiny"
SOURCES = "tiny-sources"
DRAIN_SECONDS = 4
"""Longer than it takes a small cluster to take a leaving pod out of every Service rule."""
TEXTS = ("the quick fox jumps", "a red bird sings over the river", "old stone", "happy dog runs and the sad cat sleeps", "blue cloud far")


def sources() -> list[Object]:
    """ConfigMaps with the tokenizer and the model, `other.onnx` with outputs that the spec does not describe."""
    bad = tinymodel.graph()
    bad.graph.output[1].type.tensor_type.shape.dim[1].dim_value = tinymodel.CLASSES
    del bad.graph.output[1]
    files = {"model.onnx": tinymodel.graph().SerializeToString(), "other.onnx": bad.SerializeToString()}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": SOURCES},
            "data": {"tokenizer.json": tinymodel.tokenizer().to_str()},
            "binaryData": {key: base64.b64encode(content).decode() for key, content in files.items()},
        }
    ]


def document(revision: str = "old", **spec: Any) -> Object:
    """The resource whose labels are `<revision>-0` and so on; `spec` goes over it (JSON merge patch)."""
    base = {
        "tokenizer": {"source": {"uri": f"configmap://{SOURCES}/tokenizer.json"}, "maxLength": 32},
        "model": {
            "platform": "onnxruntime_onnx",
            "source": {"uri": f"configmap://{SOURCES}/model.onnx"},
            "outputs": [{"name": "logits", "dataType": "FP32", "dims": [tinymodel.CLASSES]}],
        },
        "postprocess": {"type": "Softmax", "labels": [f"{revision}-{index}" for index in range(tinymodel.CLASSES)]},
        "server": {"resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}, "gpu": {"count": 0}},
        "health": {"periodSeconds": 5},
        "rollout": {"drainSeconds": DRAIN_SECONDS},
    }
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": NAME}, "spec": merged(base, spec)}


def judge(text: str, answer: Answer) -> str:
    """The revision that gave this answer.

    Raises:
        AssertionError: no revision may answer so.
    """
    ids = np.array(tinymodel.tokenizer(baked_in=False).encode(text).ids)
    logits = tinymodel.classify(ids)
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(answer["PROBABILITIES"], [expected], atol=TOLERANCE, rtol=0)
    revision, _, best = answer["LABEL"][0, 0].decode().rpartition("-")
    assert best == str(int(expected.argmax())), f"label {answer['LABEL'][0, 0]!r} for probabilities {expected}"
    return str(revision)


class TinyPipeline(Pipeline):
    """The pipeline in one namespace, with its sources there."""

    def __init__(self, kube: Kube, namespace: str, reach: Reach, name: str = NAME) -> None:
        super().__init__(kube, namespace, name)
        self._reach = reach
        for item in sources():
            kube.apply(item, namespace=namespace)

    def serve(self, revision: str = "old", **spec: Any) -> Object:
        """Apply the resource and wait until it is Ready; returns it."""
        self.apply(document(revision, **spec))
        return self.wait_ready()

    def change(self, revision: str, **spec: Any) -> Object:
        """Change labels to those of another revision, and `spec` with them; returns the resource as stored."""
        return self.patch({"spec": merged({"postprocess": {"labels": document(revision)["spec"]["postprocess"]["labels"]}}, spec)})

    @contextlib.contextmanager
    def load(self, **options: Any) -> Iterator[Load]:
        """Every kind of client on it, for the time of the context."""
        with self._reach.service(self.namespace, self.name) as endpoint, under_load(Load(endpoint, self.name, TEXTS, judge, **options)) as load:
            yield load

    def pod_names(self) -> set[str]:
        """Names of its pods, also of those that leave."""
        return {pod["metadata"]["name"] for pod in self.pods()}

    def serving_pods(self) -> list[Object]:
        """Pods that are ready and stay."""
        return [pod for pod in self.pods() if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's condition Ready is true."""
    return any(item["type"] == "Ready" and item["status"] == "True" for item in (pod.get("status") or {}).get("conditions") or ())
