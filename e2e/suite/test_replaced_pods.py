"""Pods that the operator replaces under load: broken ones, and those with an old certificate.

All pipelines of this module run at the same time, because most of the time is spent waiting for
probes. Requests to a custom postprocess cause the faults. Its labels name the pod that responds.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from e2e.load.clients import Answer
from e2e.load.generator import Load, under_load
from e2e.local.cluster import DEFAULT_GPUS, Cluster
from e2e.suite.access import Access
from e2e.suite.installation import NAMESPACE, RELEASE
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import condition
from e2e.suite.reach import Endpoint, Reach
from e2e.suite.tiny import (
    SAFE_CLIENTS,
    TEXTS,
    TinyPipeline,
    assert_none_lost,
    assert_probabilities,
    document,
    judge,
    wait_left,
)
from tests.support import tinymodel
from tests.support.certificates import Authority
from tests.support.serving import run
from triton_pipelines.api import names

pytestmark = pytest.mark.timeout(900, func_only=True)
"""All cases take place during the first test."""

HANG, EXHAUST, FILL, LOSE = "hang", "exhaust", "fill", "lose"
"""Texts that cause a fault.

They cause an endless inference, memory without end, full /dev/shm, and the errors of a lost GPU.
"""
CODE = f"""
import socket
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.label = socket.gethostname()
        self.lost = False

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        text, logits = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("TEXT", "logits")
        )
        self.cause_fault(text.ravel()[0].decode())
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        label = np.array([[self.label.encode()]] * len(logits), dtype=object)
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("PROBABILITIES", powers / powers.sum(axis=-1, keepdims=True)),
            pb_utils.Tensor("LABEL", label),
        ])

    def cause_fault(self, text):
        kept = []
        while text == {HANG!r}:
            time.sleep(60)
        while text == {EXHAUST!r}:
            kept.append(np.ones(8 << 20))
        self.lost |= text == {LOSE!r}
        if self.lost:
            raise pb_utils.TritonModelException("CUDA error: unspecified launch failure")
        if text == {FILL!r}:
            self.label *= 1 << 20  # more than the memory that Triton has reserved for responses
            with open("/dev/shm/leak", "wb", buffering=0) as leak:
                while True:
                    leak.write(bytes(1 << 20))
