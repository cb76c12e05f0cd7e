"""Effect of watch events on store and queue, Kopf's settings and its credentials."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml

from triton_pipelines.api import names
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster import watches
from triton_pipelines.cluster.client import PAGE_SIZE
from triton_pipelines.cluster.login import LoginError
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    INFERENCE_PIPELINES,
    PODS,
    SECRETS,
    Resource,
)
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.watches import (
    WATCHED,
    connection_info,
    kopf_settings,
    selector_of,
    update_store,
)


def obj(name: str, version: int, pipeline: str = "p", uid: str = "u") -> dict[str, Any]:
    labels = {names.LABEL_PIPELINE: pipeline} if pipeline else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def settings_of(*, cluster_wide: bool) -> kopf.OperatorSettings:
    return kopf_settings(cluster_wide=cluster_wide, request_timeout_seconds=30, shutdown_seconds=10)


def test_events_make_owners_due() -> None:
    store = Store()
    assert update_store(store, PODS, None, obj("a", 1)) == {("n", "p")}
    assert update_store(store, PODS, "MODIFIED", obj("a", 1)) == set()
    assert update_store(store, PODS, "MODIFIED", obj("a", 2, "q")) == {("n", "p"), ("n", "q")}
    assert update_store(store, PODS, "DELETED", obj("a", 3, "q", uid="other")) == set()
    assert update_store(store, PODS, "DELETED", obj("a", 3, "q")) == {("n", "q")}
    assert update_store(store, PODS, "ADDED", obj("b", 4, "")) == set()
    assert update_store(store, INFERENCE_PIPELINES, "ADDED", obj("x", 5, "")) == {("n", "x")}


def test_secrets_are_not_watched_and_children_are_selected_by_the_server() -> None:
    assert SECRETS not in WATCHED
    settings = settings_of(cluster_wide=True)
    assert selector_of(INFERENCE_PIPELINES) is None
    assert selector_of(PODS) == names.MANAGED_SELECTOR
    assert len(settings.watching.label_selectors) == len(WATCHED) - 1


def test_kopf_is_set_as_the_design_says() -> None:
    settings = settings_of(cluster_wide=False)
    assert settings.persistence.finalizer == "kopf.tritonpipelines.io/finalizer"
    assert isinstance(settings.watching.server_timeout, int)
    assert settings.watching.client_timeout == settings.watching.server_timeout + 30
    assert settings.networking.request_timeout == 30
    assert settings.networking.trust_env
    assert settings.watching.chunk_size == PAGE_SIZE <= 50
    assert settings.queueing.worker_limit is None
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert not settings_of(cluster_wide=True).scanning.disabled


class _Uncopyable:
    def __deepcopy__(self, _: object) -> None:
        raise AssertionError("an object of an event was copied")


def test_kopf_copies_no_objects_for_handlers_of_raw_events() -> None:
    storage = settings_of(cluster_wide=True).persistence.diffbase_storage
    body = kopf.Body({"metadata": {"name": "a"}, "spec": {"value": _Uncopyable()}})
    assert storage.build(body=body, extra_fields=[]) == {}
    assert storage.fetch(body=body) is None


def kubeconfig(path: Path, user: dict[str, Any]) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "one",
    }
    path.write_text(yaml.safe_dump(content))
    return path


async def test_kopf_gets_the_same_credentials_and_asks_again_for_tokens(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    path = str(kubeconfig(tmp_path / "k", {"tokenFile": str(token)}))
    info = await connection_info(path)
    assert (info.server, info.scheme, info.token) == ("http://127.0.0.1:1", "Bearer", "first")
    assert info.expiration is not None
    token.write_text("second")
    assert (await connection_info(path, "one")).token == "second"
    plain = await connection_info(str(kubeconfig(tmp_path / "k2", {})))
    assert (plain.token, plain.expiration) == (None, None)


async def test_bad_kubeconfigs_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoginError, match="absent"):
        await connection_info(str(tmp_path / "absent"))
    with pytest.raises(LoginError, match="context 'two'"):
        await connection_info(str(kubeconfig(tmp_path / "k", {})), "two")


def test_watch_age_grows_until_the_next_event() -> None:
    now = [100.0]
    metrics = OperatorMetrics(clock=lambda: now[0])
    metrics.observe_event(CONFIG_MAPS)
    now[0] = 107.0
    age = {"resource": "configmaps"}
    assert metrics.registry.get_sample_value("tritonpipe_watch_age_seconds", age) == 7.0
    metrics.observe_event(CONFIG_MAPS)
    assert metrics.registry.get_sample_value("tritonpipe_watch_age_seconds", age) == 0.0
    assert metrics.registry.get_sample_value("tritonpipe_watch_events_total", age) == 2.0


@dataclass
class Known:
    """Stands in for Kopf's list of what it watches."""

    watched_resources: set[Resource]


async def test_a_crd_that_comes_again_and_is_not_watched_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not while the API server does not serve it, and not for what Kopf finds by itself."""
    monkeypatch.setattr(watches, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(watches.wait_until_watched, "__defaults__", (0.1,))
    known: Any = Known(set(WATCHED))
    served, asked = {INFERENCE_PIPELINES: False}, asyncio.Event()

    async def listed(resource: Resource) -> bool:
        asked.set()
        return served[resource]

    async def is_asked() -> None:
        asked.clear()
        await asyncio.wait_for(asked.wait(), 5)

    looking = asyncio.create_task(watches.check_watches(known, listed, 0.02))
    await asyncio.sleep(0)  # it has begun, with every kind watched
    known.watched_resources.discard(INFERENCE_PIPELINES)
    await is_asked()
    await is_asked()
    assert not looking.done(), "deleted, and nobody can watch it"
    known.watched_resources.add(INFERENCE_PIPELINES)
    served[INFERENCE_PIPELINES] = True
    known.watched_resources.discard(INFERENCE_PIPELINES)
    with pytest.raises(watches.UnwatchedError, match=names.PLURAL):
        await asyncio.wait_for(looking, 5)


async def test_a_crd_that_comes_again_and_is_watched_in_time_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "_POLL_SECONDS", 0.01)
    known: Any = Known(set(WATCHED))
    back = asyncio.Event()

    async def listed(resource: Resource) -> bool:
        known.watched_resources.add(resource)
        back.set()
        return True

    looking = asyncio.create_task(watches.check_watches(known, listed, 0.02))
    await asyncio.sleep(0)
    for _ in range(3):
        back.clear()
        known.watched_resources.discard(INFERENCE_PIPELINES)
        await asyncio.wait_for(back.wait(), 5)
    assert not looking.done()
    looking.cancel()
