"""Answers of Prometheus as scrapes, figures and times. Pure and strict: what is not as it has to be is said, never taken for a 0."""

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

# Labels that tell who scraped, not whom: two monitors of one pod, or the replicas of a Prometheus, give the same series twice.
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
# Without failures or a cache there need be no such series.
_OPTIONAL: Final = frozenset({"failure", "cache_hits"})
_NEEDED: Final = sum(1 << index for index, field in enumerate(_ORDER) if field not in _OPTIONAL)
_SHAPE_ERRORS: Final = (TypeError, KeyError, ValueError, IndexError, AttributeError, OverflowError)

# Metric by number, model, version, GPU, reason of a failure: what Triton itself tells apart within one pod.
_Series = tuple[int, str, Any, Any, Any]
_Found = tuple[Mapping[str, Any], Sequence[Any]]


class QueryResultError(ValueError):
    """An answer of another shape than Prometheus gives."""


@dataclass(frozen=True, slots=True)
class PodSeries:
    """A pod in an answer: whole scrapes, oldest first, or why they cannot be used (``problem``); ``note``: what people should know."""

    scrapes: tuple[Scrape, ...] = ()
    problem: str = ""
    note: str = ""


def counters(
    kind: str,
    result: Sequence[Any],
    labels: SeriesLabels,
    wanted: Mapping[PodKey, frozenset[str]],
    addresses: Mapping[PodKey, str],
    interval: float,
) -> dict[PodKey, PodSeries]:
    """Scrapes of the wanted pods (with the models that each must have) that are in an answer; series of others are passed over.

    ``addresses``: of the pods' metrics ports, to tell them from namesakes of another cluster; ``interval``: seconds between scrapes.

    Raises:
        AnswerError: the answer is of another shape.
    """
    if kind != "matrix":
        raise QueryResultError(f"gives a {kind} where raw samples were asked for")
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
    """The server's time, Unix seconds.

    Raises:
        AnswerError: the answer is of another shape.
    """
    try:
        value = float(result[1]) if kind == "scalar" else math.nan
    except _SHAPE_ERRORS:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise QueryResultError("does not tell its time")
    return value


def figures(
    kind: str, result: Sequence[Any], connection: Connection
) -> dict[str, dict[PodKey, float]]:
    """Figure → pod → value of an answer to ``queries.usage``; values that are not finite or negative are left out.

    Raises:
        AnswerError: the answer is of another shape.
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
    """Whether the last scrape of each pod worked, for those that are targets at all.

    Raises:
        AnswerError: the answer is of another shape.
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
    """Usage of each pod of which anything is known; ``at``: time of the oldest sample behind the figures."""
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
    """The best figure there is: Triton's own, else DCGM's share of time with the engine active, else its utilisation in percent."""
    for name, whole in ((queries.GPU, 1.0), (queries.ENGINE, 1.0), (queries.DCGM, 100.0)):
        value = found.get(name, {}).get(pod)
        if value is not None and value <= 1.01 * whole:
            return min(1.0, value / whole)
    return None


def _vector(kind: str, result: Sequence[Any]) -> Sequence[Any]:
    if kind != "vector":
        raise QueryResultError(f"gives a {kind} where a vector was asked for")
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
    """One pod's series as scrapes."""
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
                        f"{_NAMES[index]} of model {model} is {str(text)[:20]}, which no counter "
                        "can be"
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
        raise QueryResultError("has a sample without a time")
    return float(at)


def _lacking(masks: Mapping[str, int]) -> str:
    """Which series a scrape lacks, in words; "" when it is whole."""
    for model, mask in sorted(masks.items()):
        missing = [name for index, name in enumerate(_NAMES) if _NEEDED & ~mask & (1 << index)]
        if len(missing) == _NEEDED.bit_count():
            return f"no series of model {model}; is it loaded?"
        if missing:
            return (
                f"model {model} lacks {', '.join(missing)}; does a relabelling or a partial "
                "answer drop them?"
            )
    return ""


def _one_target(
    found: Mapping[_Series, list[_Found]], address: str, interval: float
) -> tuple[dict[_Series, list[_Found]], str, str]:
    """The series of one target where a pod has those of several: series, a note, and a problem."""
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
            return {}, "", "the same series is there twice"
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
        # The one with most series, so that the replica that lacks some is not taken; else always the same one.
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
                f"has namesakes ({said}); the one at {address} is taken. Set matchers in the "
                "connection"
            ),
            "",
        )
    return (
        {},
        "",
        (
            f"several targets have its name ({said}); say in the connection's matchers which is "
            "meant, such as cluster"
        ),
    )


def _differing(found: Mapping[_Series, list[_Found]]) -> list[str]:
    """Labels by which the series of one metric and model differ, or the instance where the pod has several."""
    names: set[str] = set()
    for several in found.values():
        first = several[0][0]
        for metric, _ in several[1:]:
            names |= {name for name in {*first, *metric} if first.get(name) != metric.get(name)}
    if len({metric.get(_INSTANCE) for several in found.values() for metric, _ in several}) > 1:
        names.add(_INSTANCE)
    return sorted(names)


def rebased(scrape: Scrape, skew: float) -> Scrape:
    """The scrape by another clock that is ``skew`` seconds behind."""
    return replace(scrape, at=scrape.at - skew)
