"""O5: the time to the first correct answer with the operator and with manually applied objects.

Both ways use the sample ``sentiment``, the same images and the same node, and runs are interleaved.
The difference is therefore due to the operator alone: watching, rendering, applying. Both include
the start of Triton and the loading of the model.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable

import httpx
import yaml

from bench.results import thresholds, write
from e2e.local.cluster import PRODUCT_IMAGES, Cluster
from e2e.local.images import SAMPLES_IMAGE
from e2e.suite.access import Images
from e2e.suite.installation import Installation, namespace
from e2e.suite.kube import Kube, Object
from e2e.suite.pipelines import small
from e2e.suite.reach import Reach
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.render import render
from triton_pipelines.controllers.pipeline.first_objects import first_objects

RUNS = 7
SPACE = "bench"
TEXT, LABEL = "What a wonderful evening, I enjoyed every minute.", "positive"
DEADLINE = 120.0
POLL_SECONDS = 0.05


def run() -> None:
    """Measure, print and write the result.

    Brings up a cluster of its own and removes it unless ``KEEP=1``.
    """
    cluster = Cluster("bench")
    cluster.up(images=(*PRODUCT_IMAGES, SAMPLES_IMAGE))
    try:
        _measure(Kube(cluster.kubeconfig, cluster.context))
    finally:
        if os.environ.get("KEEP") != "1":
            cluster.down()


def _measure(kube: Kube) -> None:
    images = Images.of(os.environ)
    made = Installation(kube, images)
    made.install({"operator": {"logLevel": "info"}})
    values = made.values()
    kube.apply(namespace(SPACE))
    reach = Reach(kube)
    options = Options(
        server_image=images.triton,
        loader_image=images.operator,
        source_map=tuple(values["operator"]["sourceMap"]),
        substitute_runner=frozenset(values["operator"]["substituteRunner"]),
    )
    operator: list[float] = []
    by_hand: list[float] = []
    for number in range(RUNS + 1):
        for kind, seconds in (("operator", operator), ("hand", by_hand)):
            name = f"{kind}-{number}"
            document = small("sentiment")
            document["metadata"] = {"name": name, "namespace": SPACE}
            objects = [document] if kind == "operator" else _objects(document, options)
            taken = _time(kube, reach, name, objects)
            print(
                f"{name:12} {taken:6.2f} s{' (warm-up, not counted)' if number == 0 else ''}",
                flush=True,
            )
            if number:
                seconds.append(taken)
    differences = [a - b for a, b in zip(operator, by_hand, strict=True)]
    goal = thresholds()["O5"]["goal"]
    path = write(
        "O5",
        differences,
        unit="s",
        goal=goal,
        met=statistics.median(differences) <= 3.0,
        workload="sentiment, one replica, image and model already on the node",
        stand_ins=[
            "the ONNX step runs on the CPU runner instead of a GPU",
            "samples are served from inside the cluster instead of a hub and a bucket",
        ],
        detail={
            "operatorSeconds": [round(x, 3) for x in operator],
            "byHandSeconds": [round(x, 3) for x in by_hand],
        },
    )
    print(
        f"O5: {statistics.median(differences):+.2f} s against the same objects by hand (goal "
        f"{goal} s); {path.name} written"
    )


def _objects(document: Object, options: Options) -> list[Object]:
    pipeline, findings = parse(document)
    assert not findings, findings
    assert pipeline is not None
    graph = build(pipeline, options)
    objects = first_objects(pipeline, graph, render(pipeline, graph, options), options, "bench-key")
    result = copy.deepcopy(objects)
    for item in result:
        del item["metadata"]["ownerReferences"]
    return result


def _time(kube: Kube, reach: Reach, name: str, objects: list[Object]) -> float:
    """Return the seconds from the apply to the first correct answer.

    Everything is removed again before the function returns.
    """
    text = yaml.safe_dump_all(objects)
    began = time.monotonic()
    kube.kubectl("apply", "--server-side", f"--namespace={SPACE}", "--filename=-", input=text)
    taken = _until(lambda: _answers(kube, reach, name), began)
    kube.kubectl("delete", f"--namespace={SPACE}", "--filename=-", "--wait=false", input=text)
    pods = f"tritonpipelines.io/pipeline={name}"
    _until(lambda: not kube.objects("Pod", SPACE, pods), time.monotonic())
    return taken


def _answers(kube: Kube, reach: Reach, name: str) -> bool:
    if kube.find("Service", SPACE, name) is None:
        return False
    body = {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}]}
    with reach.service(SPACE, name) as endpoint:
        try:
            answer = httpx.post(
                f"{endpoint.http}/v2/models/{name}/infer", json=body, timeout=5, trust_env=False
            )
        except httpx.HTTPError:
            return False
    return answer.status_code == httpx.codes.OK and any(
        item["data"] == [LABEL] for item in answer.json()["outputs"]
    )


def _until(holds: Callable[[], bool], began: float) -> float:
    tick = threading.Event()
    while not holds():
        if time.monotonic() - began > DEADLINE:
            sys.exit(f"not within {DEADLINE:.0f} s")
        tick.wait(POLL_SECONDS)
    return time.monotonic() - began
