"""Check ensembles together with the models of their steps.

The rules cover names, types, shapes, batch sizes, versions, decoupled models and cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .models import served
from .server_facts import ServerFacts
from .tensors import VARIABLE, type_name
from .violations import RuleId, ViolationCollector, keyed, listed, shape


@dataclass(frozen=True, slots=True)
class _Use:
    """One place where a tensor is defined, written or read."""

    who: str
    """The place as text, such as "output 'logits' of model 'bert'"."""
    data_type: int
    """Element type of the tensor."""
    dims: tuple[int, ...]
    """Shape without the batch dimension."""
    batched: bool
    """Whether a batch dimension comes first."""

    @property
    def full(self) -> tuple[int, ...]:
        """Return the dims with the batch dimension."""
        return (VARIABLE, *self.dims) if self.batched else self.dims

    def __str__(self) -> str:
        return f"{self.who} is {type_name(self.data_type)} {shape(self.dims)}"


def check(
    configs: Mapping[str, Any], facts: ServerFacts, findings: Mapping[str, ViolationCollector]
) -> None:
    """Check all rules of this module for every ensemble of a repository."""
    order, circles = _order(configs)
    decoupled: dict[str, bool] = {
        name: config.model_transaction_policy.decoupled for name, config in configs.items()
    }
    for name, circle in circles.items():
        path = "ensemble_scheduling.step"
        findings[name].add(
            path,
            RuleId.ENSEMBLE_CYCLE,
            f"the ensemble contains itself ({' → '.join(circle)}); remove the step that leads back"
            " to it",
        )
    for name in order:
        if name not in circles:
            # Triton sets the flag of an ensemble by itself.
            decoupled[name] = _Ensemble(name, configs, facts, decoupled, findings[name]).check()


def _steps(config: Any) -> list[str]:
    return [step.model_name for step in config.ensemble_scheduling.step]


def _order(configs: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the ensembles, inner ones first, and one cycle for each that contains itself."""
    ensembles = {
        name: config for name, config in configs.items() if config.HasField("ensemble_scheduling")
    }
    order: list[str] = []
    circles: dict[str, list[str]] = {}

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            for member in path[path.index(name) :]:
                circles.setdefault(member, [*path[path.index(name) :], name])
            return
        if name in order or name not in ensembles:
            return
        for step in _steps(ensembles[name]):
            visit(step, [*path, name])
        if name not in order:
            order.append(name)

    for name in ensembles:
        visit(name, [])
    return order, circles


