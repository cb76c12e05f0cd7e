"""The demo's scaling part: long documents under load.

First with one tokenizer, then with autoscaling, then without Prometheus.

The tokenization is real work for the CPU. The GPU step is simulated: it waits as long as
a fast GPU would compute. Clients, cluster and pods
share this machine's cores: the load is 16 clients with requests made beforehand, and it asks for
about a quarter more than one tokenizer carries.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from e2e.load.bins import Figures, Second, figures, second, with_answers
from e2e.load.prepared import PreparedLoad, prepared_load
from e2e.load.workloads import documents
from e2e.showing import DemoError, LiveLine, console, live_line, say
from e2e.suite.kube import Kube
from e2e.suite.pipelines import Pipeline, merged
from e2e.suite.reach import Endpoint, Reach
from e2e.suite.scraping import Scraper
from triton_pipelines.autoscaling.metrics.metrics_page import parse_metrics_page
from triton_pipelines.autoscaling.metrics.samples import Scrape

CLIENTS = 16
SCRAPE_SECONDS = 2.0
PROBE_SECONDS = 4
FIXED_SECONDS = 12
GROWN_SECONDS = 45
"""At most, until the count has grown."""
STEADY_SECONDS = 12
DARK_SECONDS = 12
BEYOND = 0.62
"""Load as a share of what the desired count could sustain if instances scaled linearly.

With two instances it is 1.24 times what the first one sustains.
"""
MOST = 3
"""Largest instance count the load is sized for; the simulated GPU step sustains no more."""


@dataclass(frozen=True)
class Shown:
    """What the part showed.

    It has figures with the fixed count and with the managed one, seconds until the count had grown,
    counts, and requests in total.
    """

    fixed: Figures
    managed: Figures
    grown_after: float
    before: int
    after: int
    requests: int
    failed: int

    def closing(self) -> str:
        """The closing line's part."""
        return (
            f"documents with {self.before} tokenizer fixed: {self.fixed}; managed"
            f" ({self.before} → {self.after} in place after {self.grown_after:.0f} s): "
            f"{self.managed}; {self.failed} of {self.requests} requests failed"
        )


def show(kube: Kube, reach: Reach, scraping: Scraper, namespace: str) -> str:
    """Show it; returns its part of the closing line.

    Raises:
        DemoError: something did not do what is shown.
    """
    workload = documents()
    most = max(2, min(MOST, os.cpu_count() or 2))
    say(
        f"6. Long documents: {workload.rows} texts of ~{workload.tokens} tokens per request,"
        f" one tokenizer ({workload.tokenizer}), a fixed count (scaling.mode: Disabled)"
    )
    console.print(
        "tokenization runs on the real CPU; " + "; ".join(workload.stand_ins),
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"{CLIENTS} clients with prepared requests; they share {os.cpu_count()} cores"
        " with the cluster and the pods",
        markup=False,
        soft_wrap=True,
    )
    pipeline = Pipeline(kube, namespace, workload.model)
    pipeline.apply(merged(workload.document, _changes(most)))
    pipeline.wait_ready()
    scraping.watch(kube, namespace)
    with (
        reach.service(namespace, workload.model) as endpoint,
        prepared_load(endpoint.grpc, workload.requests(), clients=CLIENTS) as load,
    ):
        watch = _Watch(pipeline, endpoint, load, workload.step)
        load.rate(math.inf)
        carried = figures(watch.measure(PROBE_SECONDS)[1:]).rate
        load.rate(carried * BEYOND * most)
        console.print(
            f"one tokenizer sustains {carried:.0f} requests/s;"
            f" the load is now {carried * BEYOND * most:.0f} requests/s",
            markup=False,
            soft_wrap=True,
        )
        with live_line() as live:
            fixed = figures(watch.measure(FIXED_SECONDS, live))

        say(
            "7. The same load with autoscaling: kubectl patch … scaling.mode: Active"
            " (the operator queries Prometheus)"
        )
        pipeline.patch({"spec": {"scaling": {"mode": "Active"}}})
        with live_line() as live:
            growing = watch.measure(GROWN_SECONDS, live, until=lambda one: one.count > 1)
            if growing[-1].count <= 1:
                raise DemoError(
                    f"the count did not grow within {GROWN_SECONDS} s:"
                    f" {pipeline.status().get('scaling')}"
                )
            watch.measure(4, live)  # drain the queue
            managed = watch.measure(STEADY_SECONDS, live)
        console.print(_last_change(pipeline), markup=False, soft_wrap=True)

        say("8. Prometheus is stopped: instance counts stay")
        scraping.kill()
        with live_line() as live:
            dark = watch.measure(DARK_SECONDS, live)
        fallen = min(one.count for one in dark) < managed[-1].count
        condition = pipeline.wait_condition("MetricsAvailable", "False")
        console.print(
            f"MetricsAvailable: {condition['reason']}:"
            f" {condition['message'].partition(' Check:')[0]}",
            markup=False,
            soft_wrap=True,
        )
        load.rate(0)
        if fallen:
            raise DemoError(
                f"an instance count fell without Prometheus: {[one.count for one in dark]}"
            )
    failed = [answer.error for answer in load.answers if answer.error]
    if failed:
        raise DemoError(f"{len(failed)} of {len(load.answers)} requests failed: {failed[0]}")
    shown = Shown(
        fixed, figures(managed), len(growing), 1, managed[-1].count, len(load.answers), len(failed)
    )
    return shown.closing()


