"""Triton's ModelConfig, field by field: the table is whole, and true to what is rendered."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from hack import modelconfig
from tests.support.fields import resources_in
from tests.support.meaning import models_of

ROOT = Path(__file__).parents[3]
PLACES = (ROOT / "tests" / "corpus" / "good", ROOT / "manifests" / "samples")
COVERED, WRONG = modelconfig.by_field(modelconfig.entries())


def test_every_field_of_the_proto_stands_there_once() -> None:
    assert WRONG == []
    assert len(COVERED) > 120


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            "max_batch_size: {made: twice}\ninput: {made: all of it}\ninput.name: {made: again}",
            "input.name: 2 entries",
        ),
        ("colour: {made: up}", "colour: is not a field of ModelConfig"),
        ("max_batch_size: {fields: [spec.colour]}", "spec.colour is not a field of the resource"),
        ("max_batch_size: {made: up}", "backend: 0 entries"),
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, change: str, reported: str) -> None:
    (tmp_path / "table.yaml").write_text(change, encoding="utf-8")
    _, wrong = modelconfig.by_field(modelconfig.entries(tmp_path / "table.yaml"))
    assert any(reported in line for line in wrong), wrong


@pytest.mark.parametrize("entry", ["up", "{made: up, patch: no}", "{colour: red}"])
def test_an_entry_is_of_one_kind(tmp_path: Path, entry: str) -> None:
    (tmp_path / "table.yaml").write_text(f"max_batch_size: {entry}", encoding="utf-8")
    with pytest.raises(ValueError, match="exactly one of"):
        modelconfig.entries(tmp_path / "table.yaml")


def test_fields_of_a_message_are_found_at_any_depth() -> None:
    config = text_format.Parse(
        'version_policy { all {} } input { name: "a" reshape { shape: [] } } parameters { '
        'key: "a" value { string_value: "b" } }'
        ' model_warmup { name: "w" inputs { key: "a" value { dims: [1] zero_data: true } } }',
        model_config_pb2.ModelConfig(),
    )
    assert set(modelconfig.written(config)) == {
        *("version_policy.all", "input.name", "parameters.string_value"),
        *("model_warmup.name", "model_warmup.inputs.dims", "model_warmup.inputs.zero_data"),
    }


def test_the_table_is_what_is_rendered() -> None:
    """Check that a rendered config has all that a resource field sets or the operator generates.

    Nothing else is in it, except through configPatch.
    """
    seen: set[str] = set()
    for place in PLACES:
        for _, document in resources_in(place):
            patched = "configPatch" in str(document)
            here = {
                path
                for config in models_of(document).values()
                for path in modelconfig.written(config)
            }
            if not patched:
                assert {path for path in here if COVERED[path].kind in ("patch", "never")} == set()
            seen |= here
    said = {path for path, entry in COVERED.items() if entry.kind in ("fields", "made")}
    assert said - seen == set()