class _Ensemble:
    """One ensemble with the models of its steps."""

    def __init__(
        self,
        name: str,
        configs: Mapping[str, Any],
        facts: ServerFacts,
        decoupled: Mapping[str, bool],
        findings: ViolationCollector,
    ) -> None:
        self.name = name
        self.config = configs[name]
        self.configs = configs
        self.facts = facts
        self.decoupled = decoupled
        self.findings = findings
        # Triton compares each use of a tensor with its first one.
        self.first: dict[str, _Use] = {}
        self.written: dict[str, _Use] = {}
        self.read: dict[str, list[tuple[str, _Use]]] = {}
        self.inputs = {tensor.name for tensor in self.config.input}

    def check(self) -> bool:
        """Check the ensemble, and return whether it is decoupled."""
        batched = self.config.max_batch_size > 0
        for side, tensors in (("input", self.config.input), ("output", self.config.output)):
            for tensor in tensors:
                dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
                self.first.setdefault(
                    tensor.name,
                    _Use(
                        f"{side} {tensor.name!r} of the ensemble",
                        tensor.data_type,
                        tuple(dims),
                        batched,
                    ),
                )
        for index, step in enumerate(self.config.ensemble_scheduling.step):
            path = f"ensemble_scheduling.step[{index}]"
            model = self.configs.get(step.model_name)
            if model is None:
                if step.model_name:
                    self.findings.add(
                        f"{path}.model_name",
                        RuleId.STEP_MODEL,
                        f"model {step.model_name!r} does not exist; use one of the "
                        f"repository's models: {listed(sorted(set(self.configs) - {self.name}))}",
                    )
                continue
            self._version(step, path, model)
            self._batch_size(step, path, model)
            self._inputs(step, path, model)
            self._outputs(step, path, model)
        self._between()
        return self._join()

    def _version(self, step: Any, path: str, model: Any) -> None:
        if step.model_version == VARIABLE:
            return
        versions = served(step.model_name, model, self.facts)
        # If no version is served, the finding belongs to the model and is reported there.
        if (versions is None and step.model_version > 0) or (versions is not None and not versions):
            return
        if versions is None or step.model_version not in versions:
            there = (
                ""
                if versions is None
                else f", or one of the served versions: {listed(sorted(versions))}"
            )
            self.findings.add(
                f"{path}.model_version",
                RuleId.STEP_VERSION,
                f"version {step.model_version} of {step.model_name!r} is not served; use -1 for"
                f" the latest version{there}",
            )

    def _batch_size(self, step: Any, path: str, model: Any) -> None:
        if 0 < model.max_batch_size < self.config.max_batch_size:
            self.findings.add(
                "max_batch_size",
                RuleId.STEP_BATCH_SIZE,
                f"{self.config.max_batch_size} exceeds max_batch_size {model.max_batch_size} of"
                f" model {step.model_name!r} ({path}); use at most {model.max_batch_size}, or"
                " raise the model's",
            )

    def _inputs(self, step: Any, path: str, model: Any) -> None:
        self._unknown_tensors(step, path, "input", model.input)
        for tensor in model.input:
            if tensor.name in step.input_map:
                use = self._use(step, "input", tensor, model)
                spot, target = keyed(f"{path}.input_map", tensor.name), step.input_map[tensor.name]
                self.read.setdefault(target, []).append((spot, use))
                self._compare(spot, target, use)
            elif not tensor.optional and step.input_map:
                self.findings.add(
                    f"{path}.input_map",
                    RuleId.STEP_INPUT_UNMAPPED,
                    f"input {tensor.name!r} of model {step.model_name!r} is not mapped; map a"
                    " tensor to it, or make it optional",
                )

    def _outputs(self, step: Any, path: str, model: Any) -> None:
        self._unknown_tensors(step, path, "output", model.output)
        for tensor in model.output:
            if tensor.name in step.output_map:
                use = self._use(step, "output", tensor, model)
                target = step.output_map[tensor.name]
                if self.written.setdefault(target, use) is not use or target in self.inputs:
                    continue  # written twice, which ``flow`` reports
                self._compare(keyed(f"{path}.output_map", tensor.name), target, use)

    def _unknown_tensors(self, step: Any, path: str, side: str, tensors: Iterable[Any]) -> None:
        """Report mapped tensors that the model does not have; ``side`` is input or output."""
        names = {tensor.name for tensor in tensors}
        for key in sorted(set(getattr(step, f"{side}_map")) - names):
            self.findings.add(
                keyed(f"{path}.{side}_map", key),
                RuleId.STEP_TENSOR,
                f"model {step.model_name!r} has no {side} {key!r}; use one of its {side}s: "
                f"{listed(sorted(names))}",
            )

    def _use(self, step: Any, side: str, tensor: Any, model: Any) -> _Use:
        who = f"{side} {tensor.name!r} of model {step.model_name!r}"
        return _Use(who, tensor.data_type, tuple(tensor.dims), model.max_batch_size > 0)

    def _compare(self, path: str, target: str, use: _Use) -> None:
        first = self.first.setdefault(target, use)
        if first is use:
            return
        if first.data_type != use.data_type:
            self.findings.add(
                path,
                RuleId.STEP_DATA_TYPE,
                f"tensor {target!r}: {first}, {use}; both must have the same data type",
            )
        elif not _fit(first, use):
            self.findings.add(
                path,
                RuleId.STEP_SHAPE,
                f"tensor {target!r}: {first}, {use}; both must have the same shape (-1 fits any"
                " size)",
            )

    def _between(self) -> None:
        refused = {
            violation.field
            for violation in self.findings.found
            if violation.rule is RuleId.STEP_SHAPE
        }
        for target, uses in self.read.items():
            writer = self.written.get(target)
            for path, use in uses if writer is not None else ():
                if (
                    writer is not None
                    and path not in refused
                    and writer.data_type == use.data_type
                    and not _fit(writer, use)
                ):
                    self.findings.add(
                        path,
                        RuleId.STEP_SHAPE_BETWEEN,
                        f"tensor {target!r}: {writer}, {use}; both must have the same shape (-1"
                        " fits any size)",
                    )

    def _join(self) -> bool:
        """Find the decoupled model of each tensor; a step must not join two.

        Returns whether any tensor comes from one.
        """
        origin: dict[str, str] = {tensor.name: "" for tensor in self.config.input}
        waiting = list(enumerate(self.config.ensemble_scheduling.step))
        while True:
            able = [
                (index, step)
                for index, step in waiting
                if all(tensor in origin for tensor in step.input_map.values())
            ]
            if not able:
                break
            waiting = [entry for entry in waiting if entry not in able]
            for index, step in able:
                path = f"ensemble_scheduling.step[{index}]"
                source = self._one_origin(
                    f"{path}.input_map",
                    f"model {step.model_name!r}",
                    # The order of a protobuf map differs between processes.
                    [step.input_map[name] for name in sorted(step.input_map)],
                    origin,
                )
                mine = (
                    f"{step.model_name} (step {index})"
                    if self.decoupled.get(step.model_name)
                    else source
                )
                for tensor in step.output_map.values():
                    origin.setdefault(tensor, mine)
        self._one_origin(
            "output",
            "the client",
            [tensor.name for tensor in self.config.output if tensor.name in origin],
            origin,
        )
        result = any(origin.values())
        if (
            result
            and self.config.response_cache.enable
            and not self.config.model_transaction_policy.decoupled
        ):
            self.findings.add(
                "response_cache.enable",
                RuleId.RESPONSE_CACHE,
                "the response cache and decoupled steps cannot be combined; disable the "
                "cache, or remove these steps",
            )
        return result

    def _one_origin(
        self, path: str, who: str, tensors: Sequence[str], origin: Mapping[str, str]
    ) -> str:
        sources = list(dict.fromkeys(origin[tensor] for tensor in tensors))
        if len(sources) > 1:
            named = listed(source or "no decoupled model" for source in sources)
            self.findings.add(
                path,
                RuleId.DECOUPLED_JOIN,
                f"{who} combines tensors of {named}, but all must come from the same decoupled"
                " model, or from none",
            )
        return sources[0] if sources else ""


def _fit(one: _Use, other: _Use) -> bool:
    return _equal(one.dims, other.dims) or _equal(one.full, other.full)


def _equal(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        a == b or VARIABLE in (a, b) for a, b in zip(one, other, strict=True)
    )
