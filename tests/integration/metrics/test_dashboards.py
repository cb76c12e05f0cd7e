"""Every query of the Grafana dashboards on a real Prometheus with real data.

Prometheus scrapes a real Triton that serves under load, and the page of a real operator that scales
it. Simulated are cAdvisor, and what only exists with a GPU: see ``hardware_page``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e.local.processes import free_port
from hack import monitoring
from tests.support import builders, dashboards
from tests.support.dashboards import ShownQuery
from tests.support.faultproxy import FaultProxy
from tests.support.nodepages import NodePages
from tests.support.operators import apply_any, eventually, patch, repeated
from tests.support.prometheus import PrometheusServer, Target
from tests.support.scalingworld import NAME, World, ready, until_count, world
from tests.support.simulated_nodes import server_of
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS, SERVICES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

STALLED = "conflict"
"""A second pipeline, whose Service belongs to somebody else."""
NEIGHBOR = f"{NAME}-b"
"""A pipeline whose name starts with that of the pipeline shown."""
LABELLED, EXPORTED = f"{NAME}-5f7d8c9b6d-direct", f"{NAME}-5f7d8c9b6d-export"
"""Pods whose GPU the DCGM exporter reports: with the pod's labels, and with exported ones."""
EXPORTERS = (
    (NAME, LABELLED, ""),
    (NAME, EXPORTED, "exported_"),
    ("labelled", "labelled-5f7d8c9b6d-direct", ""),
    ("exported", "exported-5f7d8c9b6d-export", "exported_"),
)
"""Pipeline, pod and prefix of the labels of what the DCGM exporter reports."""
OPTIONAL = frozenset({"pod", "pipeline", "reason"})
"""Labels that not every alert has."""
SPEC: dict[str, Any] = {
    "slo": {"p99Milliseconds": 200},
    # A release with critical advisories, so that an alert fires.
    "server": {"image": "registry.example.com/tritonserver:24.08-py3"},
    "scaling": {"cpuResize": "InPlace"},
}
TOKENIZING: dict[str, float | str] = {"request": 0.02}  # 50 requests/s of one instance
HIGH = 45.0
"""Requests/s that need a second instance, but leave no queue while it is missing."""


@dataclass
class Scene:
    """A Prometheus with everything that the dashboards show."""

    prometheus: PrometheusServer
    http: httpx.Client
    """Shared by hundreds of queries: each new client reads the machine's certificates."""
    namespace: str
    pods: frozenset[str]
    """Pods of the pipeline shown."""
    at: float = field(default_factory=time.time)
    """Unix seconds of all queries, so that answers can be compared."""

    def values(self, dashboard: str) -> dict[str, str]:
        """Return the values of Grafana's variables."""
        chosen = {
            "overview": {"namespace": ".+", "pipeline": ".+"},
            "pipeline": {"namespace": self.namespace, "pipeline": NAME},
        }
        return {"__rate_interval": "20s", **chosen[dashboard]}

    def answer(self, query: ShownQuery, expression: str | None = None) -> list[Mapping[str, str]]:
        """Return the labels of the finite values of a query, or of another expression."""
        text = dashboards.with_values(expression or query.expression, self.values(query.dashboard))
        answer = self.http.post(
            f"{self.prometheus.url}/api/v1/query", data={"query": text, "time": str(self.at)}
        ).json()
        assert answer["status"] == "success", f"{query}: {answer}"
        return [
            item["metric"]
            for item in answer["data"]["result"]
            if math.isfinite(float(item["value"][1]))
        ]


