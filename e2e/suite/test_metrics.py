"""Live scaling with a real Prometheus that scrapes the pods and the node's cAdvisor.

The operator's pod queries it as the chart's values configure.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from e2e.suite.access import Access
from e2e.suite.installation import Installation
from e2e.suite.kube import Kube, wait_for
from e2e.suite.pipelines import condition
from e2e.suite.scraping import Scraper, kubelet_reader, scraper
from e2e.suite.story import watched
from e2e.suite.test_scaling import GROWN_SECONDS, LOAD, Scaled, events, spec, starts
from e2e.suite.tiny import TinyPipeline, assert_none_lost
from triton_pipelines.api import names

CONNECTION = "beside"
SCRAPE_SECONDS = 5.0
STALE_AFTER = 10
REPORTED_SECONDS = 120.0
"""A status is written at most once a minute where no verdict changed."""
USED_SECONDS = 180.0
"""cAdvisor looks every 10 to 15 s, and its rates are over a minute."""
BURNING = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAME", pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy())])
"""  # noqa: E501


@pytest.fixture(scope="module")
def prometheus(access: Access, kube: Kube, installation: Installation) -> Iterator[Scraper]:
    """The operator asks this one, for as long as the module's tests run."""
    if access.local is None:
        pytest.skip(
            "left out: a Prometheus of the suite's own reaches neither pods nor the "
            "kubelet of a cluster that is not on this machine"
        )
    with kubelet_reader(kube) as token, scraper(access.local, SCRAPE_SECONDS, token) as made:
        installation.helm_install(
            {"prometheus": {"connections": [{"name": CONNECTION, "url": made.url}]}}
        )
        yield made
        installation.helm_install()


def scaled_by_it(**changes: Any) -> dict[str, Any]:
    wanted = spec(**changes)
    wanted["scaling"] |= {"prometheusRef": CONNECTION, "staleAfterSeconds": STALE_AFTER}
    return wanted


def condition_message(
    pipeline: TinyPipeline,
    kind: str,
    status: str,
    reason: str,
    words: str = "",
    deadline: float = REPORTED_SECONDS,
) -> str:
    """A condition's message, once it has these words."""

    def holds(item: dict[str, Any]) -> bool:
        found = condition(item.get("status") or {}, kind)
        return (found.get("status"), found.get("reason")) == (status, reason) and words in found[
            "message"
        ]

    found = condition(
        pipeline.wait(f"{kind} {status} {reason} {words}", holds, deadline)["status"], kind
    )
    return str(found["message"])


def test_prometheus_decides_and_its_death_costs_neither_counts_nor_requests(
    prometheus: Scraper, kube: Kube, tiny: TinyPipeline
) -> None:
    tiny.serve("old", **scaled_by_it())
    prometheus.watch(kube, tiny.namespace)
    scaled, pods = Scaled(tiny), starts(tiny)
    condition_message(
        tiny, "MetricsAvailable", "True", "Succeeded", f'Prometheus connection "{CONNECTION}"'
    )
    with (
        tiny.load(**LOAD) as load,
        watched(kube, tiny.namespace, "configmaps", names.LABEL_PIPELINE),
    ):
        grown = scaled.wait_running(lambda count: count > 1, "more", GROWN_SECONDS)
        prometheus.kill()
        message = condition_message(tiny, "MetricsAvailable", "False", "PrometheusError")
        assert "Check that (1) Prometheus is running" in message
        load.wait_requests()
        assert scaled.recorded() >= grown
    # The load has ended. With metrics, the count would fall after the stabilization window. The
    # outage lasts longer than metrics may be stale.
    pause = tiny.kube.kubectl(
        "wait",
        "ipl",
        tiny.name,
        f"--namespace={tiny.namespace}",
        "--for=condition=MetricsAvailable",
        "--timeout=30s",
        check=False,
    )
    assert "condition met" not in pause
    assert scaled.recorded() >= grown
    assert set(scaled.running()) == {scaled.recorded()}
    prometheus.restart_empty()
    condition_message(tiny, "MetricsAvailable", "True", "Succeeded")
    scaled.wait_running(lambda count: count == 1, "1", REPORTED_SECONDS)
    assert starts(tiny) == pods, "no pod was made anew or restarted"
    assert_none_lost(load, {"old"})


def test_cpu_and_throttling_of_the_node_reach_the_decision(
    prometheus: Scraper, kube: Kube, tiny: TinyPipeline
) -> None:
    """The kernel throttles a step with CPU bursts, and no instance is added for that.

    The container may not use CPU in such bursts. Its answers are late; whether any is too late
    depends on the limit.
    """
    wanted = scaled_by_it()
    wanted["steps"][0]["python"] = {"code": {"inline": BURNING}}
    wanted["server"] = {
        "resources": {"requests": {"cpu": "200m"}, "limits": {"cpu": "250m", "memory": "2Gi"}}
    }
    tiny.serve("old", **wanted)
    prometheus.watch(kube, tiny.namespace)
    (pod,) = tiny.serving_pods()
    series = (
        f'container="{names.CONTAINER_SERVER}",namespace="{tiny.namespace}",'
        f'pod="{pod["metadata"]["name"]}"'
    )
    with tiny.load(**{**LOAD, "workers": 1, "interval": 1.0}) as load:
        for metric in (
            "container_cpu_usage_seconds_total",
            "container_cpu_cfs_throttled_periods_total",
            "container_cpu_cfs_periods_total",
        ):
            wait_for(
                f"{metric} of the pod",
                partial(prometheus.query, f"{metric}{{{series}}}"),
                bool,
                USED_SECONDS,
            )
        tiny.wait(
            "CPU is what limits it",
            lambda item: _bottleneck(item) in ("CPUBound", "CPUContended"),
            USED_SECONDS,
        )
        message = condition_message(
            tiny, "ScalingActive", "True", "Succeeded", "throttled", USED_SECONDS
        )
        before = Scaled(tiny).recorded()
        load.wait_requests(answered=True)
        assert Scaled(tiny).recorded() == before
    assert "throttled" in message
    assert not [note for note in events(tiny, "Scaled") if ": CPU" in note]


def _bottleneck(item: dict[str, Any]) -> str:
    return str(((item.get("status") or {}).get("scaling") or {}).get("bottleneck", ""))
