"""A tuning run on a real node, measured on a pod without traffic, with undisturbed clients."""

import pytest

from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.tiny import TinyPipeline, assert_none_lost
from triton_pipelines.api import names

RUN_SECONDS = 600.0
"""A quick run measures for under three minutes; the rest is for a slow node."""
KINDS = ("Deployment", "Job", "ConfigMap", "NetworkPolicy", "Pod")


def of_run(kube: Kube, namespace: str) -> list[tuple[str, str]]:
    """What a run has made and has not gone yet."""
    found = [(kind, item["metadata"]) for kind in KINDS for item in kube.objects(kind, namespace)]
    return [
        (kind, metadata["name"])
        for kind, metadata in found
        if names.LABEL_RUN in (metadata.get("labels") or {})
    ]


@pytest.mark.timeout(900, func_only=True)
@pytest.mark.proves("spec.tuning.request", "behaviour")
def test_a_run_costs_no_live_request_and_leaves_nothing(kube: Kube, tiny: TinyPipeline) -> None:
    # Written, so that whatever is measured stays a recommendation.
    tiny.serve("old", slo={"p99Milliseconds": 1000}, tokenizer={"padding": "Ragged"})
    before, spec = tiny.pod_names(), tiny.get()["spec"]
    served = {pod["metadata"]["name"]: pod for pod in tiny.serving_pods()}
    with tiny.load() as load:
        tiny.patch({"spec": {"tuning": {"request": "once"}}})
        reported = wait_for(
            "the run's end",
            lambda: tuning(tiny),
            lambda state: state.get("state") in ("Succeeded", "Failed"),
            RUN_SECONDS,
        )
        load.wait_requests()
    assert_none_lost(load, {"old"})
    assert reported["request"] == "once"
    wait_for(
        "nothing is left of the run",
        lambda: of_run(kube, tiny.namespace),
        lambda left: not left,
        120,
    )
    assert tiny.pod_names() == before
    for pod in tiny.serving_pods():
        counts = [item["restartCount"] for item in pod["status"]["containerStatuses"]]
        assert counts == [
            item["restartCount"]
            for item in served[pod["metadata"]["name"]]["status"]["containerStatuses"]
        ]
    after = tiny.get()["spec"]
    after.pop("tuning")
    assert after == {key: value for key, value in spec.items() if key != "tuning"}, (
        "the spec is the user's"
    )
    assert reported["state"] == "Succeeded", reported
    assert len([point for point in reported["points"] if point["outcome"] != "Predicted"]) >= 3


def tuning(tiny: TinyPipeline) -> Object:
    """The status of the run."""
    return dict(tiny.status().get("tuning") or {})
