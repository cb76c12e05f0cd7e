"""What the operator's own metrics count."""

from __future__ import annotations

from tests.support.operators import Running
from tests.support.tenants import Tenants
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import Conflict
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.work_queue import backoff_of


def test_only_a_bug_counts_as_an_unexpected_error() -> None:
    running = Running(OperatorConfig())
    tenants = Tenants(Client(load_configuration), running, hostile="a", other="b")
    errors = (Conflict(409, "Conflict", "changed meanwhile"), KeyError("spec"))
    for result in ("ok", *(backoff_of(error).name for error in errors)):
        running.metrics.observe_reconcile(result=result, seconds=0.1, waited=0.0)
    assert running.passes() == 3
    assert tenants.errors() == 1
