"""Parse Prometheus query results into scrapes, usage figures and times. Pure and strict.

Malformed or missing values are reported and never read as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from triton_pipelines.api.wording import listed

from . import queries
from .connection import Connection, SeriesLabels
from .metrics_page import FAILURES, FIELDS, REJECTED
from .samples import COUNTER_MAX, ModelCounters, PodUsage, Scrape
from .scrape_history import PodKey
from .target_series import FoundSeries, SeriesKey, has_several_targets, series_of_one_target

_ORDER: Final = tuple(field.name for field in fields(ModelCounters))
_NAMES: Final = tuple(sorted(FIELDS, key=lambda name: _ORDER.index(FIELDS[name])))
_INDEX: Final = {name: index for index, name in enumerate(_NAMES)}
# These series may be missing if there are no rejected requests, no cache or no built-in tokenizer.
_OPTIONAL: Final = frozenset({"rejected", "cache_hits", "busy_us", "cpu_us", "passed"})
_NEEDED: Final = sum(1 << index for index, field in enumerate(_ORDER) if field not in _OPTIONAL)
_SHAPE_ERRORS: Final = (TypeError, KeyError, ValueError, IndexError, AttributeError, OverflowError)


class QueryResultError(Exception):
    """A result does not have the shape of a Prometheus result; the message includes the remedy."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; set url to the address of a Prometheus server")


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
    expected: Mapping[PodKey, frozenset[str]],
    addresses: Mapping[PodKey, str],
    interval: float,
) -> dict[PodKey, PodSeries]:
    """Return the scrapes of the expected pods in a query result; series of other pods are ignored.

    Args:
        kind: The resultType of the result.
        result: The result of the query.
        labels: Labels that hold the namespace and the name of a pod.
        expected: The pods, with the models that each must have.
        addresses: Addresses of the pods' metrics ports, which distinguish the pods from pods of the
            same name in another cluster.
        interval: Seconds between scrapes.

    Raises:
        QueryResultError: The result has another shape.
    """
    if kind != "matrix":
        raise QueryResultError(f"the result is a {kind} instead of raw samples")
    found: dict[PodKey, dict[SeriesKey, list[FoundSeries]]] = {}
    namespace, pod = labels.namespace, labels.pod
    try:
        for item in result:
            metric = item["metric"]
            place = (metric.get(namespace), metric.get(pod))
            models = expected.get(place)
            if models is None:
                continue
            index, model = _INDEX.get(metric.get("__name__")), metric.get("model")
            # A native histogram has no plain values. Pods choose the kind of their metrics.
            is_histogram = "histograms" in item and "values" not in item
            if index is None or model not in models or is_histogram:
                continue
            if metric["__name__"] == FAILURES and metric.get("reason") != REJECTED:
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
            place: _seen(several, expected[place], addresses.get(place, ""), interval)
            for place, several in found.items()
        }
    except _SHAPE_ERRORS as error:
        raise QueryResultError(
            f"the result has an unexpected structure ({type(error).__name__})"
        ) from None


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
        raise QueryResultError("the result has no evaluation time")
    return value


def figures(
    kind: str, result: Sequence[Any], connection: Connection
) -> dict[str, dict[PodKey, float]]:
    """Return the values of a result of ``queries.usage`` by figure and pod.

    Values that are negative, not finite or above :data:`.samples.COUNTER_MAX` are left out.

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
            if 0 <= value <= COUNTER_MAX:
                one = found.setdefault(name.removeprefix(queries.EXPORTED), {})
                if not (exported and place in one):
                    one[place] = value
    except _SHAPE_ERRORS as error:
        raise QueryResultError(
            f"the result has an unexpected structure ({type(error).__name__})"
        ) from None
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
        raise QueryResultError(
            f"the result has an unexpected structure ({type(error).__name__})"
        ) from None


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
        raise QueryResultError(f"the result is a {kind} instead of a vector")
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
    found: dict[SeriesKey, list[FoundSeries]], models: frozenset[str], address: str, interval: float
) -> PodSeries:
    """Return the series of one pod as scrapes."""
    note = ""
    if has_several_targets(found):
        chosen, note, problem = series_of_one_target(found, address, interval)
        if problem:
            return PodSeries(problem=problem)
        found = chosen
    rows: dict[float, dict[str, list[float]]] = {}
    masks: dict[tuple[float, str], int] = {}
    for (index, model, *_), several in found.items():
        bit = 1 << index
        for at, text in several[0][1]:
            value = float(text) if type(text) is str else math.nan
            if not 0 <= value <= COUNTER_MAX:
                return PodSeries(
                    problem=(
                        f"{_NAMES[index]} of model {model!r} is {str(text)[:20]}, which is "
                        "not a valid counter value; check which rule or proxy changes this series"
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
        raise QueryResultError("the result contains a sample without a timestamp")
    return float(at)


def _lacking(masks: Mapping[str, int]) -> str:
    """Describe the series that are missing from a scrape; "" if it is complete."""
    for model, mask in sorted(masks.items()):
        missing = [name for index, name in enumerate(_NAMES) if _NEEDED & ~mask & (1 << index)]
        if len(missing) == _NEEDED.bit_count():
            return f"no series for model {model!r}; check that the model is loaded"
        if missing:
            return (
                f"model {model!r} has no {listed(missing, 'or')} series; check whether a "
                "relabeling rule or a partial response drops them"
            )
    return ""


def rebased(scrape: Scrape, skew: float) -> Scrape:
    """Return the scrape with its time converted to a clock that is ``skew`` seconds behind."""
    return replace(scrape, at=scrape.at - skew)
