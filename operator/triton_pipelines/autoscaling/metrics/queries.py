"""Build the PromQL of the collector. Pure.

Counters are queried as raw samples (a range selector in an instant query), which keep the times of
their own scrapes; rate() loses them. The usage of containers and GPUs may be averaged by the
server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from triton_pipelines.api.names import CONTAINER_SERVER

from .connection import Connection
from .metrics_page import FIELDS
from .scrape_history import PodKey

# Longest query, in escaped characters. Reverse proxies accept request lines of 8 KB by default, and
# the client puts the query into the URL whatever the method.
QUERY_CHARACTERS: Final = 6500
# Of these, the characters available to the values of matchers.
VALUE_CHARACTERS: Final = 3000
# cAdvisor refreshes every 10 to 15 s with jitter, so a shorter window would not be steady. The
# second window is for scrapes up to a minute apart.
USAGE_SECONDS: Final = (60, 150)
GPU_SECONDS: Final = 30
CLOCK: Final = "time()"

FIGURE: Final = "tritonpipe_figure"
CPU, THROTTLED, PERIODS, MEMORY, GPU, ENGINE, DCGM = (
    "cpu",
    "throttled",
    "periods",
    "memory",
    "gpu",
    "engine",
    "dcgm",
)
# Series of the GPU exporter have the pod's own labels or, without honorLabels, exported ones.
EXPORTED: Final = "exported-"

_REGEX: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods that one query selects."""

    namespaces: tuple[str, ...]
    """Namespaces of the pods."""
    pods: tuple[str, ...] = ()
    """Names of the pods; empty for all pods of the namespaces."""
    models: tuple[str, ...] = ()
    """Names of the models; empty for all models."""


def pod_groups(pods: Iterable[PodKey], models: Iterable[str]) -> list[PodGroup]:
    """Return as few groups as possible that cover ``pods``.

    Pods are selected by name if all names fit into a query, else by namespace.
    """
    by_namespace: dict[str, set[str]] = {}
    for namespace, pod in pods:
        by_namespace.setdefault(namespace, set()).add(pod)
    if not by_namespace:
        return []
    expected = tuple(sorted(set(models)))
    if _length(expected) > VALUE_CHARACTERS // 3:
        expected = ()
    names = tuple(sorted({pod for several in by_namespace.values() for pod in several}))
    if _length(names) <= VALUE_CHARACTERS and _length(by_namespace) <= VALUE_CHARACTERS // 2:
        return [PodGroup(tuple(sorted(by_namespace)), names, expected)]
    return [PodGroup(part, (), expected) for part in _chunks(sorted(by_namespace))]


def counters(connection: Connection, group: PodGroup, seconds: float) -> str:
    """Return the query for raw samples of Triton's counters over the last ``seconds``."""
    names = connection.labels
    selector = [
        f'__name__=~"{"|".join(FIELDS)}"',
        *_matchers(connection.matchers),
        *_places(names.namespace, names.pod, group),
    ]
    if group.models:
        selector.append(_one_of("model", group.models))
    return f"{{{','.join(selector)}}}[{max(1, round(seconds * 1000))}ms]"


