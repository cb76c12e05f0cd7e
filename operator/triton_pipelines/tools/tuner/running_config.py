"""Compare the running model config with that of the resource. Pure.

Some differences are a setting; others mean that the server runs another pipeline.

Arguments are Triton's ``ModelConfig`` messages: the running one as the server reports it, and the
one that is rendered from the resource.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_SETTINGS: Final[tuple[tuple[str, Callable[[Any], int]], ...]] = (
    ("max_batch_size {}", lambda config: int(config.max_batch_size)),
    (
        "a queue delay of {} us",
        lambda config: int(config.dynamic_batching.max_queue_delay_microseconds),
    ),
    ("instances: {}", lambda config: sum(group.count for group in config.instance_group)),
)


def interface_difference(running: Any, desired: Any) -> str:
    """Return how the running model belongs to another pipeline, as text; empty: it does not."""
    for name in ("input", "output"):
        here, there = _tensors(getattr(running, name)), _tensors(getattr(desired, name))
        if there and here != there:
            return f"{name}s {_describe(here)} instead of {_describe(there)}"
    for name in ("platform", "backend"):
        one, other = getattr(running, name), getattr(desired, name)
        if one and other and one != other:
            return f"{name} {one} instead of {other}"
    if (
        desired.HasField("ensemble_scheduling")
        and running.ensemble_scheduling != desired.ensemble_scheduling
    ):
        return "different steps, or with different connections between them"
    return ""


def is_same_config(running: Any, desired: Any) -> bool:
    """Return whether the running config is what the server makes of the desired one.

    A wrong no is harmless: both can be loaded.
    """
    return bool(_bare(running, desired) == _bare(desired, desired))


def setting_difference(running: Any, desired: Any) -> str:
    """Return the batching and instances that differ from the desired ones, as text."""
    reported = [
        f"{text.format(value(running))} ({value(desired)})"
        for text, value in _SETTINGS
        if value(running) != value(desired)
    ]
    return ", ".join(reported)


def _tensors(tensors: Any) -> set[tuple[str, int, tuple[int, ...]]]:
    return {(one.name, one.data_type, tuple(one.dims)) for one in tensors}


def _describe(tensors: set[tuple[str, int, tuple[int, ...]]]) -> str:
    return ", ".join(sorted(f"{name} {list(dims)}" for name, _, dims in tensors))


def _bare(config: Any, desired: Any) -> Any:
    """Return a copy without the defaults that the server fills in (model_config_utils.cc).

    Fields that the desired config sets stay.
    """
    bare = type(config)()
    bare.CopyFrom(config)
    for group in bare.instance_group:
        group.ClearField("name")
    optimization = type(bare.optimization)()
    optimization.input_pinned_memory.enable = optimization.output_pinned_memory.enable = True
    if not desired.HasField("optimization") and bare.optimization == optimization:
        bare.ClearField("optimization")
    if not desired.HasField("version_policy") and bare.version_policy.latest.num_versions == 1:
        bare.ClearField("version_policy")
    return bare
