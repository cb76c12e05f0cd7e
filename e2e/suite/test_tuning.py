"""A tuning run on a real node: measured on a pod that serves nobody, while clients go on as if nothing were; then Auto takes what was proven."""

import inspect
import textwrap

import pytest
import yaml

from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import merged
from e2e.suite.tiny import TinyPipeline, assert_none_lost, wait_left
from tests.support import tinymodel
from triton_pipelines.api import names

RUN_SECONDS = 600.0
"""A quick run measures for under three minutes; the rest is for a slow node."""
KINDS = ("Deployment", "Job", "ConfigMap", "NetworkPolicy", "Pod")
EXECUTION_SECONDS, ROW_SECONDS = 0.05, 0.01
"""Of a step that waits so long for each batch, and for each of its rows: for lack of a GPU, whose cost is of that kind. It carries 16 rows a second
one by one and 90 in full batches, which is far from what two cores can do beside: what is proven does not hang on who else needs them."""
SLO_MILLISECONDS = 1500
"""Twice as long as a batch of 64 takes."""
LOAD_INTERVAL_SECONDS = 1.5
"""Between two requests of a client: all of them together ask for a third of what such a step carries one by one."""


def step_code() -> str:
    """A model.py that answers as the tiny classifier does, each row by its own tokens, and takes its time as a GPU does: most of it for a batch, a little for each row."""
    known = {name: getattr(tinymodel, name) for name in ("SPECIAL", "WORDS", "WIDTH", "CLASSES", "POSITIONS", "SEED")}
    constants = "\n".join(f"{name} = {value!r}" for name, value in known.items())
    functions = "\n\n".join(inspect.getsource(made) for made in (tinymodel.weights, tinymodel.encode, tinymodel.classify))
    model = f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.device = open(__file__)

            def execute(self, requests):
                rows = sum(len(pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()) for request in requests)
                fcntl.flock(self.device, fcntl.LOCK_EX)  # instances take turns, as on one device
                time.sleep({EXECUTION_SECONDS} + {ROW_SECONDS} * rows)
                fcntl.flock(self.device, fcntl.LOCK_UN)
                responses = []
                for request in requests:
                    ids, mask = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("input_ids", "attention_mask"))
                    logits = np.array([classify(row[kept > 0]) for row, kept in zip(ids, mask)], np.float32)
                    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("logits", logits)]))
                return responses
        """
    imports = "import fcntl\nimport time\n\nimport numpy as np\nimport triton_python_backend_utils as pb_utils"
    return "\n\n\n".join((imports, constants, functions, textwrap.dedent(model).strip())) + "\n"


def costly() -> Object:
    """The spec's part by which the model is that step; batches hold rows of one length."""
    inputs = [{"name": name, "dataType": "INT64", "dims": [-1], "ragged": "Disabled"} for name in ("input_ids", "attention_mask")]
    return {"platform": "python", "source": None, "python": {"code": {"inline": step_code()}}, "inputs": inputs}


def of_run(kube: Kube, namespace: str) -> list[tuple[str, str]]:
    """What a run has made and has not gone yet."""
    found = [(kind, item["metadata"]) for kind in KINDS for item in kube.objects(kind, namespace)]
    return [(kind, metadata["name"]) for kind, metadata in found if names.LABEL_RUN in (metadata.get("labels") or {})]


@pytest.mark.timeout(900, func_only=True)
@pytest.mark.proves("spec.tuning.request", "behaviour")
@pytest.mark.proves("spec.tokenizer.padding", "behaviour")
def test_a_run_costs_no_live_request_leaves_nothing_and_auto_takes_the_padding_that_it_proved(kube: Kube, tiny: TinyPipeline) -> None:
    tiny.serve("old", slo={"p99Milliseconds": SLO_MILLISECONDS}, tokenizer={"maxLength": tinymodel.POSITIONS}, model=costly())
    ruled = tiny.status()["padding"]
    assert ruled["chosen"] == "Ragged"
    assert ruled["reason"].endswith("; by rule, not measured yet")
    spec, served = tiny.get()["spec"], starts(tiny)
    with tiny.load(interval=LOAD_INTERVAL_SECONDS) as load:
        tiny.patch({"spec": {"tuning": {"request": "once"}}})
        seen: list[dict[str, list[int]]] = []

        def told_beside_pods() -> Object:
            found = starts(tiny)  # before the state: the end of a run may begin a rollout
            told = tuning(tiny)
            if told.get("state") in ("Pending", "Running"):
                seen.append(found)
            return told

        told = wait_for("the run's end", told_beside_pods, lambda state: state.get("state") in ("Succeeded", "Failed"), RUN_SECONDS)
        assert told["state"] == "Succeeded", told
        assert told.get("gainPercent", 0) > 0, told
        assert [found for found in seen if found != served] == [], "no pod that serves was touched while it ran"
        if "patch" in told:  # other knobs, too: the user's to commit
            tiny.patch(yaml.safe_load(told["patch"]))
        tiny.wait("the proven padding serves", taken)
        wait_left(tiny, set(served))
        load.wait_requests()
    assert_none_lost(load, {"old"})
    assert told["request"] == "once"
    assert len([point for point in told["points"] if point["outcome"] != "Predicted"]) >= 3
    wait_for("nothing is left of the run", lambda: of_run(kube, tiny.namespace), lambda left: not left, 120)
    status, after = tiny.status(), tiny.get()["spec"]
    after.pop("tuning")
    assert after == merged(spec, yaml.safe_load(told["patch"])["spec"] if "patch" in told else {}), "the spec is the user's"
    assert status["padding"]["chosen"] in ("Fixed", "Bucketed", "Longest")
    assert status["padding"]["reason"].startswith(f"measured: {status['padding']['chosen']}")
    assert "(tuning run 'once'; " in status["padding"]["reason"]
    assert "barred" not in status["padding"]["measured"][0]


def taken(item: Object) -> bool:
    """Whether the pipeline serves whole with a measured padding."""
    status = item.get("status") or {}
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status.get("conditions") or ())
    whole = status.get("servingRevision") == status.get("revision") and status.get("updatedReplicas") == status.get("replicas")
    return ready and whole and str((status.get("padding") or {}).get("reason", "")).startswith("measured: ")


def starts(tiny: TinyPipeline) -> dict[str, list[int]]:
    """How often the containers of each pod that serves were started again."""
    serving = [pod for pod in tiny.pods() if names.LABEL_RUN not in pod["metadata"]["labels"] and not pod["metadata"].get("deletionTimestamp")]
    return {pod["metadata"]["name"]: [item["restartCount"] for item in pod["status"]["containerStatuses"]] for pod in serving}


def tuning(tiny: TinyPipeline) -> Object:
    """The status of the run."""
    return dict(tiny.status().get("tuning") or {})
