"""The bare control plane of other integration tests: real, isolated, and removed afterwards."""

from pathlib import Path

import pytest

from e2e.local import api
from tests.support.controlplane import ControlPlane

pytestmark = pytest.mark.integration


def config_map(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"key": "value"},
    }


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that name `folder`, but this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(command.decode(errors="replace"))
    return found


def test_api_server_stores_objects(api_server: ControlPlane) -> None:
    with api.client(api_server.kubeconfig) as connection:
        version = connection.get("/version").json()
        stored = api.apply(
            connection, "/api/v1/namespaces/default/configmaps/example", config_map("example")
        )
    assert version["gitVersion"].startswith("v1.36.")
    assert stored["metadata"]["uid"]


def test_garbage_collector_removes_dependents(control_plane: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    with api.client(control_plane.kubeconfig) as connection:
        owner = api.apply(connection, f"{path}/owner", config_map("owner"))
        child = config_map("child")
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": owner["metadata"]["uid"],
        }
        child["metadata"] = {"name": "child", "ownerReferences": [reference]}
        api.apply(connection, f"{path}/child", child)
        connection.delete(f"{path}/owner").raise_for_status()
        api.wait_for("collected", lambda: connection.get(f"{path}/child").status_code == 404, 60)


def test_audit_log_counts_writes_alone(control_plane: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/configmaps/audited"
    with api.client(control_plane.kubeconfig) as connection:
        api.apply(connection, path, config_map("audited"))
        connection.get(path).raise_for_status()
        connection.delete(path).raise_for_status()
    events = [
        event
        for event in control_plane.audit_events()
        if event.get("objectRef", {}).get("name") == "audited"
    ]
    assert [event["verb"] for event in events] == ["patch", "delete"]
    assert {event["user"]["username"] for event in events} == {"admin"}


def test_survives_a_crash_of_the_api_server_and_leaves_nothing() -> None:
    with ControlPlane() as plane:
        folder = plane.folder
        with api.client(plane.kubeconfig) as connection:
            api.apply(connection, "/api/v1/namespaces/default/configmaps/kept", config_map("kept"))
        plane.kill_component("kube-apiserver")
        plane.start_component("kube-apiserver")
        plane.wait_ready()
        with api.client(plane.kubeconfig) as connection:
            assert connection.get("/api/v1/namespaces/default/configmaps/kept").status_code == 200
        # The API server does not end by itself once its etcd is gone.
        plane.kill_component("etcd")
        assert processes_of(folder)
    assert not processes_of(folder)
    assert not folder.exists()


def test_failed_start_leaves_nothing_and_shows_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    plane = ControlPlane(extra_api_server_flags=("--no-such-flag",))
    with pytest.raises(RuntimeError, match="no-such-flag"):
        plane.start()
    assert not processes_of(tmp_path)
    assert list(tmp_path.iterdir()) == []