def hardware_page(namespace: str, pod: str) -> str:
    """Return series of hardware that the machine of the tests does not have.

    Names, labels and units are those of Triton's and the DCGM exporter's documentation. The pod of
    the scene has a GPU that its Triton reports; of two further pods the DCGM exporter reports it.
    The container of one of them is throttled half of the time.
    """
    own = f'namespace="{namespace}",pipeline="{NAME}",pod="{pod}",gpu_uuid="GPU-1"'
    other = (
        f'namespace="{namespace}",pipeline="{NEIGHBOR}",pod="{NEIGHBOR}-5f7d8c9b6d-other",'
        'gpu_uuid="GPU-9"'
    )
    lines = []
    for labels in (own, other):
        lines += [
            f"nv_gpu_utilization{{{labels}}} 0.42",
            f"nv_gpu_memory_used_bytes{{{labels}}} 4e9",
            f"nv_gpu_memory_total_bytes{{{labels}}} 16e9",
        ]
    for _, name, prefix in EXPORTERS:
        labels = f'gpu="0",UUID="GPU-{name}",{prefix}namespace="{namespace}",{prefix}pod="{name}"'
        lines += [
            f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 73",
            f"DCGM_FI_DEV_FB_USED{{{labels}}} 4000",
            f"DCGM_FI_DEV_FB_FREE{{{labels}}} 12000",
        ]
    for pipeline, name, _ in (*EXPORTERS, (NEIGHBOR, f"{NEIGHBOR}-5f7d8c9b6d-other", "")):
        labels = f'namespace="{namespace}",pod="{name}"'
        lines += [
            f'nv_inference_pending_request_count{{{labels},pipeline="{pipeline}",'
            'model="model",version="1"} 1',
            f'container_memory_working_set_bytes{{{labels},container="triton"}} 1e9',
        ]
    ticks, labels = int(time.monotonic() * 10), f'namespace="{namespace}",pod="{LABELLED}"'
    labels += ',container="triton"'
    lines += [
        f"container_cpu_cfs_periods_total{{{labels}}} {ticks}",
        f"container_cpu_cfs_throttled_periods_total{{{labels}}} {ticks // 2}",
    ]
    return "\n".join(lines) + "\n"


def rules(folder: Path) -> Path:
    """Return the rule file, with an alert that fires without waiting."""
    groups = monitoring.groups()
    for group in groups["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == "TritonPipelineServerAdvisory":
                rule["for"] = "0s"
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(groups))
    return path


@contextlib.asynccontextmanager
async def scene(
    client: Client, proxy: FaultProxy, namespace: str, folder: Path
) -> AsyncIterator[Scene]:
    """Scale a pipeline up and down under load until every kind of series exists."""
    port = free_port()
    async with (
        contextlib.AsyncExitStack() as stack,
        world(client, proxy, namespace, folder / "world", tokenizer=TOKENIZING) as place,
        place.operator(metrics_port=port),
        repeated(lambda: report_cpu(place)),
    ):
        pages = stack.enter_context(NodePages(place))
        pages.text["hardware"] = lambda: hardware_page(namespace, place.pod.name)
        operator = Target(f"127.0.0.1:{port}", {"namespace": "operator", "pod": "o-1"}, "operator")
        hardware = Target(pages.address, {"__metrics_path__": "/hardware"}, "hardware")
        await stalled_pipeline(place)
        await place.apply(**SPEC)
        await ready(place)
        prometheus = PrometheusServer(
            [*pages.targets, operator, hardware], rules=rules(folder), discovery=[pages.discovery]
        )
        await asyncio.to_thread(prometheus.__enter__)
        stack.push_async_exit(lambda *about: asyncio.to_thread(prometheus.__exit__, *about))
        load = stack.enter_context(place.load(HIGH))
        await errors_and_reversals(place, load, prometheus)
        http = stack.enter_context(httpx.Client(trust_env=False))
        yield Scene(prometheus, http, namespace, frozenset({place.pod.name, LABELLED, EXPORTED}))


async def stalled_pipeline(place: World) -> None:
    """Make a pipeline whose Service exists and belongs to somebody else."""
    metadata = {"name": STALLED, "namespace": place.namespace}
    foreign = {"ports": [{"port": 80}], "selector": {"app": "mine"}}
    await apply_any(
        place.client,
        SERVICES,
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": foreign},
    )
    document = builders.document(namespace=place.namespace, name=STALLED)
    document["metadata"].pop("uid")
    await apply_any(place.client, INFERENCE_PIPELINES, document)


