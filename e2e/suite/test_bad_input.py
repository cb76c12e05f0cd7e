"""User errors and missing dependencies are named exactly and do not affect what serves.

Tests of edits share one pipeline that serves, since its pods take longer to start than an edit
takes to fail.
"""

from collections.abc import Iterator

import pytest

from e2e.suite import clients
from e2e.suite.kube import Kube, wait_for
from e2e.suite.pipelines import Pipeline, check_answer, golden, small
from e2e.suite.reach import Reach


def serves(pipeline: Pipeline, reach: Reach) -> None:
    cases = golden("sentiment", 2, longest=32)
    with reach.service(pipeline.namespace, pipeline.name) as endpoint:
        check_answer(
            "sentiment",
            cases,
            clients.grpc(endpoint, "sentiment", [case["text"] for case in cases]),
        )


def uids(pipeline: Pipeline) -> set[str]:
    return {item["metadata"]["uid"] for item in pipeline.pods()}


@pytest.fixture(scope="module")
def running(kube: Kube, module_namespace: str) -> Pipeline:
    """Return a pipeline that is Ready at least once."""
    pipeline = Pipeline(kube, module_namespace, "sentiment")
    pipeline.apply(small("sentiment"))
    pipeline.wait_ready()
    return pipeline


@pytest.fixture
def served(running: Pipeline) -> Iterator[Pipeline]:
    """Return a pipeline that serves and has no other revision; its spec is restored at the end.

    The same pods must serve all tests: no edit replaces them.
    """
    pods = uids(running)
    with running.restored():
        yield running
    assert uids(running) == pods


@pytest.fixture(scope="module", autouse=True)
def truncated(kube: Kube, module_namespace: str) -> Pipeline:
    """Return a pipeline whose model is cut off; other tests run while its loader tries again."""
    pipeline = Pipeline(kube, module_namespace, "truncated")
    source = {"uri": "s3://truncated/models/sentiment/model.onnx"}
    document = small("sentiment", model={"source": source})
    document["metadata"]["name"] = pipeline.name
    pipeline.apply(document)
    return pipeline


def test_all_semantic_findings_at_once_and_the_running_version_untouched(
    served: Pipeline, reach: Reach
) -> None:
    pipeline, good, before = served, served.get(), uids(served)
    deployed = pipeline.children("Deployment")[0]["metadata"]["generation"]

    pipeline.patch(
        {
            "spec": {
                "model": {"batching": {"preferredBatchSizes": [4, 4000]}, "maxBatchSize": 8},
                "server": {
                    "args": ["--model-repository=/elsewhere", "--exit-on-error=true"],
                    "env": [{"name": "TRITONPIPE_CONTROL_KEY", "value": "x"}],
                },
            }
        }
    )
    stalled = pipeline.wait_condition("Stalled", "True", "InvalidSpec")
    ready = pipeline.condition("Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "False",
        "InvalidSpec",
        stalled["message"],
    )
    for named in ("--model-repository", "--exit-on-error", "TRITONPIPE_CONTROL_KEY"):
        assert named in stalled["message"]
    assert "findings: (1) spec." in stalled["message"]
    assert pipeline.wait_event("InvalidSpec")["type"] == "Warning"

    assert pipeline.condition("Available")["status"] == "True"
    assert pipeline.status()["servingRevision"] == good["status"]["servingRevision"]
    assert uids(pipeline) == before
    assert pipeline.children("Deployment")[0]["metadata"]["generation"] == deployed
    serves(pipeline, reach)

    pipeline.apply(small("sentiment"))
    pipeline.patch(
        {
            "spec": {
                "server": {"args": None, "env": None},
                "model": {"batching": None, "maxBatchSize": None},
            }
        }
    )
    pipeline.wait_ready()
    assert pipeline.condition("Stalled") == {}
    assert uids(pipeline) == before


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("hf://nobody/nothing", "nobody/nothing"),
        ("s3://missing/models/sentiment/model.onnx", "404"),
    ],
    ids=["no-repository", "no-file"],
)
def test_a_missing_source_is_named(pipeline: Pipeline, uri: str, words: str) -> None:
    step = "tokenizer" if uri.startswith("hf://") else "model"
    pipeline.apply(small("sentiment", **{step: {"source": {"uri": uri}}}))
    reported = pipeline.wait_condition("Ready", "False", "SourceUnavailable")
    assert f"spec.{step}.source" in reported["message"]
    assert words in reported["message"]
    assert pipeline.condition("Stalled") == {}  # it may appear: waited for, not given up
    assert pipeline.wait_event("SourceUnavailable")["type"] == "Warning"


def test_a_source_that_appears_later_is_fetched(
    pipeline: Pipeline, kube: Kube, reach: Reach
) -> None:
    from e2e.models import tree

    # The tokenizer comes from a ConfigMap that does not exist yet. Only the cluster decides when it
    # appears.
    pipeline.apply(
        small("sentiment", tokenizer={"source": {"uri": "configmap://words/tokenizer.json"}})
    )
    reported = pipeline.wait_condition("Ready", "False", "SourceUnavailable")
    assert "words" in reported["message"]
    text = (tree.build() / tree.TOKENIZER_FOLDER / "tokenizer.json").read_text()
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "words"},
        "data": {"tokenizer.json": text},
    }
    kube.apply(document, namespace=pipeline.namespace)
    pipeline.wait_ready()
    serves(pipeline, reach)


