"""Check one ensemble by itself: its fields, and how tensors flow from step to step.

The models of its steps do not matter here.
"""

from __future__ import annotations

from typing import Any

from .backend_identity import ENSEMBLE, Identity
from .violations import RuleId, ViolationCollector, keyed, listed


def check(config: Any, identity: Identity, findings: ViolationCollector) -> None:
    """Check all rules of this module; they apply only to ensembles."""
    if not config.HasField("ensemble_scheduling"):
        if identity.platform == ENSEMBLE:
            findings.add(
                "ensemble_scheduling",
                RuleId.ENSEMBLE_PLATFORM,
                "platform 'ensemble' requires ensemble_scheduling; add ensemble_scheduling "
                "with its steps, or use another platform",
            )
        return
    if identity.platform != ENSEMBLE:
        findings.add(
            "platform",
            RuleId.ENSEMBLE_PLATFORM,
            f"ensemble_scheduling requires platform 'ensemble', not {identity.platform!r}; set"
            " platform to 'ensemble', and omit backend",
        )
    forbidden = {
        "instance_group": bool(config.instance_group),
        "optimization": config.HasField("optimization"),
        "model_warmup": bool(config.model_warmup),
    }
    for field, given in forbidden.items():
        if given:
            findings.add(
                field,
                RuleId.ENSEMBLE_FIELD,
                f"an ensemble cannot have {field}; move {field} to the models of the steps",
            )
    if not config.ensemble_scheduling.step:
        findings.add(
            "ensemble_scheduling.step",
            RuleId.ENSEMBLE_STEP,
            "the ensemble has no steps; add at least one",
        )
        return
    _Flow(config, findings).check()


class _Flow:
    """The tensors of one ensemble: their writers, readers and the order in which they are ready."""

    def __init__(self, config: Any, findings: ViolationCollector) -> None:
        self.config = config
        self.steps = config.ensemble_scheduling.step
        self.findings = findings
        self.inputs = {tensor.name for tensor in config.input}
        self.outputs = {tensor.name for tensor in config.output}
        self.producers: dict[str, str] = {}
        self.readers: dict[str, list[str]] = {}

    def check(self) -> None:
        self._maps()
        ready = self._ready()
        self._ends(ready)
        self._unready(ready)

    def _maps(self) -> None:
        for index, step in enumerate(self.steps):
            path = f"ensemble_scheduling.step[{index}]"
            for field in ("model_name", "input_map", "output_map"):
                if not getattr(step, field):
                    what = "entry" if field.endswith("map") else "name"
                    self.findings.add(
                        f"{path}.{field}",
                        RuleId.ENSEMBLE_STEP,
                        f"the step has no {field}; map at least one {what}",
                    )
            for key, tensor in sorted(step.output_map.items()):
                spot = keyed(f"{path}.output_map", key)
                if tensor in self.inputs:
                    self.findings.add(
                        spot,
                        RuleId.TENSOR_INPUT_WRITTEN,
                        f"{tensor!r} is an input of the ensemble and cannot be written; choose"
                        " another name",
                    )
                if (first := self.producers.setdefault(tensor, spot)) != spot:
                    self.findings.add(
                        spot,
                        RuleId.TENSOR_WRITTEN_TWICE,
                        f"{tensor!r} is already written by {first}; choose another name",
                    )
            for key, tensor in sorted(step.input_map.items()):
                self.readers.setdefault(tensor, []).append(keyed(f"{path}.input_map", key))

    def _ready(self) -> set[str]:
        """Return the tensors that can be computed.

        These are the client's tensors, and the outputs of steps whose inputs can all be computed.
        """
        ready, waiting = set(self.inputs), list(self.steps)
        while True:
            able = [
                step
                for step in waiting
                if all(tensor in ready for tensor in step.input_map.values())
            ]
            if not able:
                return ready
            waiting = [step for step in waiting if step not in able]
            ready |= {tensor for step in able for tensor in step.output_map.values()}

    def _ends(self, ready: set[str]) -> None:
        for index, tensor in enumerate(self.config.input):
            if tensor.name not in self.readers and not (
                tensor.name in self.outputs and tensor.name in self.producers
            ):
                self.findings.add(
                    f"input[{index}].name",
                    RuleId.TENSOR_UNUSED,
                    f"no step reads input {tensor.name!r}; map that input to a step, or "
                    "remove the input",
                )
        for index, tensor in enumerate(self.config.output):
            if tensor.name not in self.producers and not (
                tensor.name in self.inputs and tensor.name in self.readers
            ):
                written = listed(
                    sorted(set(self.producers) - self.outputs) or sorted(self.producers)
                )
                self.findings.add(
                    f"output[{index}].name",
                    RuleId.TENSOR_NOT_WRITTEN,
                    f"no step writes output {tensor.name!r}; the steps write {written}",
                )
        for tensor, spot in sorted(self.producers.items()):
            if (
                tensor in ready
                and tensor not in self.readers
                and tensor not in self.outputs | self.inputs
            ):
                self.findings.add(
                    spot,
                    RuleId.TENSOR_UNUSED,
                    f"tensor {tensor!r} is not used; map the tensor to a step, list the "
                    "tensor as an output of the ensemble, or remove the entry",
                )

    def _unready(self, ready: set[str]) -> None:
        """Report tensors that are never ready.

        They are tensors that no step writes or, if there are none, tensors of a cycle.
        """
        lost = {
            tensor: spots
            for tensor, spots in self.readers.items()
            if tensor not in ready and tensor not in self.producers
        }
        for tensor, spots in sorted(lost.items()):
            here = listed(sorted(self.inputs))
            self.findings.add(
                spots[0],
                RuleId.TENSOR_NOT_WRITTEN,
                f"no step writes {tensor!r} and it is not an input of the ensemble; the inputs are"
                f" {here}",
            )
        circle = sorted(tensor for tensor in self.producers if tensor not in ready)
        if circle and not lost:
            self.findings.add(
                "ensemble_scheduling.step",
                RuleId.ENSEMBLE_CYCLE,
                f"the steps form a cycle, so {listed(circle)} can never be computed; remove one of"
                " the mappings",
            )
