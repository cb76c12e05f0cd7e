"""Validate a model repository as Triton does when it loads it.

Findings say which models would not load, the field and the reason, and what to write instead.

The rules are those of Triton's core (model_config_utils.cc, ensemble_utils.cc, backend_model.cc,
backend_model_instance.cc, model.cc, model_lifecycle.cc, sequence_batch_scheduler.cc) from 24.08 on,
with auto-complete off. Checks that a backend makes itself are not included. The few rules that are
stricter are listed with their reasons in ``stricter_rules.LIMITS``. A differential test compares
the validation with a real server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import batching, ensembles, flow, instances, models, sequences, tensors, warmup
from .backend_identity import identity
from .server_facts import ServerFacts
from .violations import RuleId, Violation, ViolationCollector

__all__ = ["RuleId", "ServerFacts", "Violation", "validate_repository"]


def validate_repository(
    configs: Mapping[str, Any], facts: ServerFacts | None = None
) -> list[Violation]:
    """Return what Triton would refuse in a model repository.

    Args:
        configs: model folder → its ``tritonclient.grpc.model_config_pb2.ModelConfig``. Ensembles
            find the models of their steps here.
        facts: the server and the files; None for the oldest known release and nothing else known.

    Returns:
        All violations, in the order of the configs and, within one, of its fields. A model without
        one loads, unless it is an
        ensemble and a model of its steps has one; a violation is said of the model that has it, not
        of the ensembles above.
    """
    facts = ServerFacts() if facts is None else facts
    findings = {name: ViolationCollector(name) for name in configs}
    for name, config in configs.items():
        known = identity(name, config, facts)
        models.check(name, config, known, facts, findings[name])
        tensors.check(config, known, findings[name])
        batching.check(config, findings[name])
        sequences.check(config, facts, findings[name])
        instances.check(config, known, facts, findings[name])
        warmup.check(config, facts, findings[name])
        flow.check(config, known, findings[name])
    ensembles.check(configs, facts, findings)
    instances.check_resources(configs, facts, findings)
    return [violation for name in configs for violation in findings[name].found]
