"""A pipeline that starts in seconds, and its expected answers.

It is a tiny classifier from ConfigMaps of the test's namespace.

For tests about pods, not about models. Its answers tell the revision that gave them: the labels
bear its name.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from e2e.load.clients import Answer
from e2e.load.generator import Judge, Load, under_load
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import TOLERANCE, Pipeline, merged
from e2e.suite.reach import Reach
from tests.support import tinymodel
from triton_pipelines.api import names

NAME = "tiny"
SOURCES = "tiny-sources"
DRAIN_SECONDS = 4
"""Longer than it takes a small cluster to take a leaving pod out of every Service rule."""
LOADED_DRAIN_SECONDS = 12
"""The same where the only other pod leaves under load: the rules may need a second attempt."""
LEFT_SECONDS = 60.0
"""Seconds for everything around a pod's own grace period.

That includes the rollout that terminates it, and a kubelet that reconnects to its API server.
"""
SAFE_CLIENTS = ("grpc", "http-new-connection")
"""Clients that must not lose a request in a rollout or a drain.

HTTP clients that keep connections cannot be asked to move. Their losses are only measured.
"""
TEXTS = (
    "the quick fox jumps",
    "a red bird sings over the river",
    "old stone",
    "happy dog runs and the sad cat sleeps",
    "blue cloud far",
)


def sources() -> list[Object]:
    """Return ConfigMaps with the tokenizer and the model.

    `other.onnx` has outputs that the spec does not describe.
    """
    bad = tinymodel.graph()
    bad.graph.output[1].type.tensor_type.shape.dim[1].dim_value = tinymodel.CLASSES
    del bad.graph.output[1]
    files = {
        "model.onnx": tinymodel.graph().SerializeToString(),
        "other.onnx": bad.SerializeToString(),
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": SOURCES},
            "data": {"tokenizer.json": tinymodel.tokenizer().to_str()},
            "binaryData": {
                key: base64.b64encode(content).decode() for key, content in files.items()
            },
        }
    ]


def document(revision: str = "old", **spec: Any) -> Object:
    """Return the resource whose labels are `<revision>-0` and so on.

    `spec` is a JSON merge patch on its spec.
    """
    base = {
        "tokenizer": {"source": {"uri": f"configmap://{SOURCES}/tokenizer.json"}, "maxLength": 32},
        "model": {
            "platform": "onnxruntime_onnx",
            "source": {"uri": f"configmap://{SOURCES}/model.onnx"},
            "outputs": [{"name": "logits", "dataType": "FP32", "dims": [tinymodel.CLASSES]}],
        },
        "postprocess": {
            "type": "Softmax",
            "labels": [f"{revision}-{index}" for index in range(tinymodel.CLASSES)],
        },
        "server": {
            "resources": {
                "requests": {"cpu": "50m", "memory": "256Mi"},
                "limits": {"cpu": "2", "memory": "2Gi"},
            },
            "gpu": {"count": 0},
        },
        "health": {"periodSeconds": 5},
        "rollout": {"drainSeconds": DRAIN_SECONDS},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": NAME},
        "spec": merged(base, spec),
    }


def judge(text: str, answer: Answer) -> str:
    """The revision that gave this answer.

    Raises:
        AssertionError: no revision may answer so.
    """
    expected = assert_probabilities(text, answer)
    revision, _, best = answer["LABEL"][0, 0].decode().rpartition("-")
    assert best == str(int(expected.argmax())), (
        f"label {answer['LABEL'][0, 0]!r} for probabilities {expected}"
    )
    return str(revision)


def assert_probabilities(text: str, answer: Answer) -> np.ndarray[Any, Any]:
    """Return the expected probabilities of a text.

    Raises:
        AssertionError: The answer has others.
    """
    ids = np.array(tinymodel.tokenizer(baked_in=False).encode(text).ids)
    logits = tinymodel.classify(ids)
    expected: np.ndarray[Any, Any] = np.exp(logits - logits.max())
    expected /= expected.sum()
    np.testing.assert_allclose(answer["PROBABILITIES"], [expected], atol=TOLERANCE, rtol=0)
    return expected


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
        """Change labels to those of another revision, and `spec` with them.

        Returns the resource as stored.
        """
        return self.patch(
            {
                "spec": merged(
                    {
                        "postprocess": {
                            "labels": document(revision)["spec"]["postprocess"]["labels"]
                        }
                    },
                    spec,
                )
            }
        )

    @contextlib.contextmanager
    def load(self, judge: Judge = judge, **options: Any) -> Iterator[Load]:
        """Every kind of client on it, for the time of the context."""
        with (
            self._reach.service(self.namespace, self.name) as endpoint,
            under_load(Load(endpoint, self.name, TEXTS, judge, **options)) as load,
        ):
            yield load

    def pod_names(self) -> set[str]:
        """Names of its pods, also of those that leave."""
        return {pod["metadata"]["name"] for pod in self.pods()}

    def serving_pods(self) -> list[Object]:
        """Pods that are ready and stay."""
        return [
            pod
            for pod in self.pods()
            if is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
        ]

    def deployed_revision(self) -> str:
        """The revision of the Deployment's template."""
        labels = self.kube.get("Deployment", self.namespace, self.name)["spec"]["template"][
            "metadata"
        ]["labels"]
        return str(labels[names.LABEL_REVISION])

    def applied(self) -> dict[str, list[Any]]:
        """Return what the operator's field managers own of each child object, and since when.

        Any write of theirs that changes something shows here.
        """
        found: dict[str, list[Any]] = {}
        for kind in ("Deployment", "ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget"):
            for item in self.children(kind):
                managed = item["metadata"].get("managedFields") or []
                found[f"{kind}/{item['metadata']['name']}"] = [
                    entry
                    for entry in managed
                    if entry["manager"].startswith(names.MANAGER_CHILDREN)
                ]
        return found

    def inferences(self) -> int:
        """How many rows the ensemble has answered, over all its ready pods."""
        return sum(self.inferences_by_pod().values())

    def inferences_by_pod(self) -> dict[str, int]:
        """How many rows the ensemble has answered in each of its ready pods."""
        counts = {}
        for pod in self.serving_pods():
            name = pod["metadata"]["name"]
            path = (
                f"/api/v1/namespaces/{self.namespace}/pods/{name}:{names.PORT_HTTP}"
                f"/proxy/v2/models/{self.name}/stats"
            )
            counts[name] = sum(
                int(item.get("inference_count", 0))
                for item in self.kube.request("GET", path)["model_stats"]
            )
        return counts