async def report_cpu(place: World) -> None:
    """Report the desired CPU limit as the one in force, as a kubelet that resizes at once."""
    if not place.pods:
        return
    item = await place.client.get(PODS, place.namespace, place.pod.name)
    statuses = item["status"].get("containerStatuses")  # none before the pod runs
    desired = server_of(item["spec"]["containers"])["resources"]
    if not statuses or server_of(statuses).get("resources") == desired:
        return
    server_of(statuses)["resources"] = desired
    body = {"status": {"containerStatuses": statuses}}
    await patch(place.client, PODS, place.namespace, place.pod.name, body, "status")


async def errors_and_reversals(place: World, load: Any, prometheus: PrometheusServer) -> None:
    """Fail to scale up, scale up, scale down, and leave the pipeline under load."""
    own = f'{{namespace="{place.namespace}"}}'

    async def until(query: str) -> None:
        await eventually(query, lambda: asyncio.to_thread(prometheus.query, query))

    place.pod.set_costs(tokenizer={**TOKENIZING, "most": 1})
    await until(f"tritonpipe_scaling_errors_total{own}")
    place.pod.set_costs(tokenizer=TOKENIZING)
    await until_count(place, 2, 6, 90)
    load.rate = 1.0
    await until(f"tritonpipe_scaling_reversals_total{own}")
    load.rate = HIGH


def problem(found: ShownQuery, place: Scene) -> str:
    """Return what is wrong with the answer to a query; empty if nothing is."""
    answer = place.answer(found)
    if not answer:
        return "no finite value"
    missing = found.labels - {name for one in answer for name in one}
    if missing - OPTIONAL:
        return f"no label {sorted(missing)}"
    if found.dashboard == "pipeline":
        foreign = [one for one in answer if not is_own(one, place)]
        if foreign:
            return f"series of another pipeline: {foreign}"
    return ""


def is_own(labels: Mapping[str, str], place: Scene) -> bool:
    """Return whether no label is about another pipeline."""
    return (
        labels.get("namespace", place.namespace) == place.namespace
        and labels.get("pipeline", NAME) == NAME
        and ("pod" not in labels or labels["pod"] in place.pods)
    )


def misspelt(expression: str) -> Sequence[str]:
    """Return the expression with each of its metrics misspelt in turn."""
    return [
        f"{expression[: name.end()]}_misspelt{expression[name.end() :]}"
        for name in dashboards.METRIC.finditer(expression)
    ]


def variable_problems(place: Scene) -> list[str]:
    """Return the variables for which Prometheus lists no values."""
    empty = []
    for name, document in dashboards.documents().items():
        for variable in document["templating"]["list"]:
            if variable["type"] != "query":
                continue
            series, label = re.fullmatch(
                r"label_values\((.+), (\w+)\)", variable["query"]["query"]
            ).groups()  # type: ignore[union-attr]
            query = ShownQuery(name, variable["name"], series, frozenset())
            if not any(label in one for one in place.answer(query)):
                empty.append(f"{name}: {variable['name']}")
    return empty


async def test_every_query_shows_real_data_and_depends_on_each_of_its_metrics(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """Each query has values, the labels it needs, and other values if a metric is misspelt."""
    shown = dashboards.queries()
    async with scene(bare, bare_proxy, bare_namespace, tmp_path) as place:

        def problems() -> dict[str, str]:
            place.at = time.time()
            return {str(one): wrong for one in shown if (wrong := problem(one, place))}

        found = await asyncio.to_thread(problems)
        end = time.monotonic() + 60
        while found and time.monotonic() < end:
            await asyncio.sleep(1)
            found = await asyncio.to_thread(problems)
        assert found == {}

        def unnoticed() -> list[str]:
            found = []
            for one in shown:
                right = series(place.answer(one))
                found += [
                    f"{one}: {text}"
                    for text in misspelt(one.expression)
                    if series(place.answer(one, text)) == right
                ]
            return found

        unchanged = await asyncio.to_thread(unnoticed)
        assert not unchanged, "\n".join(unchanged)
        assert await asyncio.to_thread(variable_problems, place) == []


def series(answer: Sequence[Mapping[str, str]]) -> set[frozenset[tuple[str, str]]]:
    """Return the label sets of an answer."""
    return {frozenset(one.items()) for one in answer}
