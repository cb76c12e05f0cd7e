"""Numbers that pods choose: none ends a decision, and the status and the state can be written.

The path is the whole one: a metrics page or a Prometheus result, samples, decision, status, record
in the live ConfigMap, and the operator's own metrics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.support.flows import INTERVAL, MODEL, NOW, TOKENIZER, limits
from tests.unit.metrics.answers import series
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.scaling_status import ScalingStatus
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics import query_results
from triton_pipelines.autoscaling.metrics.connection import SeriesLabels
from triton_pipelines.autoscaling.metrics.latency_reader import latency_of
from triton_pipelines.autoscaling.metrics.metrics_page import (
    FIELDS,
    GPU_UTILIZATION,
    MetricsPageError,
    parse_metrics_page,
)
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodHistory,
    PodUsage,
    Scrape,
)
from triton_pipelines.autoscaling.state_json import dumps, loads
from triton_pipelines.autoscaling.types import PipelineLimits, ScalingState, StepState
from triton_pipelines.controllers.autoscaler.scaling_metrics import ScalingMetrics
from triton_pipelines.controllers.handover import ScalingView
from triton_pipelines.controllers.pipeline.latency_figures import LatencySample
from triton_pipelines.controllers.pipeline.latency_figures import latency_of as p99_of
from triton_pipelines.controllers.scaling_conditions import scaling_status

POD = "pod-0"
NUMBERS = st.one_of(
    st.sampled_from(
        [
            "NaN",
            "Nan",
            "nan",
            "+Inf",
            "-Inf",
            "inf",
            "Infinity",
            "-0",
            "0",
            "-1",
            "1",
            "+5",
            "1_0",
            "0x10",
            "1e308",
            "1.7e308",
            "1e400",
            "5e-324",
            "1e-310",
            "1e-312",
            "1e19",
            "9223372036854775807",
            "18446744073709551615",
            "18446744073709551616",
        ]
    ),
    st.floats().map(repr),
    st.integers(0, 2**64).map(str),
    st.integers(0, 1000).map(str),
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {(model, name): NUMBERS for model in (TOKENIZER, MODEL) for name in FIELDS}
    ),
    min_size=1,
    max_size=4,
)
Row = dict[tuple[str, str], str]


def page(row: Row, gpu: str) -> str:
    lines = [
        f'{name}{{model="{model}",version="1"}} {value}' for (model, name), value in row.items()
    ]
    return "\n".join([*lines, f'{GPU_UTILIZATION}{{gpu_uuid="GPU-1"}} {gpu}', ""])


def page_sample(rows: Sequence[Row], gpu: str) -> PipelineSample | MetricsFailure:
    """What reading one page after the other gives."""
    scrapes: list[Scrape] = []
    usage = None
    for number, row in enumerate(rows):
        at = NOW - INTERVAL * (len(rows) - 1 - number)
        try:
            scrape, utilization = parse_metrics_page(page(row, gpu), at)
        except MetricsPageError as error:
            return MetricsFailure(MetricsProblem.MISSING, str(error), "test")
        scrapes.append(scrape)
        usage = PodUsage(at, gpu=utilization)
    return PipelineSample({POD: PodHistory(tuple(scrapes), usage)}, INTERVAL, "test")


def stored(text: str) -> str:
    """The value as Prometheus returns it; what it cannot read is not stored."""
    try:
        return repr(float(text))
    except ValueError:
        return "NaN"


def prometheus_sample(rows: Sequence[Row]) -> PipelineSample | MetricsFailure:
    """What Prometheus gives that has scraped the same pages."""
    result: list[dict[str, Any]] = []
    for model in (TOKENIZER, MODEL):
        times = [NOW - INTERVAL * (len(rows) - 1 - number) for number in range(len(rows))]
        for item in series(POD, model, dict.fromkeys(times, 0.0)):
            name = item["metric"]["__name__"]
            values = [[at, stored(row[model, name])] for at, row in zip(times, rows, strict=True)]
            result.append({**item, "values": values})
    place = ("default", POD)
    seen = query_results.counters(
        "matrix", result, SeriesLabels(), {place: frozenset({TOKENIZER, MODEL})}, {}, INTERVAL
    )[place]
    if seen.problem or not seen.scrapes:
        return MetricsFailure(MetricsProblem.PARTIAL, seen.problem, "test")
    return PipelineSample({POD: PodHistory(seen.scrapes)}, INTERVAL, "test")


def check(
    sample: PipelineSample | MetricsFailure, count: int, mode: ScalingMode, given: PipelineLimits
) -> None:
    state = ScalingState(steps={TOKENIZER: StepState(desired=2, service=0.01)})
    counts = {TOKENIZER: {POD: count}}
    decision = decide(given, state, sample, counts, [POD], NOW)
    assert 1 <= decision.steps[0].count <= 12
    view = ScalingView(decision, mode, counts, "test", at=NOW)
    status = scaling_status(view, {})
    ScalingStatus.model_validate(status)
    json.dumps(status, allow_nan=False)
    text = dumps(decision.state)
    json.loads(text, parse_constant=pytest.fail)
    assert loads(text).steps[TOKENIZER].desired == decision.state.steps[TOKENIZER].desired
    registry = CollectorRegistry()
    ScalingMetrics(registry).observe_decision(("n", "p"), view, {TOKENIZER: TOKENIZER}, sample, NOW)
    for family in registry.collect():
        assert all(math.isfinite(one.value) for one in family.samples), family


LIMITS = st.sampled_from([limits(), limits(cpu_limit=4.0)])
MODES = st.sampled_from([ScalingMode.ACTIVE, ScalingMode.ADVISORY])
COUNTS = st.sampled_from([0, 1, 2, 12, 2**31 - 1])


@given(ROWS, NUMBERS, COUNTS, MODES, LIMITS)
def test_no_number_on_a_metrics_page_ends_a_decision(
    rows: list[Row], gpu: str, count: int, mode: ScalingMode, given_limits: PipelineLimits
) -> None:
    check(page_sample(rows, gpu), count, mode, given_limits)


@given(ROWS, COUNTS, MODES, LIMITS)
def test_no_number_from_prometheus_ends_a_decision(
    rows: list[Row], count: int, mode: ScalingMode, given_limits: PipelineLimits
) -> None:
    check(prometheus_sample(rows), count, mode, given_limits)


WHOLE = st.integers(0, 2**64).map(str) | st.sampled_from(
    ["5e-324", "1e-317", "1e-312", "18446744073709551616", "1e308"]
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {(model, name): WHOLE for model in (TOKENIZER, MODEL) for name in FIELDS}
        ),
        min_size=2,
        max_size=3,
    ),
    LIMITS,
)
def test_counters_that_rise_and_fall_by_any_amount(
    rows: list[Row], given_limits: PipelineLimits
) -> None:
    """Rows that are all valid reach the control law far more often than those above."""
    check(page_sample(rows, "0.5"), 2, ScalingMode.ACTIVE, given_limits)


def flowing(**changed: str) -> list[Row]:
    """Two pages of which the second has these values; all other counters grow by one."""
    before = {(model, name): "0" for model in (TOKENIZER, MODEL) for name in FIELDS}
    after = {
        (model, name): changed.get(name, "1") for model in (TOKENIZER, MODEL) for name in FIELDS
    }
    return [before, after]


@pytest.mark.parametrize("cpu_limit", [None, 4.0])
@pytest.mark.parametrize("time", ["1e-317", "3e-317", "1e-315", "1e-312", "1e-310"])
def test_a_time_too_short_to_be_a_service_time(time: str, cpu_limit: float | None) -> None:
    """The product of a denormal service time and cores is zero."""
    rows = flowing(
        nv_inference_compute_input_duration_us="0",
        nv_inference_compute_infer_duration_us=time,
        nv_inference_compute_output_duration_us="0",
        tritonpipe_step_busy_us="0",
        nv_inference_pending_request_count="18446744073709551615",
    )
    given_limits = limits(cpu_limit=cpu_limit)
    small = replace(given_limits.steps[0], cores=0.05)
    check(page_sample(rows, "1"), 2, ScalingMode.ACTIVE, replace(given_limits, steps=(small,)))


@pytest.mark.parametrize("value", ["18446744073709551615", "1e308"])
def test_counters_at_their_maximum_have_figures_that_the_status_holds(value: str) -> None:
    rows = flowing(
        nv_inference_request_success=value,
        nv_inference_pending_request_count=value,
        nv_inference_compute_infer_duration_us=value,
        nv_inference_compute_input_duration_us=value,
    )
    check(page_sample(rows, "1"), 2, ScalingMode.ACTIVE, limits())


SUMMARY = """\
nv_inference_request_summary_us_count{{model="m",version="1"}} {count}
nv_inference_request_summary_us{{model="m",version="1",quantile="0.99"}} {p99}
"""


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8))
def test_no_latency_of_a_pod_makes_a_figure_that_is_no_number(pairs: list[tuple[str, str]]) -> None:
    """Not even next to a pod with plausible latencies."""
    samples = []
    for number, (count, p99) in enumerate(pairs):
        try:
            found = latency_of(SUMMARY.format(count=count, p99=p99), "m")
        except MetricsPageError:
            continue
        if found is not None:
            samples.append(LatencySample(15.0 * number, found.p99, found.requests))
    good = [LatencySample(15.0 * number, 10.0, 100.0 * number) for number in range(8)]
    figure = p99_of([samples, good])
    assert figure is not None
    for value in (figure.low, figure.high, figure.rate):
        assert math.isfinite(value)
        assert value >= 0
