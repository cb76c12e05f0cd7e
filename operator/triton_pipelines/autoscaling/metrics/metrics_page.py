"""Parse Triton's metrics page into a scrape of a pod. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from .samples import COUNTER_MAX, ModelCounters, Scrape

FAILURES: Final = "nv_inference_request_failure"
REJECTED: Final = "REJECTED"
"""Reason of the failures that are read: those of requests that a queue policy rejected."""
# Metric → field of ModelCounters. Triton's own counters have no "_total" suffix.
FIELDS: Final[Mapping[str, str]] = {
    "nv_inference_request_success": "success",
    FAILURES: "rejected",
    "nv_inference_exec_count": "execs",
    "nv_cache_num_hits_per_model": "cache_hits",
    "nv_inference_queue_duration_us": "queue_us",
    "nv_inference_compute_input_duration_us": "compute_input_us",
    "nv_inference_compute_infer_duration_us": "compute_infer_us",
    "nv_inference_compute_output_duration_us": "compute_output_us",
    "nv_inference_pending_request_count": "pending",
    # Counters and gauge of the built-in tokenizer.
    "tritonpipe_step_busy_us": "busy_us",
    "tritonpipe_step_cpu_us": "cpu_us",
    "tritonpipe_step_passed_requests": "passed",
}
GPU_UTILIZATION: Final = "nv_gpu_utilization"
LINES_MAX: Final = 20_000
"""Lines of the largest page: a model has about 100, with and without its GPU's label."""
LINE_CHARACTERS_MAX: Final = 2048
"""Length of the longest line. The time to parse its labels grows with the square of it."""

CHECK_PORT: Final = "check that port 8002 of the pod serves Triton's metrics"
_NOT_THE_FORMAT: Final = "the page is not in the Prometheus text format"
_NAMES: Final = {
    written: name
    for name in (*FIELDS, GPU_UTILIZATION)
    for written in (name, f"{name} ", f"{name}_total")
}
# Labels in braces, a value, and possibly a time.
_SAMPLE: Final = re.compile(
    r"\w+\s*(?:\{(?P<labels>.*)\})?\s*(?P<value>[^\s_{}\"]+)(?:\s+-?\d+)?\s*"
)
_LABEL: Final = re.compile(r'\s*(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
_READ_LABELS: Final = frozenset({"model", "quantile", "reason"})
# The labels of a series are the same on each page. At most 2 KiB each.
_CACHED_LABELS: Final = 4096
# Characters of a page without samples that are parsed to find out what is wrong. Parsing all of the
# largest page would take seconds.
_CHECKED_CHARACTERS: Final = 16 * 1024


class MetricsPageError(ValueError):
    """A page is not Triton's metrics; the message includes the remedy.

    Attributes:
        problem: What is wrong; the same text for the same cause.
    """

    def __init__(self, problem: str, detail: str = "") -> None:
        text = f"{problem}: {detail}" if detail else problem
        super().__init__(f"{text}; {CHECK_PORT}")
        self.problem = problem


def metric_families(text: str) -> Iterator[Metric]:
    """Yield the metrics of a page.

    Raises:
        MetricsPageError: The page is not in the text format, or has too many or too long lines.
    """
    _lines(text)
    try:
        yield from text_string_to_metric_families(text)
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise MetricsPageError(_NOT_THE_FORMAT, str(error)[:200]) from error


def check_format(text: str) -> None:
    """Check the beginning of a page on which no sample was found.

    Raises:
        MetricsPageError: It is not in the text format.
    """
    head = text[:_CHECKED_CHARACTERS]
    if len(head) < len(text):
        head = head[: head.rfind("\n") + 1]
    for _ in metric_families(head):
        pass


def samples_of(
    text: str, names: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield name, labels (``_READ_LABELS``) and value of the samples of some metrics.

    Only the lines of these metrics are parsed: a page has many others.

    Args:
        text: The metrics page.
        names: Metric names by the beginning of their lines, up to the labels or the first space.

    Raises:
        MetricsPageError: The page is not in the text format, or has too many or too long lines.
    """
    for line in _lines(text):
        head, brace, _ = line.partition("{")
        name = names.get(head if brace else head.partition(" ")[0])
        if name is not None:
            labels, value = _sample(line, name)
            yield name, _labels(labels), value


def parse_metrics_page(
    text: str, at: float, models: Collection[str] | None = None
) -> tuple[Scrape, float | None]:
    """Return the counters of the models and the GPU utilization on a pod's metrics page.

    Only the lines of these metrics are parsed: a page has many others.

    Counters of a model are summed over label sets (a GPU model has one with and one without
    ``gpu_uuid``) and over versions.

    Args:
        text: The metrics page.
        at: When the page was read, Unix seconds.
        models: Names of the models to keep; ``None`` keeps all.

    Returns:
        The scrape, and the utilization of the busiest GPU (0–1) or ``None`` if it is not reported.

    Raises:
        MetricsPageError: The page is not in the text format, or a counter has an impossible value.
    """
    sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    gpus: list[float] = []
    is_tritons = False
    for name, labels, value in samples_of(text, _NAMES):
        if name == GPU_UTILIZATION:
            gpus.append(min(1.0, sane(name, value)))
        elif model := labels.get("model"):
            is_tritons = True
            is_read = name != FAILURES or labels.get("reason") == REJECTED
            if is_read and (models is None or model in models):
                sums[model][FIELDS[name]] += sane(name, value)
    if not is_tritons:
        check_format(text)
        raise MetricsPageError("the page has no nv_inference_* series")
    return Scrape(at, {model: ModelCounters(**fields) for model, fields in sums.items()}), max(
        gpus, default=None
    )


def _lines(text: str) -> list[str]:
    """Return the lines of a page; raise :class:`MetricsPageError` if they are too many or long."""
    if text.count("\n") > LINES_MAX:
        raise MetricsPageError(f"the page has more than {LINES_MAX} lines")
    lines = text.split("\n")
    if max(map(len, lines)) > LINE_CHARACTERS_MAX:
        raise MetricsPageError(f"the page has a line of more than {LINE_CHARACTERS_MAX} characters")
    return lines


def _sample(line: str, name: str) -> tuple[str, float]:
    """Return the text of the labels and the value on the line of a metric."""
    found = _SAMPLE.fullmatch(line)
    try:
        if found is not None:
            return found["labels"] or "", float(found["value"])
    except ValueError:
        pass
    raise MetricsPageError(_NOT_THE_FORMAT, f"invalid line for {name}")


@lru_cache(maxsize=_CACHED_LABELS)
def _labels(text: str) -> Mapping[str, str]:
    """Return the labels on a line that are read; the result is shared."""
    position, labels = 0, dict[str, str]()
    while position < len(text):
        found = _LABEL.match(text, position)
        if found is None:
            raise MetricsPageError(_NOT_THE_FORMAT, f"the labels {text[:200]!r}")
        if found[1] in _READ_LABELS:
            labels[found[1]] = re.sub(r"\\(.)", _unescaped, found[2])
        position = found.end()
    return labels


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def sane(name: str, value: float) -> float:
    """Return the value of a counter or gauge.

    Raises:
        MetricsPageError: Triton reports no such value.
    """
    if not 0 <= value <= COUNTER_MAX:
        raise MetricsPageError(
            f"{name} is {value}, which is not a valid value for a Triton counter or gauge"
        )
    return value
