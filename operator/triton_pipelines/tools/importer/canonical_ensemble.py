"""Bring ensembles into a canonical form, so that equal ones compare as equal."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import model_config_pb2


def canonical_ensemble(config: Any) -> Any:
    """Return an ensemble in a canonical form for comparison.

    Inner tensors are named after their producer and steps are sorted: neither the names nor the
    order has a meaning.
    """
    names = _tensor_names(config)
    copy = model_config_pb2.ModelConfig()
    copy.CopyFrom(config)
    steps = []
    for step in config.ensemble_scheduling.step:
        new_step = type(step)(
            model_name=step.model_name,
            model_version=step.model_version,
            model_namespace=step.model_namespace,
        )
        for key, tensor in step.input_map.items():
            new_step.input_map[key] = names.get(tensor, tensor)
        for key, tensor in step.output_map.items():
            new_step.output_map[key] = names.get(tensor, tensor)
        steps.append(new_step)
    del copy.ensemble_scheduling.step[:]
    copy.ensemble_scheduling.step.extend(sorted(steps, key=_sort_key))
    return copy


def _sort_key(step: Any) -> tuple[str, list[tuple[str, str]], list[tuple[str, str]]]:
    return step.model_name, sorted(step.input_map.items()), sorted(step.output_map.items())


def _tensor_names(config: Any) -> Mapping[str, str]:
    """Return the canonical name of each tensor.

    It is the model and its output; if several steps call the model, also a hash of what the step
    reads.
    """
    steps = config.ensemble_scheduling.step
    calls = Counter(step.model_name for step in steps)
    producers = {
        tensor: (step, output) for step in steps for output, tensor in step.output_map.items()
    }
    names: dict[str, str] = {tensor.name: tensor.name for tensor in (*config.input, *config.output)}

    def name_of(tensor: str, above: frozenset[str]) -> str:
        if tensor in names or tensor not in producers or tensor in above:
            return names.get(tensor, tensor)
        step, output = producers[tensor]
        label = step.model_name
        if calls[label] > 1:
            read = sorted(
                (key, name_of(one, above | {tensor})) for key, one in step.input_map.items()
            )
            label += f"({hashlib.sha256(repr(read).encode()).hexdigest()[:8]})"
        names[tensor] = f"{label}.{output}"
        return names[tensor]

    for tensor in producers:
        name_of(tensor, frozenset())
    return names
