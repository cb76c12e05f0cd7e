"""Parse Triton's metrics page into a scrape of a pod. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from .samples import ModelCounters, Scrape

# Metric → field of ModelCounters. Triton's counters have no "_total" suffix.
FIELDS: Final[Mapping[str, str]] = {
    "nv_inference_request_success": "success",
    "nv_inference_request_failure": "failure",
    "nv_inference_exec_count": "execs",
    "nv_cache_num_hits_per_model": "cache_hits",
    "nv_inference_queue_duration_us": "queue_us",
    "nv_inference_compute_input_duration_us": "compute_input_us",
    "nv_inference_compute_infer_duration_us": "compute_infer_us",
    "nv_inference_compute_output_duration_us": "compute_output_us",
    "nv_inference_pending_request_count": "pending",
}
GPU_UTILIZATION: Final = "nv_gpu_utilization"
LINES_MAX: Final = 20_000
"""Lines of the largest page: a model has about 100, with and without its GPU's label."""
LINE_CHARACTERS_MAX: Final = 2048
"""Length of the longest line. The time to parse its labels grows with the square of it."""


class MetricsPageError(ValueError):
    """A page is not Triton's metrics.

    Attributes:
        problem: What is wrong; the same text for the same cause.
    """

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(f"{problem}: {detail}" if detail else problem)
        self.problem = problem


def metric_families(text: str) -> Iterator[Metric]:
    """Yield the metrics of a page.

    Raises:
        MetricsPageError: The page is not in the text format, or has too many or too long lines.
    """
    if text.count("\n") > LINES_MAX:
        raise MetricsPageError(f"has more than {LINES_MAX} lines")
    if any(len(line) > LINE_CHARACTERS_MAX for line in text.split("\n")):
        raise MetricsPageError(f"has a line of more than {LINE_CHARACTERS_MAX} characters")
    try:
        yield from text_string_to_metric_families(text)
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise MetricsPageError("is not Prometheus' text format", str(error)[:200]) from error


def parse_metrics_page(
    text: str, at: float, models: Collection[str] | None = None
) -> tuple[Scrape, float | None]:
    """Return the counters of the models and the GPU utilization on a pod's metrics page.

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
    for family in metric_families(text):
        for sample in family.samples:
            name, model = sample.name.removesuffix("_total"), sample.labels.get("model")
            if name == GPU_UTILIZATION:
                gpus.append(_sane(name, sample.value))
            elif name in FIELDS and model:
                is_tritons = True
                if models is None or model in models:
                    sums[model][FIELDS[name]] += _sane(name, sample.value)
    if not is_tritons:
        raise MetricsPageError(
            "has no nv_inference_* series; the server must run with --allow-metrics=true and "
            "counter_latencies on"
        )
    return Scrape(at, {model: ModelCounters(**fields) for model, fields in sums.items()}), max(
        gpus, default=None
    )


def _sane(name: str, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise MetricsPageError(f"{name} is {value}, which no counter or gauge of Triton's can be")
    return value