def usage(connection: Connection, group: PodGroup, seconds: float) -> list[str]:
    """Return queries for the usage of the server's containers and GPUs, in as few as possible.

    The figures are CPU and throttling (over ``seconds``), memory (at most ``seconds`` old), and GPU
    utilization; each is labeled with its name and pod. Of several series of a pod the highest is
    used and not their sum, because two scrapers of the same node would double it.
    """
    box, own = connection.container_labels, connection.labels
    fixed = _matchers(connection.matchers)
    containers = ",".join(
        [
            *fixed,
            f"{box.container}={_text(CONTAINER_SERVER)}",
            *_places(box.namespace, box.pod, group),
        ]
    )
    by_box = f"{box.namespace},{box.pod}"
    parts = [
        _figure(name, f"max by ({by_box}) (rate({metric}{{{containers}}}[{seconds:.0f}s]))")
        for name, metric in (
            (CPU, "container_cpu_usage_seconds_total"),
            (THROTTLED, "container_cpu_cfs_throttled_periods_total"),
            (PERIODS, "container_cpu_cfs_periods_total"),
        )
    ]
    # cAdvisor's samples have times of their own, so an instant query would still return the last
    # one for five minutes after cAdvisor is gone.
    memory = f"last_over_time(container_memory_working_set_bytes{{{containers}}}[{seconds:.0f}s])"
    parts.append(_figure(MEMORY, f"max by ({by_box}) ({memory})"))
    triton = ",".join([*fixed, *_places(own.namespace, own.pod, group)])
    parts.append(_figure(GPU, _mean(f"{own.namespace},{own.pod}", "nv_gpu_utilization", triton)))
    plain = ",".join([*fixed, *_places("namespace", "pod", group), 'exported_pod=""'])
    exported = ",".join([*fixed, *_places("exported_namespace", "exported_pod", group)])
    for name, metric in ((ENGINE, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), (DCGM, "DCGM_FI_DEV_GPU_UTIL")):
        parts.append(_figure(name, _mean("namespace,pod", metric, plain)))
        parts.append(
            _figure(EXPORTED + name, _mean("exported_namespace,exported_pod", metric, exported))
        )
    return _packed(parts)


def targets(connection: Connection, group: PodGroup) -> str:
    """Return the query for whether the pods are targets and their last scrape worked."""
    own = connection.labels
    selector = [*_matchers(connection.matchers), *_places(own.namespace, own.pod, group)]
    return f"max by ({own.namespace},{own.pod}) (up{{{','.join(selector)}}})"


def example_query(connection: Connection, namespace: str, pods: Sequence[str]) -> str:
    """Return a query for users to try; it should return a series for every pod and model."""
    own = connection.labels
    selector = [*_matchers(connection.matchers), f"{own.namespace}={_text(namespace)}"]
    if pods and _length(pods) <= 200:
        selector.append(_one_of(own.pod, tuple(sorted(pods))))
    return f"nv_inference_request_success{{{','.join(selector)}}}"


def _matchers(matchers: Mapping[str, str]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in sorted(matchers.items())]


def _places(namespace: str, pod: str, group: PodGroup) -> list[str]:
    chosen = [_one_of(namespace, group.namespaces)]
    return [*chosen, _one_of(pod, group.pods)] if group.pods else chosen


def _one_of(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{label}={_text(values[0])}"
    escaped = (_REGEX.sub(lambda match: chr(92) + match[0], value) for value in values)
    return f"{label}=~{_text('|'.join(escaped))}"


def _text(value: str) -> str:
    """Return the value as a PromQL string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _mean(by: str, metric: str, selector: str) -> str:
    return f"max by ({by}) (avg_over_time({metric}{{{selector}}}[{GPU_SECONDS}s]))"


def _figure(name: str, expression: str) -> str:
    return f'label_replace({expression},"{FIGURE}","{name}","","")'


def _packed(parts: Iterable[str]) -> list[str]:
    """Join the expressions with ``or``, as many in each query as fit."""
    queries: list[str] = []
    for part in parts:
        joined = f"{queries[-1]} or {part}" if queries else part
        if queries and len(quote(joined, safe="")) <= QUERY_CHARACTERS:
            queries[-1] = joined
        else:
            queries.append(part)
    return queries


def _length(values: Iterable[str]) -> int:
    """Return the length of the values in a URL, including the ``|`` between them."""
    return sum(len(quote(value, safe="")) + 3 for value in values)


def _chunks(values: Sequence[str]) -> Iterator[tuple[str, ...]]:
    part: list[str] = []
    length = 0
    for value in values:
        more = _length((value,))
        if part and length + more > VALUE_CHARACTERS:
            yield tuple(part)
            part, length = [], 0
        part.append(value)
        length += more
    if part:
        yield tuple(part)
