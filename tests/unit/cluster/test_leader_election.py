"""Decisions of the leader election, and the check before each write."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from kubernetes.aio.client import Configuration

from tests.support.messages import Messages
from triton_pipelines.app.config import OperatorConfig, OperatorConfigError, load_config
from triton_pipelines.app.main import Operator
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import NotLeading, Unavailable
from triton_pipelines.cluster.leader_election import (
    LeaderElector,
    LeaseAction,
    LeaseRecord,
    next_action,
)
from triton_pipelines.cluster.lease_timing import LeaseTiming
from triton_pipelines.cluster.resources import CONFIG_MAPS, INFERENCE_PIPELINES


def record(holder: str = "", duration: float = 15.0) -> LeaseRecord:
    return LeaseRecord(holder, duration, 3, ("", ""))


@pytest.mark.parametrize(
    ("holder", "age", "action"),
    [
        ("me", 0.0, LeaseAction.RENEW),
        ("me", 100.0, LeaseAction.RENEW),
        ("other", 0.0, LeaseAction.WAIT),
        ("other", 14.9, LeaseAction.WAIT),
        ("other", 15.0, LeaseAction.TAKE),
        ("", 0.0, LeaseAction.TAKE),
    ],
)
def test_next_action(holder: str, age: float, action: LeaseAction) -> None:
    found = next_action(record(holder), identity="me", observed_at=1000.0, now=1000.0 + age)
    assert found is action


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        ({}, LeaseRecord("", 15.0, 0, ("", ""))),
        ({"spec": None}, LeaseRecord("", 15.0, 0, ("", ""))),
        (
            {
                "metadata": {"resourceVersion": "7"},
                "spec": {
                    "holderIdentity": "a",
                    "leaseDurationSeconds": 40,
                    "leaseTransitions": 2,
                    "renewTime": "now",
                },
            },
            LeaseRecord("a", 40.0, 2, ("", "now")),
        ),
        # A duration that would prevent any takeover.
        ({"spec": {"leaseDurationSeconds": 2**31 - 1}}, LeaseRecord("", 3600.0, 0, ("", ""))),
    ],
)
def test_record_of_a_lease(lease: dict[str, Any], expected: LeaseRecord) -> None:
    assert LeaseRecord.of(lease, 15.0) == expected


@pytest.mark.parametrize("timing", [(10, 10.0, 2.0), (15, 2.0, 2.0), (15, 10.0, 0.0)])
def test_timing_that_does_not_fit_is_rejected(
    timing: tuple[int, float, float], messages: Messages
) -> None:
    with messages.raises(ValueError):
        LeaseTiming(*timing)


def test_timing_is_checked_at_start_up(messages: Messages) -> None:
    with messages.raises(OperatorConfigError):
        load_config({"leader_elect_lease_duration_seconds": 5}, {})
    with pytest.raises(OperatorConfigError, match="--leader-elect-lease-duration-seconds"):
        load_config({"leader_elect_lease_duration_seconds": 4.5}, {})


async def login() -> Configuration:
    return Configuration(host="http://127.0.0.1:1")


TARGET = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "a"}}


async def test_the_operators_client_asks_the_elector() -> None:
    operator = Operator(OperatorConfig(leader_elect=True), lambda _: None, OperatorMetrics())
    operator.client._transport.login = login
    async with operator.client as client:
        operator._elector = LeaderElector(client, "n", "operator", "a")
        with pytest.raises(NotLeading):
            await client.create(TARGET)
        operator._enqueue(("n", "a"), INFERENCE_PIPELINES)
        assert operator.queue.depth == 0, "a standby would collect every pipeline"
        operator._elector._valid_until = float("inf")
        with pytest.raises(Unavailable):
            await client.create(TARGET)
        operator._enqueue(("n", "a"), INFERENCE_PIPELINES)
        assert operator.queue.depth == 1


async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    async with Client(login, may_write=lambda: False) as client:
        for write in (client.apply(TARGET), client.create(TARGET), client.replace(TARGET)):
            with pytest.raises(NotLeading):
                await write
        with pytest.raises(NotLeading):
            await client.delete(CONFIG_MAPS, "n", "a")


async def test_a_release_fails_without_an_error() -> None:
    async with Client(login) as client:
        await LeaderElector(client, "n", "operator", "a").release()
        odd = AsyncMock(return_value={"metadata": {}, "spec": {"leaseDurationSeconds": "long"}})
        with patch.object(Client, "get", odd):
            await LeaderElector(client, "n", "operator", "a").release()
    assert odd.await_count == 1
