"""Triton's metrics page as one look at a pod."""

import pytest

from tests.support.messages import Messages
from triton_pipelines.autoscaling.metrics.metrics_page import (
    MetricsPageError,
    metric_families,
    parse_metrics_page,
)

# A shortened page of Triton 2.51.0; a model on a GPU has some series with gpu_uuid, some without.
PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="tokenizer",version="1"} 40
nv_inference_request_success{gpu_uuid="GPU-1",model="model",version="1"} 30
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="model",reason="REJECTED",version="1"} 2
nv_inference_request_failure{model="model",reason="OTHER",version="1"} 1
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="tokenizer",version="1"} 10
nv_inference_exec_count{gpu_uuid="GPU-1",model="model",version="1"} 5
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="tokenizer",version="1"} 4e3
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="tokenizer",version="1"} 3
nv_inference_pending_request_count{model="model",version="1"} 4
nv_inference_pending_request_count{model="model",version="2"} 1
# TYPE tritonpipe_step_passed_requests gauge
tritonpipe_step_passed_requests{model="tokenizer",version="1"} 7
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25
nv_gpu_utilization{gpu_uuid="GPU-2"} 0.75
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.99
"""


def test_sums_label_sets_and_versions_of_a_model() -> None:
    scrape, gpu = parse_metrics_page(PAGE, 12.5)
    assert scrape.at == 12.5
    assert set(scrape.models) == {"tokenizer", "model"}
    tokenizer, model = scrape.models["tokenizer"], scrape.models["model"]
    assert (tokenizer.success, tokenizer.execs, tokenizer.compute_infer_us, tokenizer.pending) == (
        40,
        10,
        4000,
        3,
    )
    assert (tokenizer.passed, tokenizer.queued) == (7, 10)
    assert (model.success, model.rejected, model.execs, model.pending) == (30, 2, 5, 5)
    assert model.queued == 5
    assert gpu == 0.75


def test_no_gpu_figure_is_not_a_figure_of_nought() -> None:
    assert parse_metrics_page(PAGE.replace("nv_gpu_utilization{", "other{"), 1.0)[1] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nv_inference"),
        ("<html>502</html>", "text format"),
        (PAGE.replace("} 40", "} NaN"), "success is nan"),
        (PAGE.replace("} 40", "} -1"), "success is -1"),
        (PAGE.replace("} 0.75", "} +Inf"), "nv_gpu_utilization"),
        ('nv_inference_request_success{model="a"', "text format"),
    ],
)
def test_what_cannot_be_is_an_error_and_never_a_nought(
    text: str, words: str, messages: Messages
) -> None:
    with messages.raises(MetricsPageError, match=words):
        parse_metrics_page(text, 1.0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('nv_inference_exec_count{model="a",version="1"} 7', {"a": 7.0}),
        ('nv_inference_exec_count { version = "1" , model = "a" , } 7', {"a": 7.0}),
        ('nv_inference_exec_count_total{model="a"} 7 1700000000000', {"a": 7.0}),
        ('nv_inference_exec_count{model="a\\"b\\\\c\\nd"} 7', {'a"b\\c\nd': 7.0}),
        ('nv_inference_exec_count{other=",model=",model="a"} 1.5e2', {"a": 150.0}),
        ('nv_inference_exec_count{other="} 9",model="a"} 7', {"a": 7.0}),
        ('nv_inference_exec_count_sum{model="b"} 9', {}),
        ("nv_inference_exec_count 9", {}),
    ],
)
def test_lines_are_read_as_the_reference_parser_reads_them(
    line: str, expected: dict[str, float]
) -> None:
    text = PAGE.partition("# TYPE nv_inference_exec")[0] + line + "\n"
    scrape, _ = parse_metrics_page(text, 1.0)
    found = {model: counters.execs for model, counters in scrape.models.items() if counters.execs}
    assert found == expected
    reference = {
        sample.labels["model"]: sample.value
        for family in metric_families(text)
        for sample in family.samples
        if sample.name.removesuffix("_total") == "nv_inference_exec_count"
        and "model" in sample.labels
    }
    assert found == reference


def test_a_broken_line_of_a_metric_that_counts_is_an_error() -> None:
    for line in ("nv_inference_exec_count{model=a} 1", 'nv_gpu_utilization{gpu="1"} 1_0'):
        with pytest.raises(MetricsPageError, match="text format"):
            parse_metrics_page(PAGE + line + "\n", 1.0)
