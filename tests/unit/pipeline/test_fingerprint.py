"""For which specs a measured padding is valid."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint


def fingerprint(
    digests: dict[str, str] | None = None, substitute: frozenset[str] = frozenset(), **spec: Any
) -> str:
    options = builders.options(substitute_runner=substitute)
    return cost_fingerprint(builders.pipeline(**spec), options, digests or {})


def test_it_is_sixteen_hex_digits() -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint())


@pytest.mark.parametrize(
    "spec",
    [
        {"tokenizer": {"padding": "Longest"}},
        {"slo": {"p99Milliseconds": 77}},
        {"server": {"modelCache": {"claimName": "cache"}}},
    ],
    ids=str,
)
def test_what_changes_no_cost_keeps_it(spec: dict[str, Any]) -> None:
    assert fingerprint(**spec) == fingerprint()


def test_what_may_change_costs_changes_it() -> None:
    found = [
        fingerprint(),
        fingerprint(tokenizer={"maxLength": 33}),
        fingerprint(digests={"model": "sha256:1"}),
        fingerprint(digests={"model": "sha256:2"}),
        # The model runs on the CPU fallback backend instead of Triton's ONNX Runtime backend.
        fingerprint(substitute=frozenset({"onnxruntime_onnx"})),
    ]
    assert len(set(found)) == len(found)
