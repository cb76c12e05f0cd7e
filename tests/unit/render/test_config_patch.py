"""``configPatch`` merged into a config: what stays, what is replaced, what is cleared."""

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_pipelines.compile.render.config_patch import patch

CONFIG = """
name: "m" backend: "python" max_batch_size: 4
parameters { key: "tritonpipe.max_length" value { string_value: "8" } }
parameters { key: "a" value { string_value: "1" } }
dynamic_batching { preferred_batch_size: [ 2, 4 ] }
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def _patched(wanted: dict[str, object]) -> tuple[model_config_pb2.ModelConfig, list[str]]:
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    return config, [str(finding) for finding in patch(config, wanted, "configPatch")]


def test_maps_are_merged_by_key() -> None:
    config, findings = _patched(
        {"parameters": {"b": {"stringValue": "2"}, "a": {"stringValue": "3"}}}
    )
    assert findings == []
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "tritonpipe.max_length": "8",
        "a": "3",
        "b": "2",
    }


def test_null_clears_a_key_and_a_field() -> None:
    config, findings = _patched(
        {"parameters": {"a": None}, "dynamicBatching": {"preferredBatchSize": None}}
    )
    assert findings == []
    assert set(config.parameters) == {"tritonpipe.max_length"}
    assert list(config.dynamic_batching.preferred_batch_size) == []
    assert config.HasField("dynamic_batching")


def test_lists_are_replaced_and_empty_messages_survive() -> None:
    config, findings = _patched(
        {
            "dynamic_batching": {"preferred_batch_size": [4]},
            "optimization": {"cuda": {}},
            "input": [{"name": "x", "reshape": {}}],
        }
    )
    assert findings == []
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.optimization.HasField("cuda")
    assert config.input[0].HasField("reshape")
    assert list(config.input[0].dims) == [1]


def test_zero_and_false_are_set() -> None:
    config, findings = _patched({"optimization": {"input_pinned_memory": {"enable": True}}})
    assert findings == []
    assert (
        patch(config, {"optimization": {"inputPinnedMemory": {"enable": False}}}, "configPatch")
        == []
    )
    assert config.optimization.HasField("input_pinned_memory")
    assert not config.optimization.input_pinned_memory.enable


def test_what_is_no_such_field_or_value_is_told_with_its_place() -> None:
    assert _patched({"optimisation": {}})[1][0].startswith(
        "configPatch.optimisation: unknown field of Triton's ModelConfig; its fields are backend"
    )
    assert _patched({"optimization": {"graph": {"level": "high"}}})[1][0].startswith(
        "configPatch.optimization.graph.level: must be an integer, not 'high'"
    )
    assert _patched({"optimization": {"graph": {"level": 2**40}}})[1][0].startswith(
        "configPatch.optimization.graph.level: invalid value for this field of Triton's "
    )
    assert _patched({"modelTransactionPolicy": {"decoupled": "yes"}})[1] == [
        "configPatch.modelTransactionPolicy.decoupled: must be true or false, not 'yes'"
    ]
    assert _patched({"optimization": 3})[1] == [
        (
            "configPatch.optimization: must be a mapping with fields of Triton's "
            "ModelOptimizationPolicy"
        )
    ]


def test_a_field_that_the_product_does_not_support_is_refused() -> None:
    _, findings = _patched({"modelRepositoryAgents": {"agents": [{"name": "checksum"}]}})
    (finding,) = findings
    assert finding.startswith("configPatch.model_repository_agents: the field is not supported")


def test_what_requests_may_omit_is_set_by_the_resource_alone() -> None:
    _, findings = _patched({"input": [{"name": "x", "optional": True}]})
    (finding,) = findings
    assert finding.startswith("configPatch.input: ")
    assert "use inputs for these" in finding