@pytest.mark.parametrize("how", ["wrong-sum", "corrupt-file"])
def test_a_wrong_checksum_stalls_the_rollout_and_the_old_revision_serves(
    served: Pipeline, reach: Reach, how: str
) -> None:
    pipeline, good = served, served.status()
    right = next(item["sha256"] for item in good["sources"] if item["step"] == "model")
    if how == "wrong-sum":
        source = {"uri": "s3://models/sentiment/model.onnx", "sha256": "0" * 64}
    else:
        source = {"uri": "s3://corrupt/models/sentiment/model.onnx", "sha256": right}
    pipeline.patch({"spec": {"model": {"source": source}}})
    reported = pipeline.wait_condition("Stalled", "True", "ChecksumMismatch")
    assert "spec.model.source" in reported["message"]
    assert source["sha256"] in reported["message"]
    if how == "wrong-sum":
        assert right in reported["message"]
    assert pipeline.condition("Available")["status"] == "True"
    assert pipeline.status()["servingRevision"] == good["servingRevision"]
    serves(pipeline, reach)


def test_a_model_that_does_not_fit_shows_both_sides(served: Pipeline, reach: Reach) -> None:
    pipeline, good = served, served.status()
    outputs = [{"name": "scores", "dataType": "FP32", "dims": [3]}]
    pipeline.patch(
        {
            "spec": {
                "model": {"outputs": outputs},
                "postprocess": {"labels": ["bad", "so-so", "good"]},
            }
        }
    )
    reported = pipeline.wait_condition("Stalled", "True", "ModelMismatch")
    for side in ("spec.model", "scores", "logits"):
        assert side in reported["message"]
    assert pipeline.condition("Available")["status"] == "True"
    assert pipeline.status()["servingRevision"] == good["servingRevision"]
    pipeline.wait_condition("ModelsReady", "False")
    serves(pipeline, reach)


def test_an_image_that_cannot_be_pulled_is_named(served: Pipeline, reach: Reach) -> None:
    pipeline = served
    # Nothing listens there. A name that does not resolve would take longer to fail.
    image = "127.0.0.1:1/nobody/tritonserver:24.10"
    pipeline.patch({"spec": {"server": {"image": image}}})
    reported = pipeline.wait_condition("Ready", "False", "ImageUnavailable")
    assert image in reported["message"]
    assert "triton" in reported["message"]
    assert pipeline.condition("Available")["status"] == "True"
    serves(pipeline, reach)


def test_waiting_for_a_gpu_names_what_is_asked_and_what_is_offered(
    pipeline: Pipeline, kube: Kube
) -> None:
    pipeline.apply(
        small("sentiment", server={"gpu": {"count": 1, "products": ["NVIDIA-Nonesuch"]}})
    )
    reported = pipeline.wait_condition("Ready", "False", "WaitingForGPU")
    assert "requests 1 nvidia.com/gpu" in reported["message"]
    offers = []
    for node in kube.objects("Node"):
        amount = node["status"]["allocatable"].get("nvidia.com/gpu", "0")
        if amount != "0":
            offers.append(f"{amount} on node {node['metadata']['name']}")
    for offer in offers:
        assert offer in reported["message"]
    if not offers:
        assert "none of" in reported["message"]
    assert "of product NVIDIA-Nonesuch;" in reported["message"]
    assert pipeline.condition("Stalled") == {}
    pipeline.patch({"spec": {"server": {"gpu": {"count": 0, "products": None}}}})
    pipeline.wait_ready()


def test_more_gpus_than_there_are(pipeline: Pipeline) -> None:
    pipeline.apply(small("sentiment", server={"gpu": {"count": 64}}))
    reported = pipeline.wait_condition("Ready", "False", "WaitingForGPU")
    assert "requests 64 nvidia.com/gpu" in reported["message"]


def test_a_truncated_source_is_not_taken_for_a_model(truncated: Pipeline) -> None:
    pipeline = truncated
    reported = pipeline.wait_condition("Ready", "False", "SourceUnavailable")
    assert "spec.model.source" in reported["message"]
    wait_for(
        "no pod serves",
        lambda: pipeline.status().get("readyReplicas", 0),
        lambda count: count == 0,
        60,
    )


def test_slow_and_flaky_sources_are_waited_for(pipeline: Pipeline, reach: Reach) -> None:
    pipeline.apply(
        small("sentiment", model={"source": {"uri": "s3://flaky/models/sentiment/model.onnx"}})
    )
    pipeline.wait_ready()
    pipeline.patch(
        {"spec": {"model": {"source": {"uri": "s3://slow/models/sentiment/model.onnx"}}}}
    )
    pipeline.wait_condition("Ready", "False", "Loading")
    pipeline.wait_ready()
    serves(pipeline, reach)
