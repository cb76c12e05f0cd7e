"""Check that ONNX Runtime is imported without its telemetry."""

import os
import sys

import pytest

from triton_pipelines.loader.onnx_graph.model_runner import Evaluator, choose_evaluator


def test_telemetry_is_off_before_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    seen: list[str] = []

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "onnxruntime":
                seen.append(os.environ["ORT_DISABLE_TELEMETRY"])
                raise ImportError(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert choose_evaluator(1) is Evaluator.REFERENCE
    assert seen == ["1"]