"""
SECRET = "tiny-tls"
HOST = "tiny.e2e.svc"
CAUSE_SECONDS = 5.0
"""For a request that causes a fault and may never get a response."""
REPLACED_SECONDS = 300.0
"""On a busy machine: the last serving pod must have answered before another one is deleted."""
START_SECONDS = 240.0
"""For the pods of all pipelines, which start at the same time."""


def secret(content: Mapping[str, bytes]) -> Object:
    """Return a Secret in the layout of cert-manager."""
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "type": "kubernetes.io/tls",
        "data": data,
    }


def allow_reading(kube: Kube, namespace: str) -> None:
    """Let the operator read the Secret, as docs/user/tls.md says."""
    where = f"--namespace={namespace}"
    role = ("--verb=get", "--resource=secrets", f"--resource-name={SECRET}")
    kube.kubectl("create", "role", SECRET, where, *role)
    account = f"--serviceaccount={NAMESPACE}:{RELEASE}"
    kube.kubectl("create", "rolebinding", SECRET, where, f"--role={SECRET}", account)


def presented(address: str) -> bytes:
    """Return the certificate that a server presents, in DER."""
    host, _, port = address.rpartition(":")
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))


def faulty(gpus: int) -> Object:
    """Return the tiny pipeline with two pods and the postprocess above."""
    return document(
        replicas=2,
        server={"gpu": {"count": gpus}},
        postprocess={
            "type": "Python",
            "labels": None,
            "python": {"code": {"inline": CODE}},
            "inputs": [
                {"name": "logits", "dataType": "FP32", "dims": [tinymodel.CLASSES]},
                {"name": "TEXT", "dataType": "STRING", "dims": [1], "from": "pipeline.TEXT"},
            ],
            "outputs": [
                {"name": "PROBABILITIES", "dataType": "FP32", "dims": [tinymodel.CLASSES]},
                {"name": "LABEL", "dataType": "STRING", "dims": [1]},
            ],
        },
    )


def pod_of(text: str, answer: Answer) -> str:
    """Return the pod that gave a right answer."""
    assert_probabilities(text, answer)
    return str(answer["LABEL"][0, 0].decode())


def cause(pod: Object, model: str, fault: str) -> None:
    """Send one request that breaks a pod."""
    tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[fault.encode()]], dtype=np.object_))
    address = f"{pod['status']['podIP']}:{names.PORT_GRPC}"
    with (
        tritonclient.grpc.InferenceServerClient(address) as client,
        contextlib.suppress(InferenceServerException),
    ):
        client.infer(model, [tensor], client_timeout=CAUSE_SECONDS)


class BrokenPod:
    """A pipeline of two pods, one of which gets a fault.

    Args:
        tiny: the pipeline.
        fault: text of the request that causes the fault.
        event: reason of the event about the repair.
    """

    def __init__(self, tiny: TinyPipeline, fault: str, event: str) -> None:
        self.tiny = tiny
        self.fault = fault
        self.event = event

    def run(self, prepare: Callable[[Object], None] = lambda _: None) -> str:
        """Break one of the pods under load, wait for its repair, and check what was lost.

        Args:
            prepare: prepares the fault of a pod.

        Returns:
            What became of the requests.
        """
        available = condition(self.tiny.wait_ready(START_SECONDS)["status"], "Available")
        broken, other = self.tiny.serving_pods()
        name = broken["metadata"]["name"]
        clients: dict[str, Any] = {"clients": SAFE_CLIENTS, "workers": 1, "interval": 0.5}
        ports = {port: port for port in (names.PORT_HTTP, names.PORT_GRPC, names.PORT_METRICS)}
        address = Endpoint.of(other["status"]["podIP"], ports)
        with (
            self.tiny.load(judge=pod_of, **clients) as load,
            under_load(Load(address, self.tiny.name, TEXTS, pod_of, **clients)) as spared,
        ):
            prepare(broken)
            cause(broken, self.tiny.name, self.fault)
            note = self.tiny.wait_event(self.event, REPLACED_SECONDS)["note"]
            assert note.startswith(f"pod {name} is deleted")
            # The event outlasts the status: a pod that hangs is named and deleted at once.
            assert name in self.tiny.wait_event("InferenceFailed")["note"]
            wait_left(self.tiny, {name})
            self.tiny.wait_ready()
            replaced = load.now()
            load.wait_requests(answered=True)
        outcomes, spared_outcomes = load.outcomes, spared.outcomes
        assert not [item for item in spared_outcomes if item.error]
        assert not [item for item in outcomes if item.start >= replaced and item.error]
        assert not [item for item in outcomes if item.error.startswith("wrong answer")]
        # The other pod is untouched, and the pipeline was available all the time.
        for key in ("status", "lastTransitionTime"):
            assert self.tiny.condition("Available")[key] == available[key]
        uids = {pod["metadata"]["uid"] for pod in self.tiny.serving_pods()}
        assert other["metadata"]["uid"] in uids
        assert len(uids) == 2
        assert {item.answer for item in spared_outcomes} == {other["metadata"]["name"]}
        figures = [*load.summary().values(), *spared.summary().values()]
        return f"{self.fault}: replaced after {replaced:.0f} s, {', '.join(map(str, figures))}"


def renew_certificate(tiny: TinyPipeline, kube: Kube, reach: Reach, folder: Path) -> None:
    """Renew the certificate of a pipeline under load; no request is lost."""
    authority = Authority(dt.datetime.now(dt.UTC))
    first, second = authority.secret(HOST), authority.secret(HOST)
    allow_reading(kube, tiny.namespace)
    kube.apply(secret(first), namespace=tiny.namespace)
    tiny.apply(document("old", server={"tls": {"secretName": SECRET}}))
    tiny.wait_ready(START_SECONDS)
    before = tiny.pod_names()
    with reach.service(tiny.namespace, tiny.name) as plain:
        endpoint = replace(plain, authorities=authority.certificate, server_name=HOST)
        with under_load(Load(endpoint, tiny.name, TEXTS, judge, clients=("grpc",))) as load:
            assert presented(endpoint.grpc) == _der(first)
            kube.apply(secret(second), namespace=tiny.namespace)
            wait_for(
                "a pod with the new certificate",
                lambda: tiny.pod_names() - before,
                bool,
                REPLACED_SECONDS,
            )
            wait_left(tiny, before)
            tiny.wait_ready()
            load.wait_requests()
        assert_none_lost(load, {"old"})
        assert presented(endpoint.grpc) == _der(second)
        (folder / "ca.crt").write_bytes(authority.certificate)
        url = f"grpcs://{endpoint.grpc}/v2/models/{tiny.name}"
        short = ("--no-baseline", "--duration=0.6", "--warmup=0.1", "--runs=1", "--concurrency=2")
        for command in (("infer", url, TEXTS[0]), ("bench", url, *short)):
            done = run(*command, f"--cacert={folder}/ca.crt", f"--servername={HOST}")
            assert done.returncode == 0, done.stderr


def _der(content: Mapping[str, bytes]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(content[names.KEY_CERTIFICATE].decode())


FAULTS = {
    HANG: "ModelHung",
    EXHAUST: "BackendProcessDied",
    FILL: "SharedMemoryFull",
    LOSE: "DeviceUnhealthy",
}


RENEWAL = "renewal"
GPUS = 3
"""One for each pod, and one for the pod that replaces the one with the lost GPU."""


def gpu_loss(kube: Kube, local: Cluster) -> Callable[[Object], None]:
    """Return a function that makes the device plugin report a pod's GPU as unhealthy."""

    def health(pod: Object) -> dict[str, str]:
        found = kube.get("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        (status,) = found["status"]["containerStatuses"]
        return {
            device["resourceID"]: device["health"]
            for resource in status.get("allocatedResourcesStatus") or ()
            for device in resource["resources"]
        }

    def lose(pod: Object) -> None:
        (device,) = wait_for("the pod's GPU", lambda: health(pod), bool, REPLACED_SECONDS)
        local.set_gpus(GPUS, [int(device.removeprefix("fake-gpu-"))])
        wait_for(
            "the GPU is unhealthy",
            lambda: health(pod),
            {device: "Unhealthy"}.__eq__,
            REPLACED_SECONDS,
        )

    return lose


@pytest.fixture(scope="module")
def running(
    kube: Kube,
    access: Access,
    reach: Reach,
    module_namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[str | None]]]:
    """Return the results of all cases, which begin at the same time."""
    if access.local is None or not reach.routed:
        pytest.skip("only a local cluster's GPUs can be lost on request, and its pods be reached")
    access.local.set_gpus(GPUS)
    tiny = {
        case: TinyPipeline(kube, module_namespace, reach, name=case) for case in (*FAULTS, RENEWAL)
    }
    prepare = {LOSE: gpu_loss(kube, access.local)}
    with ThreadPoolExecutor(len(tiny)) as pool:
        found: dict[str, Future[str | None]] = {}
        for fault, event in FAULTS.items():
            tiny[fault].apply(faulty(gpus=int(fault == LOSE)))
            broken = BrokenPod(tiny[fault], fault, event)
            found[fault] = pool.submit(broken.run, prepare.get(fault, lambda _: None))
        found[RENEWAL] = pool.submit(
            renew_certificate, tiny[RENEWAL], kube, reach, tmp_path_factory.mktemp("tls")
        )
        yield found
    access.local.set_gpus(DEFAULT_GPUS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_pod_is_named_and_replaced_while_the_other_one_serves(
    running: Mapping[str, Future[str | None]], fault: str
) -> None:
    print(running[fault].result())


def test_a_renewed_certificate_costs_no_request(
    running: Mapping[str, Future[str | None]],
) -> None:
    running[RENEWAL].result()
