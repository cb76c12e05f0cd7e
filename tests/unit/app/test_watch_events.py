"""How soon watch events make a pipeline due."""

from __future__ import annotations

from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.main import Operator
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, PODS

KEY = ("nlp", "sentiment")


async def test_object_changes_are_reconciled_together_and_spec_changes_at_once() -> None:
    operator = Operator(OperatorConfig(), lambda _: None, OperatorMetrics())
    for resource in (DEPLOYMENTS, PODS, PODS):
        operator._enqueue(KEY, resource)
    assert (operator.queue.depth, operator.queue.delayed) == (0, 1)
    operator._enqueue(KEY, INFERENCE_PIPELINES)
    assert operator.queue.depth == 1
