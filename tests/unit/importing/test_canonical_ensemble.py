"""Test that ensembles compare as equal exactly if they compute the same."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_pipelines.tools.importer.canonical_ensemble import canonical_ensemble

ENDS = 'input { name: "A" } input { name: "B" } output { name: "X" } output { name: "Y" }'


def ensemble(*steps: tuple[str, str, str]) -> Any:
    """An ensemble of steps, each with its model, the tensor it reads and the one it makes."""
    text = "".join(
        f'step {{ model_name: "{model}" input_map {{ key: "in" value: "{read}" }}'
        f' output_map {{ key: "out" value: "{made}" }} }}'
        for model, read, made in steps
    )
    message = model_config_pb2.ModelConfig()
    return text_format.Parse(f"{ENDS} ensemble_scheduling {{ {text} }}", message)


TWICE = (("cut", "A", "a"), ("cut", "B", "b"), ("rank", "a", "X"), ("rank", "b", "Y"))


def test_order_and_names_of_inner_tensors_do_not_matter() -> None:
    renamed = (("rank", "two", "Y"), ("cut", "B", "two"), ("rank", "one", "X"), ("cut", "A", "one"))
    assert canonical_ensemble(ensemble(*TWICE)) == canonical_ensemble(ensemble(*renamed))


def test_calls_of_one_model_are_told_apart_by_what_they_read() -> None:
    crossed = (("cut", "A", "a"), ("cut", "B", "b"), ("rank", "b", "X"), ("rank", "a", "Y"))
    assert canonical_ensemble(ensemble(*TWICE)) != canonical_ensemble(ensemble(*crossed))


def test_a_cycle_ends() -> None:
    cycle = ensemble(("cut", "b", "a"), ("cut", "a", "b"))
    assert len(canonical_ensemble(cycle).ensemble_scheduling.step) == 2