def wait_left(tiny: TinyPipeline, pods: set[str]) -> None:
    """Wait until pods with these names are gone.

    Then the last request that one of them could lose is on record.

    A pod with clients that keep their connections takes its drain and Triton's whole time to end:
    nearly all of its grace period.
    """
    grace = max(
        (
            pod["spec"]["terminationGracePeriodSeconds"]
            for pod in tiny.pods()
            if pod["metadata"]["name"] in pods
        ),
        default=0,
    )
    wait_for(
        f"pods {sorted(pods)} gone",
        lambda: tiny.pod_names() & pods,
        lambda left: not left,
        grace + LEFT_SECONDS,
    )


def assert_none_lost(load: Load, answers: set[str]) -> None:
    """Assert that movable clients lost no request and that all answers are right.

    Every answer must be that of one of these revisions. No client may get a wrong one.
    """
    for client in set(SAFE_CLIENTS) & set(load.clients):
        summary = load.summary()[client]
        assert summary.failed == 0, [outcome for outcome in load.outcomes if outcome.error]
        assert set(summary.answers) == answers
    assert {outcome.answer for outcome in load.outcomes if not outcome.error} <= answers
    assert not [outcome for outcome in load.outcomes if outcome.error.startswith("wrong answer")]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's condition Ready is true."""
    return any(
        item["type"] == "Ready" and item["status"] == "True"
        for item in (pod.get("status") or {}).get("conditions") or ()
    )
