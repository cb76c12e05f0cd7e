"""Parse Prometheus query results into scrapes, usage figures and times. Pure and strict.

Malformed or missing values are reported and never read as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from . import queries
from .connection import Connection, SeriesLabels
from .metrics_page import FIELDS
from .samples import ModelCounters, PodUsage, Scrape
from .scrape_history import PodKey

# Labels that identify the scraper and not the target: two monitors of one pod, or the replicas of a
# Prometheus, produce the same series twice.
SCRAPERS: Final = frozenset(
    {
        "job",
        "endpoint",
        "service",
        "container",
        "prometheus",
        "prometheus_replica",
        "replica",
        "receive_replica",
        "monitor",
        "scrape_job",
    }
)
_INSTANCE: Final = "instance"
_ORDER: Final = tuple(field.name for field in fields(ModelCounters))
_NAMES: Final = tuple(sorted(FIELDS, key=lambda name: _ORDER.index(FIELDS[name])))
_INDEX: Final = {name: index for index, name in enumerate(_NAMES)}
# These series may be missing if there are no failures or no cache.
_OPTIONAL: Final = frozenset({"failure", "cache_hits"})
_NEEDED: Final = sum(1 << index for index, field in enumerate(_ORDER) if field not in _OPTIONAL)
_SHAPE_ERRORS: Final = (TypeError, KeyError, ValueError, IndexError, AttributeError, OverflowError)

# Index of the metric, model, version, GPU and failure reason: the labels by which Triton itself
# distinguishes series within one pod.
_Series = tuple[int, str, Any, Any, Any]
_Found = tuple[Mapping[str, Any], Sequence[Any]]


class QueryResultError(ValueError):
    """A result does not have the shape of a Prometheus result."""


@dataclass(frozen=True, slots=True)
class PodSeries:
    """The series of one pod in a query result."""

    scrapes: tuple[Scrape, ...] = ()
    """Complete scrapes, oldest first."""
    problem: str = ""
    """Why the scrapes cannot be used; "" if they can."""
    note: str = ""
    """What users should know about these series."""


def counters(
    kind: str,
    result: Sequence[Any],
    labels: SeriesLabels,
    wanted: Mapping[PodKey, frozenset[str]],
    addresses: Mapping[PodKey, str],
    interval: float,
) -> dict[PodKey, PodSeries]:
    """Return the scrapes of the wanted pods in a query result; series of other pods are ignored.

    Args:
        kind: The resultType of the result.
        result: The result of the query.
        labels: Labels that hold the namespace and the name of a pod.
        wanted: The wanted pods, with the models that each must have.
        addresses: Addresses of the pods' metrics ports, which distinguish the pods from pods of the
            same name in another cluster.
        interval: Seconds between scrapes.

    Raises:
        QueryResultError: The result has another shape.
    """
    if kind != "matrix":
        raise QueryResultError(f"returned a {kind} instead of raw samples")
    found: dict[PodKey, dict[_Series, list[_Found]]] = {}
    namespace, pod = labels.namespace, labels.pod
    try:
        for item in result:
            metric = item["metric"]
            place = (metric.get(namespace), metric.get(pod))
            models = wanted.get(place)
            if models is None:
                continue
            index, model = _INDEX.get(metric.get("__name__")), metric.get("model")
            if index is None or model not in models:
                continue
            series = (
                index,
                model,
                metric.get("version"),
                metric.get("gpu_uuid"),
                metric.get("reason"),
            )
            found.setdefault(place, {}).setdefault(series, []).append((metric, item["values"]))
        return {
            place: _seen(several, wanted[place], addresses.get(place, ""), interval)
            for place, several in found.items()
        }
    except _SHAPE_ERRORS as error:
        raise QueryResultError(f"is not shaped like Prometheus' ({type(error).__name__})") from None


def clock(kind: str, result: Sequence[Any]) -> float:
    """Return the server's time in Unix seconds.

    Raises:
        QueryResultError: The result has another shape.
    """
    try:
        value = float(result[1]) if kind == "scalar" else math.nan
    except _SHAPE_ERRORS:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise QueryResultError("does not contain the server's time")
    return value


def figures(
    kind: str, result: Sequence[Any], connection: Connection
) -> dict[str, dict[PodKey, float]]:
    """Return the values of a result of ``queries.usage`` by figure and pod.

    Values that are negative or not finite are left out.

    Raises:
        QueryResultError: The result has another shape.
    """
    found: dict[str, dict[PodKey, float]] = {}
    try:
        for item in _vector(kind, result):
            metric = item["metric"]
            name = metric[queries.FIGURE]
            exported = name.startswith(queries.EXPORTED)
            place = _place(metric, _labels_of(name, connection))
            value = float(item["value"][1])
            if math.isfinite(value) and value >= 0:
                one = found.setdefault(name.removeprefix(queries.EXPORTED), {})
                if not (exported and place in one):
                    one[place] = value
    except _SHAPE_ERRORS as error:
        raise QueryResultError(f"is not shaped like Prometheus' ({type(error).__name__})") from None
    return found


def targets(kind: str, result: Sequence[Any], connection: Connection) -> dict[PodKey, bool]:
    """Return whether the last scrape of each pod worked, for the pods that are targets at all.

    Raises:
        QueryResultError: The result has another shape.
    """
    try:
        labels = (connection.labels.namespace, connection.labels.pod)
        return {
            _place(item["metric"], labels): float(item["value"][1]) == 1
            for item in _vector(kind, result)
        }
    except _SHAPE_ERRORS as error:
        raise QueryResultError(f"is not shaped like Prometheus' ({type(error).__name__})") from None


def usages(
    found: Mapping[str, Mapping[PodKey, float]], pods: Iterable[PodKey], at: float
) -> dict[PodKey, PodUsage]:
    """Return the usage of each pod for which any figure is known.

    ``at`` is the time of the oldest sample behind the figures.
    """
    result: dict[PodKey, PodUsage] = {}
    for pod in pods:
        cpu, memory = found.get(queries.CPU, {}).get(pod), found.get(queries.MEMORY, {}).get(pod)
        usage = PodUsage(at, cpu, _throttled(found, pod), memory, _gpu(found, pod))
        if usage != PodUsage(at):
            result[pod] = usage
    return result


def _throttled(found: Mapping[str, Mapping[PodKey, float]], pod: PodKey) -> float | None:
    throttled, periods = (
        found.get(queries.THROTTLED, {}).get(pod),
        found.get(queries.PERIODS, {}).get(pod),
    )
    return min(1.0, throttled / periods) if throttled is not None and periods else None


def _gpu(found: Mapping[str, Mapping[PodKey, float]], pod: PodKey) -> float | None:
    """Return the best GPU utilization available, as a share from 0 to 1.

    In order of preference: Triton's own, DCGM's share of time with the engine active, DCGM's
    utilization in percent.
    """
    for name, whole in ((queries.GPU, 1.0), (queries.ENGINE, 1.0), (queries.DCGM, 100.0)):
        value = found.get(name, {}).get(pod)
        if value is not None and value <= 1.01 * whole:
            return min(1.0, value / whole)
    return None


def _vector(kind: str, result: Sequence[Any]) -> Sequence[Any]:
    if kind != "vector":
        raise QueryResultError(f"returned a {kind} instead of a vector")
    return result


def _labels_of(figure: str, connection: Connection) -> tuple[str, str]:
    if figure.startswith(queries.EXPORTED):
        return "exported_namespace", "exported_pod"
    if figure in (queries.ENGINE, queries.DCGM):
        return "namespace", "pod"
    names = connection.labels if figure == queries.GPU else connection.container_labels
    return names.namespace, names.pod


def _place(metric: Mapping[str, str], labels: tuple[str, str]) -> PodKey:
    return metric.get(labels[0], ""), metric.get(labels[1], "")


def _seen(
    found: dict[_Series, list[_Found]], models: frozenset[str], address: str, interval: float
) -> PodSeries:
    """Return the series of one pod as scrapes."""
    note = ""
    instances = {metric.get(_INSTANCE) for several in found.values() for metric, _ in several}
    if len(instances) > 1 or any(len(several) > 1 for several in found.values()):
        chosen, note, problem = _one_target(found, address, interval)
        if problem:
            return PodSeries(problem=problem)
        found = chosen
    rows: dict[float, dict[str, list[float]]] = {}
    masks: dict[tuple[float, str], int] = {}
    for (index, model, *_), several in found.items():
        bit = 1 << index
        for at, text in several[0][1]:
            value = float(text) if type(text) is str else math.nan
            if not 0 <= value < math.inf:
                return PodSeries(
                    problem=(
                        f"{_NAMES[index]} of model {model} is {str(text)[:20]}, which is "
                        "not a valid counter value"
                    )
                )
            row = rows.setdefault(_time(at), {}).setdefault(model, [0.0] * len(_ORDER))
            row[index] += value
            masks[at, model] = masks.get((at, model), 0) | bit
    scrapes: list[Scrape] = []
    lacking = ""
    for at in sorted(rows):
        lacking = _lacking({model: masks.get((at, model), 0) for model in models})
        if not lacking:
            scrapes.append(
                Scrape(at, {model: ModelCounters(*row) for model, row in rows[at].items()})
            )
    return PodSeries(tuple(scrapes), lacking, note)


def _time(at: Any) -> float:
    if not math.isfinite(at):
        raise QueryResultError("contains a sample without a timestamp")
    return float(at)


def _lacking(masks: Mapping[str, int]) -> str:
    """Describe the series that are missing from a scrape; "" if it is complete."""
    for model, mask in sorted(masks.items()):
        missing = [name for index, name in enumerate(_NAMES) if _NEEDED & ~mask & (1 << index)]
        if len(missing) == _NEEDED.bit_count():
            return f"no series of model {model}; is it loaded?"
        if missing:
            return (
                f"model {model} has no {', '.join(missing)}; does a relabeling rule or a "
                "partial response drop these series?"
            )
    return ""


def _one_target(
    found: Mapping[_Series, list[_Found]], address: str, interval: float
) -> tuple[dict[_Series, list[_Found]], str, str]:
    """Choose the series of one target for a pod with several; return series, note and problem."""
    newest = max(
        (float(values[-1][0]) for several in found.values() for _, values in several if values),
        default=0.0,
    )
    live = {
        series: kept
        for series, several in found.items()
        if (
            kept := [
                one for one in several if one[1] and float(one[1][-1][0]) >= newest - 1.5 * interval
            ]
        )
    }
    names = _differing(live)
    if not names:
        if any(len(several) > 1 for several in live.values()):
            return {}, "", "the same series occurs twice"
        return live, "", ""
    parts: dict[tuple[str, ...], dict[_Series, list[_Found]]] = {}
    for series, several in live.items():
        for one in several:
            parts.setdefault(tuple(str(one[0].get(name, "")) for name in names), {}).setdefault(
                series, []
            ).append(one)
    said = "; ".join(
        f"{name} is {' and '.join(sorted({key[index] for key in parts}))[:100]}"
        for index, name in enumerate(names)
    )
    if set(names) <= SCRAPERS:
        # Take the scraper with the most series, so that a replica with missing series is not
        # chosen. Break ties by name, so that the choice is stable.
        best = min(parts, key=lambda key: (-len(parts[key]), key))
        return parts[best], f"is scraped more than once ({said})", ""
    mine = [
        key
        for key, part in parts.items()
        if address
        and any(one[0].get(_INSTANCE) == address for several in part.values() for one in several)
    ]
    if len(mine) == 1 and all(len(several) == 1 for several in parts[mine[0]].values()):
        return (
            parts[mine[0]],
            (
                f"has the same name as other targets ({said}); the one at {address} is "
                "used. Set matchers in the connection"
            ),
            "",
        )
    return (
        {},
        "",
        (
            f"several targets have its name ({said}); select one of them with matchers in "
            "the connection, for example by cluster"
        ),
    )


def _differing(found: Mapping[_Series, list[_Found]]) -> list[str]:
    """Return the labels in which series of the same metric and model differ.

    Includes the instance label if the pod has several instances.
    """
    names: set[str] = set()
    for several in found.values():
        first = several[0][0]
        for metric, _ in several[1:]:
            names |= {name for name in {*first, *metric} if first.get(name) != metric.get(name)}
    if len({metric.get(_INSTANCE) for several in found.values() for metric, _ in several}) > 1:
        names.add(_INSTANCE)
    return sorted(names)


def rebased(scrape: Scrape, skew: float) -> Scrape:
    """Return the scrape with its time converted to a clock that is ``skew`` seconds behind."""
    return replace(scrape, at=scrape.at - skew)
