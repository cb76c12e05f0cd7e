"""Options of the operator: defaults, variables, and messages that name the option."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.app.config import (
    OperatorConfig,
    OperatorConfigError,
    load_config,
    variable_of,
)
from triton_pipelines.autoscaling.metrics.connections_file import ConnectionsError
from triton_pipelines.compile.graph.options import DEFAULT_FAMILY_IMAGES, Options, PodTemplateMode
from triton_pipelines.compile.render import tuning_objects


def test_defaults_are_valid_and_cluster_wide() -> None:
    config = load_config(environ={})
    assert config.cluster_wide
    assert config.scopes == (None,)
    assert config.images["default"] == "nvcr.io/nvidia/tritonserver:26.07-py3"
    assert config.render_options.server_image == config.images["default"]
    assert config.render_options.custom_code_allowed
    assert config.render_options.pod_template is PodTemplateMode.RESTRICTED
    assert dict(config.render_options.family_images) == DEFAULT_FAMILY_IMAGES


def test_variables_fill_in_and_options_win() -> None:
    environ = {
        "TRITONPIPE_NAMESPACES": "a, b,a",
        "TRITONPIPE_WORKERS": "3",
        "TRITONPIPE_IMAGES": "vllm=v:1",
        "TRITONPIPE_SOURCE_MAP": "hf://=http://127.0.0.1:1,s3://=http://127.0.0.1:2",
        "TRITONPIPE_SUBSTITUTE_RUNNER": "onnxruntime_onnx",
        "TRITONPIPE_CUSTOM_CODE": "forbid",
        "TRITONPIPE_POD_TEMPLATE": "forbid",
        "TRITONPIPE_SERVICE_ACCOUNTS": "bucket-reader, hub-reader",
        "TRITONPIPE_INFERENCE_NAMESPACES": "gateway, web,gateway",
        "TRITONPIPE_METRICS_NAMESPACES": "*",
        "TRITONPIPE_DEFAULT_SERVICE_ACCOUNT": "writer",
        "TRITONPIPE_IMPERSONATED_SERVICE_ACCOUNTS": "deployer, writer",
        "TRITONPIPE_POD_METADATA": "example.com/*",
        "OTHER": "x",
    }
    config = load_config({"workers": 5, "log_level": None}, environ)
    assert config.namespaces == ("a", "b")
    assert config.scopes == ("a", "b")
    assert config.workers == 5
    assert config.images["vllm"] == "v:1"
    assert config.images["default"].startswith("nvcr.io/")
    options = config.render_options
    assert options.source_map == ("hf://=http://127.0.0.1:1", "s3://=http://127.0.0.1:2")
    assert options.substitute_runner == {"onnxruntime_onnx"}
    assert not options.custom_code_allowed
    assert options.pod_template is PodTemplateMode.FORBID
    assert options.service_accounts == ("bucket-reader", "hub-reader")
    assert options.inference_namespaces == ("gateway", "web")
    assert options.metrics_namespaces == ("*",)
    assert options.default_account == "writer"
    assert options.impersonated_accounts == ("writer", "deployer")
    assert options.pod_metadata == ("example.com/*",)
    assert dict(options.family_images) == {**DEFAULT_FAMILY_IMAGES, "vllm": "v:1"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, ["--workers", "TRITONPIPE_WORKERS", "greater than or equal to 1"]),
        ({"namespaces": ["team-*"]}, ["--namespaces", "team-*", "wildcards are not supported"]),
        ({"images": ["noequals"]}, ["--images", "'noequals'", "NAME=VALUE"]),
        ({"source_map": ["nonsense"]}, ["--source-map", "nonsense", "PREFIX=TARGET"]),
        (
            {"images": ["default=a:1", "vlm=b:1"]},
            ["--images", "vlm: unknown image family", "default, vllm, tensorrtllm"],
        ),
        (
            {"substitute_runner": ["onnxruntime_onnx", "tensorrt_plan"]},
            ["--substitute-runner", "tensorrt_plan", "use one of: onnxruntime_onnx"],
        ),
        ({"pod_template": "maybe"}, ["--pod-template", "'allow', 'restricted' or 'forbid'"]),
        (
            {"inference_namespaces": ["team-*"]},
            ["--inference-namespaces", "'team-*' is not a valid namespace name"],
        ),
        (
            {"default_service_account": "*"},
            ["--default-service-account", "'*' is not the name of a service account"],
        ),
        (
            {"impersonated_service_accounts": ["a", "b*"]},
            ["--impersonated-service-accounts", "'b*'", "list each name"],
        ),
        ({"custom_code": "maybe"}, ["--custom-code", "'allow' or 'forbid'"]),
        (
            {"metrics_authentication": "token"},
            ["metrics_authentication token requires TLS; set metrics_tls_folder"],
        ),
        ({"metrics_port": 9000, "liveness_port": 9000}, ["metrics_port", "liveness_port", "9000"]),
        (
            {"prometheus_url": "prometheus:9090"},
            ["--prometheus-url", "TRITONPIPE_PROMETHEUS_URL", "is not an http or https URL"],
        ),
        (
            {"prometheus_url": "http://a", "metrics_connections": "/b"},
            ["metrics_connections and prometheus_url cannot be combined"],
        ),
        ({"unknown": 1}, ["--unknown"]),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(OperatorConfigError) as caught:
        load_config(options, {})
    for word in words:
        assert word in str(caught.value)


def test_connections_are_read_from_their_file(tmp_path: Path, messages: Messages) -> None:
    file = tmp_path / "connections.yaml"
    file.write_text("connections: [{name: a, url: 'http://b'}]")
    assert load_config({"metrics_connections": file}, {}).connections["a"].url == "http://b"
    assert (
        load_config({}, {"TRITONPIPE_PROMETHEUS_URL": "http://c"}).connections["default"].url
        == "http://c"
    )
    assert load_config({}, {}).connections == {}
    file.write_text("connections: []")
    with messages.raises(ConnectionsError):
        _ = load_config({"metrics_connections": file}, {}).connections


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(OperatorConfigError) as caught:
        load_config({"workers": 0, "resync_seconds": 0}, {})
    assert len(str(caught.value).splitlines()) == 2


def test_the_configuration_cannot_be_changed() -> None:
    config = load_config(environ={})
    with pytest.raises(ValueError, match="frozen"):
        config.workers = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.images["default"] = "x"  # type: ignore[index]


def test_every_option_has_a_variable_and_a_description() -> None:
    for name in OperatorConfig.model_fields:
        assert variable_of(name).startswith("TRITONPIPE_")
        assert name in (OperatorConfig.__doc__ or ""), name


def test_a_tuning_job_judges_by_the_operators_options() -> None:
    config = OperatorConfig(
        images={"default": "mirror/server:25.08", "vllm": "mirror/vllm:25.08"},
        loader_image="mirror/operator:1",
        image_pull_policy="Always",
        source_map=("hf://=https://hub.example.com",),
        substitute_runner=frozenset({"onnxruntime_onnx"}),
        custom_code="forbid",
        pod_template="allow",
        service_accounts=("reader",),
        inference_namespaces=("gateway",),
        metrics_namespaces=("monitoring",),
        default_service_account="writer",
        impersonated_service_accounts=("deployer",),
        pod_metadata=("example.com/*",),
        operator_key_secret="other",
        operator_namespace="ops",
    )
    options = config.render_options
    fixed = {"models_path", "engines_path"}
    assert [
        one.name
        for one in dataclasses.fields(Options)
        if one.name not in fixed and getattr(options, one.name) == getattr(Options(), one.name)
    ] == [], "every option differs from its default here"
    made = tuning_objects.inputs(builders.pipeline(), "run", {}, options.server_image, options)
    given = json.loads(made["data"][tuning_objects.FILE_OPTIONS])
    assert OperatorConfig.model_validate(given).render_options == options
