"""Rules over ``instance_group``.

Kinds and GPUs, profiles, counts, and the rate limiter across all models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.compile.model_config_proto import model_config_pb2 as pb

from .backend_identity import Identity
from .server_facts import ServerFacts
from .stricter_rules import MAX_INSTANCES
from .violations import RuleId, ViolationCollector, listed

_Group: Final = pb.ModelInstanceGroup
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]+")
_PLAIN_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,4}")


def check(
    config: Any, identity: Identity, facts: ServerFacts, findings: ViolationCollector
) -> None:
    """Check the instance groups of one model; ``flow`` checks that an ensemble has none."""
    if config.HasField("ensemble_scheduling"):
        return
    for index, group in enumerate(config.instance_group):
        path = f"instance_group[{index}]"
        _gpus(group, path, facts, findings)
        if group.count > MAX_INSTANCES:
            findings.add(
                f"{path}.count",
                RuleId.INSTANCE_COUNT,
                f"{group.count} instances are too many; use at most {MAX_INSTANCES}",
            )
        for place, profile in enumerate(group.profile):
            _profile(profile, f"{path}.profile[{place}]", identity, findings)


def _gpus(group: Any, path: str, facts: ServerFacts, findings: ViolationCollector) -> None:
    kind, gpus = group.kind, list(group.gpus)
    if kind in (_Group.KIND_CPU, _Group.KIND_MODEL):
        if gpus:
            name = _Group.Kind.Name(kind)
            findings.add(
                f"{path}.gpus",
                RuleId.INSTANCE_GPUS,
                f"gpus ({listed(gpus)}) is not allowed with {name}; remove gpus, or use KIND_GPU",
            )
        return
    missing = [gpu for gpu in gpus if gpu < 0 or (facts.gpus is not None and gpu >= facts.gpus)]
    there = f"the server has {facts.gpus or 'no'} GPU{'' if facts.gpus == 1 else 's'}"
    if missing:
        one = len(missing) == 1
        absent = f"GPU {missing[0]} does" if one else f"GPUs {listed(missing)} do"
        known = f", numbered 0 to {facts.gpus - 1}" if facts.gpus else ""
        findings.add(
            f"{path}.gpus",
            RuleId.INSTANCE_GPUS,
            f"{absent} not exist; {there}{known}",
        )
    elif kind == _Group.KIND_GPU and facts.gpus == 0:
        findings.add(
            f"{path}.kind",
            RuleId.INSTANCE_NO_GPU,
            "KIND_GPU requires a GPU, but the server has none; use KIND_CPU, or add a GPU to the"
            " server",
        )


def _profile(profile: str, path: str, identity: Identity, findings: ViolationCollector) -> None:
    if not identity.tensorrt:
        findings.add(
            path,
            RuleId.INSTANCE_PROFILE,
            "only TensorRT models (platform tensorrt_plan) have optimization profiles; remove"
            " profile",
        )
    elif (number := _NUMBER.match(profile)) is None or int(number[0]) < 0:
        findings.add(
            path,
            RuleId.INSTANCE_PROFILE,
            f"{profile!r} is not a profile index; write the index as a quoted string, for example"
            " '0'",
        )
    elif not _PLAIN_NUMBER.fullmatch(profile):
        findings.add(
            path,
            RuleId.INSTANCE_PROFILE_NUMBER,
            f"{profile!r} is not a profile index; use only digits, for example '0'",
        )


def _scope(globally: bool) -> str:
    return "global" if globally else "per device"


def check_resources(
    configs: Mapping[str, Any], facts: ServerFacts, findings: Mapping[str, ViolationCollector]
) -> None:
    """Check that with rate limiting a resource is global in all models or in none."""
    if not facts.rate_limiting:
        return
    seen: dict[str, tuple[bool, str]] = {}
    for model, config in configs.items():
        for index, group in enumerate(config.instance_group):
            for place, resource in enumerate(group.rate_limiter.resources):
                path = f"instance_group[{index}].rate_limiter.resources[{place}].global"
                globally = bool(getattr(resource, "global"))
                first, where = seen.setdefault(resource.name, (globally, f"{model}: {path}"))
                if first != globally:
                    findings[model].add(
                        path,
                        RuleId.RATE_LIMITER,
                        f"resource {resource.name!r} is {_scope(globally)} here, but"
                        f" {_scope(first)} in {where}; use the same value of global in both",
                    )
