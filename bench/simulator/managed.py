"""The product's control law in the simulator.

It is the same pure decision that the operator runs, including the JSON round trip of its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bench.simulator.engine import LawInput, World
from triton_pipelines.autoscaling import state_json
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.samples import MetricsFailure
from triton_pipelines.autoscaling.types import (
    ControlLaw,
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepLimits,
)


def limits_of(world: World, law: ControlLaw) -> PipelineLimits:
    """The limits that a pipeline of this world would have."""
    return PipelineLimits(
        steps=tuple(
            StepLimits(spec.name, spec.name, world.low, world.high, 2, tokenizer=number == 0)
            for number, spec in enumerate(world.stations)
            if spec.scaled
        ),
        gpu_steps=tuple(spec.name for spec in world.stations if not spec.cpu),
        gpu_instances={spec.name: spec.instances for spec in world.stations if not spec.cpu},
        gpu_batches={spec.name: spec.max_batch for spec in world.stations if not spec.cpu},
        cpu_limit=world.cores,
        law=law,
    )


class Managed:
    """The control law of ``autoscaling.decide``.

    ``forgetful_at`` are the Unix seconds at which the operator restarts. Its state is then written
    to JSON and read again.
    """

    period: float | None = None

    def __init__(
        self,
        world: World,
        law: ControlLaw | None = None,
        name: str = "managed",
        limits: PipelineLimits | None = None,
    ) -> None:
        self.name = name
        self._limits = (
            limits
            if limits is not None
            else limits_of(world, law if law is not None else ControlLaw())
        )
        self.state = ScalingState(actuation=world.growth)
        self.decisions: list[tuple[float, ScalingDecision]] = []
        self.keep = False

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        """One decision."""
        limits = replace(self._limits, cpu_limit=view.cores)
        decision = decide(limits, self.state, view.sample, view.counts, view.ready, view.now)
        self.state = decision.state
        if self.keep:
            self.decisions.append((view.now, decision))
        if isinstance(view.sample, MetricsFailure):
            self.state = state_json.loads(state_json.dumps(self.state))
        return {item.step: item.count for item in decision.steps}, str(decision.verdict)
