"""Knobs read from a pipeline, and patches that change these and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from triton_pipelines.compile.graph import build, check
from triton_pipelines.compile.graph.resource_patch import document_of, merge_patch, patch_pipeline
from triton_pipelines.compile.render.model_config import configs
from triton_pipelines.tools.tuner import BatchingSetting, TuneError
from triton_pipelines.tools.tuner.settings import (
    setting_grid,
    setting_of,
    setting_patch,
    tuned_step,
)

SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"model": {"maxBatchSize": 8, "instances": {"count": 2}}},
    {
        "model": {
            "maxBatchSize": 32,
            "dynamicBatching": {"preferredBatchSizes": [8, 32], "maxQueueDelayMicroseconds": 700},
        }
    },
    {"tokenizer": {"instances": {"count": 3}}},
    {"tokenizer": {"instances": {"initial": 2, "min": 2, "max": 2}}},
    {"model": {"instances": {"initial": 2, "min": 2, "max": 2}}},
)
settings_of = st.builds(
    BatchingSetting,
    st.sampled_from([1, 4, 8, 64, 128]),
    st.sampled_from([0, 500, 8000]),
    st.integers(1, 3),
    st.integers(1, 6),
)


@settings(deadline=None, max_examples=40)
@given(spec=st.sampled_from(SPECS), wanted=settings_of)
def test_a_patched_resource_is_valid_and_has_the_setting(
    spec: dict[str, Any], wanted: BatchingSetting
) -> None:
    before = builders.built(**spec)
    patch = setting_patch(before.pipeline, setting_of(before.graph), wanted)
    after = patch_pipeline(before.pipeline, patch)
    graph = build(after, before.options)
    assert setting_of(graph) == wanted
    assert check(after, graph, before.options) == []
    configs(graph)


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_setting_needs_no_patch(spec: dict[str, Any]) -> None:
    before = builders.built(**spec)
    current = setting_of(before.graph)
    assert setting_patch(before.pipeline, current, current) == {}
    assert build(patch_pipeline(before.pipeline, {}), before.options) == before.graph


def test_a_patch_names_only_what_changes() -> None:
    before = builders.built(model={"maxBatchSize": 8})
    assert setting_patch(
        before.pipeline, setting_of(before.graph), BatchingSetting(32, 1000, 1, 2)
    ) == {
        "spec": {
            "model": {"maxBatchSize": 32, "dynamicBatching": {"maxQueueDelayMicroseconds": 1000}},
            "tokenizer": {"instances": {"initial": 2}},
        }
    }


def test_a_patch_keeps_everything_else_of_the_resource() -> None:
    before = builders.built(
        model={"maxBatchSize": 8, "dynamicBatching": {"queuePolicy": {"maxQueueSize": 7}}},
        slo={"p99Milliseconds": 40},
    )
    wanted = BatchingSetting(32, 1000, 1, 1)
    after = document_of(
        patch_pipeline(
            before.pipeline, setting_patch(before.pipeline, setting_of(before.graph), wanted)
        )
    )
    assert after["spec"]["model"]["dynamicBatching"] == {
        "queuePolicy": {"maxQueueSize": 7},
        "maxQueueDelayMicroseconds": 1000,
    }
    assert after["spec"]["slo"] == {"p99Milliseconds": 40}
    assert after["spec"]["postprocess"] == document_of(before.pipeline)["spec"]["postprocess"]


def test_merge_patches_are_those_of_rfc_7396() -> None:
    """Cases of the RFC's appendix A."""
    assert merge_patch({"a": "b", "b": "c"}, {"a": None}) == {"b": "c"}
    assert merge_patch({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert merge_patch({"a": [{"b": "c"}]}, {"a": [1]}) == {"a": [1]}
    assert merge_patch({"e": None}, {"a": 1}) == {"e": None, "a": 1}
    assert merge_patch([1, 2], {"a": "b", "c": None}) == {"a": "b"}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"model": {"maxBatchSize": 0}, "tokenizer": {"maxBatchSize": 0}},
            "spec.model.maxBatchSize",
        ),
        ({"model": {"dynamicBatching": {"mode": "Disabled"}}}, "dynamicBatching"),
    ],
)
def test_what_cannot_be_tuned_is_said(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(TuneError, match=text):
        tuned_step(builders.built(**spec).graph)


def test_the_grid_holds_the_current_setting_and_keeps_to_bounds() -> None:
    before = builders.built(
        model={"maxBatchSize": 24},
        tokenizer={"instances": {"initial": 1, "max": 2}},
        ensemble={"maxBatchSize": 6},
    )
    found = list(setting_grid(before.pipeline, before.graph, rows=4, cores=8))
    assert setting_of(before.graph) in found
    assert min(setting.max_batch_size for setting in found) == 8
    assert max(setting.max_batch_size for setting in found) == 128
    assert {setting.tokenizer_instances for setting in found} == {1, 2}
    assert len(found) == len(set(found))
