"""Triton's metrics page as one look at a pod."""

import pytest

from triton_pipelines.autoscaling.metrics.metrics_page import MetricsPageError, parse_metrics_page

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
    assert (model.success, model.failure, model.execs, model.pending) == (30, 3, 5, 5)
    assert gpu == 0.75


def test_no_gpu_figure_is_not_a_figure_of_nought() -> None:
    assert parse_metrics_page(PAGE.replace("nv_gpu_utilization{", "other{"), 1.0)[1] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no nv_inference"),
        ("<html>502</html>", "text format"),
        (PAGE.replace("} 40", "} NaN"), "success is nan"),
        (PAGE.replace("} 40", "} -1"), "success is -1"),
        (PAGE.replace("} 0.75", "} +Inf"), "nv_gpu_utilization is inf"),
        ('nv_inference_request_success{model="a"', "text format"),
    ],
)
def test_what_cannot_be_is_an_error_and_never_a_nought(text: str, words: str) -> None:
    with pytest.raises(MetricsPageError, match=words):
        parse_metrics_page(text, 1.0)
