"""Choose the series of one target where a pod name belongs to several. Pure.

Two monitors of one pod, or the replicas of a Prometheus, produce the same series twice; pods of
several clusters may have the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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

# Index of the metric, model, version, GPU and failure reason: the labels by which Triton itself
# distinguishes series within one pod.
SeriesKey = tuple[int, str, Any, Any, Any]
FoundSeries = tuple[Mapping[str, Any], Sequence[Any]]
_Target = dict[SeriesKey, list[FoundSeries]]


def has_several_targets(found: Mapping[SeriesKey, Sequence[FoundSeries]]) -> bool:
    """Return whether the series of a pod come from more than one target."""
    instances = {metric.get(_INSTANCE) for several in found.values() for metric, _ in several}
    return len(instances) > 1 or any(len(several) > 1 for several in found.values())


def series_of_one_target(
    found: Mapping[SeriesKey, list[FoundSeries]], address: str, interval: float
) -> tuple[dict[SeriesKey, list[FoundSeries]], str, str]:
    """Return the series of one target of a pod, a note about the choice, and a problem.

    Args:
        found: Series of all targets with the pod's name.
        address: ``host:port`` of the pod's metrics; empty if unknown.
        interval: Seconds between scrapes.
    """
    live = _live_series(found, interval)
    names = _differing_labels(live)
    if not names:
        if any(len(several) > 1 for several in live.values()):
            return (
                {},
                "",
                "the same series occurs twice; check whether a proxy merges several responses",
            )
        return live, "", ""
    targets = _by_labels(live, names)
    values = "; ".join(
        f"{name}: {_quoted(key[index] for key in targets)[:100]}"
        for index, name in enumerate(names)
    )
    if set(names) <= SCRAPERS:
        # Take the scraper with the most series, so that a replica with missing series is not
        # chosen. Break ties by name, so that the choice is stable.
        best = min(targets, key=lambda key: (-len(targets[key]), key))
        return (
            targets[best],
            (
                f"the pod is scraped more than once ({values}); keep one scrape configuration for "
                "this target"
            ),
            "",
        )
    own = [target for target in targets.values() if address and _has_address(target, address)]
    if len(own) == 1 and all(len(several) == 1 for several in own[0].values()):
        note = (
            f"the pod has the same name as other targets ({values}). The operator uses the target "
            f"at {address}; set matchers in the connection to select one explicitly"
        )
        return own[0], note, ""
    problem = (
        f"multiple targets have this name ({values}); use matchers in the connection to "
        "select one target, for example by cluster"
    )
    return {}, "", problem


def _live_series(found: Mapping[SeriesKey, list[FoundSeries]], interval: float) -> _Target:
    """Return the series without those that ended before the newest sample."""
    newest = max(
        (float(values[-1][0]) for several in found.values() for _, values in several if values),
        default=0.0,
    )
    oldest = newest - 1.5 * interval
    live = {
        series: [one for one in several if one[1] and float(one[1][-1][0]) >= oldest]
        for series, several in found.items()
    }
    return {series: several for series, several in live.items() if several}


def _by_labels(
    live: Mapping[SeriesKey, list[FoundSeries]], names: Sequence[str]
) -> dict[tuple[str, ...], _Target]:
    """Return the series by the values of the labels that tell targets apart."""
    targets: dict[tuple[str, ...], _Target] = {}
    for series, several in live.items():
        for one in several:
            key = tuple(str(one[0].get(name, "")) for name in names)
            targets.setdefault(key, {}).setdefault(series, []).append(one)
    return targets


def _has_address(target: Mapping[SeriesKey, list[FoundSeries]], address: str) -> bool:
    return any(one[0].get(_INSTANCE) == address for several in target.values() for one in several)


def _differing_labels(found: Mapping[SeriesKey, list[FoundSeries]]) -> list[str]:
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


def _quoted(values: Iterable[str]) -> str:
    """Return the different values of a label; an empty one stays visible."""
    return " and ".join(f"'{value}'" for value in sorted(set(values)))