def _changes(most: int) -> dict[str, Any]:
    """Return a spec with one instance at first and at most as many as there are cores.

    Requests are so small that the pod fits next to others. The product sets its CPU limit.
    """
    return {
        "spec": {
            "scaling": {"mode": "Disabled"},
            "tokenizer": {"instances": {"initial": 1, "min": 1, "max": most}},
            # The stand-in for the GPU step waits on the CPU.
            "model": {"instances": {"kind": "CPU"}},
            "server": {
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
                "gpu": {"count": 0},
            },
        }
    }


def _last_change(pipeline: Pipeline) -> str:
    history: Sequence[dict[str, Any]] = (pipeline.status().get("scaling") or {}).get("history") or [
        {}
    ]
    return (
        "{time}: {step} from {from} to {to}: {reason}".format_map(history[0])
        if history[0]
        else "the status reports no change yet"
    )


@dataclass
class _Watch:
    """Samples the pod each second, in addition to the load."""

    pipeline: Pipeline
    endpoint: Endpoint
    load: PreparedLoad
    step: str
    _taken: int = 0
    _client: httpx.Client = field(
        default_factory=lambda: httpx.Client(trust_env=False, timeout=10.0)
    )

    def measure(
        self,
        seconds: int,
        live: LiveLine | None = None,
        until: Callable[[Second], bool] = lambda _: False,
    ) -> list[Second]:
        """So many seconds, or until one is as wanted."""
        found: list[Second] = []
        tick, began = threading.Event(), time.monotonic()
        before = self._look()
        for number in range(1, seconds + 1):
            tick.wait(max(0.0, began + number - time.monotonic()))
            after = self._look()
            answers = self.load.since(self._taken)
            self._taken += len(answers)
            one = with_answers(
                second(before, after, step=self.step, gpu="model", count=self._count()), answers
            )
            found.append(
                replace(
                    one,
                    verdict=str(
                        (self.pipeline.status().get("scaling") or {}).get("bottleneck", "")
                    ),
                )
            )
            before = after
            if live is not None:
                live.add(found[-1])
            if until(found[-1]):
                break
        return found

    def _look(self) -> Scrape:
        return parse_metrics_page(
            self._client.get(f"http://{self.endpoint.metrics}/metrics").raise_for_status().text,
            time.monotonic(),
        )[0]

    def _count(self) -> int:
        config = (
            self._client.get(f"{self.endpoint.http}/v2/models/{self.step}/config")
            .raise_for_status()
            .json()
        )
        return sum(int(group.get("count", 1)) for group in config["instance_group"])
