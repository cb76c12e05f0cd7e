"""The real model step of the serving benchmarks: its files, its results' ids, its variants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest

from bench import gpu_watch, padding, real_step

ROW = np.array([[2, 7, 9, 11, 3]], np.int64)


@pytest.fixture(autouse=True)
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(real_step, "STEP", real_step.CPU)
    real_step.checkpoint.cache_clear()
    yield
    real_step.checkpoint.cache_clear()


def logits(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(real_step.model(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"input_ids": ids, "attention_mask": mask})[0])


@pytest.mark.parametrize(
    ("precision", "tolerance"), [(real_step.TF32, 1e-6), (real_step.FP16, 0.02)]
)
def test_padding_does_not_change_an_answer(
    monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float
) -> None:
    expected = logits(ROW, np.ones_like(ROW))
    monkeypatch.setattr(real_step, "PRECISION", precision)
    wide = np.pad(ROW, ((0, 0), (0, 20)))
    found = logits(wide, (wide != 0).astype(np.int64))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_each_step_has_results_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for step in (real_step.SIMULATED, real_step.GPU, real_step.CPU):
        monkeypatch.setattr(real_step, "STEP", step)
        found.add(real_step.suffix())
    monkeypatch.setattr(real_step, "PRECISION", real_step.FP16)
    found.add(real_step.suffix())
    steps = ("", "-gpu", "-rehearsal", "-rehearsal-fp16")
    assert found == {f"{step}-native" for step in steps}


@pytest.mark.parametrize(("name", "value"), [("STEP", "gpus"), ("PRECISION", "bf16")])
def test_an_unknown_step_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setattr(real_step, name, value)
    with pytest.raises(real_step.StepError, match=f"{name}={value}: use "):
        real_step.is_real()


def test_only_ragged_variants_of_a_real_step_are_padded() -> None:
    variants = {variant.name: variant for variant in padding.variants()}
    assert set(variants) == {"plain", "fixed", "longest", "bucketed", "ragged", "auto", "packed"}
    padded = {name for name, variant in variants.items() if "pad_inputs" in variant.parameters}
    assert padded == {"ragged", "auto"}
    assert {variant.tokenizers for variant in variants.values()} == {padding.TOKENIZERS}


def test_notes_are_the_lines_about_devices_and_shared_runs() -> None:
    log = "I0 started\nW1 requests will not share runs: x\nE2 CUDA failure 2\nE2 CUDA failure 2\n"
    assert gpu_watch.notes(log) == ["W1 requests will not share runs: x", "E2 CUDA failure 2"]
