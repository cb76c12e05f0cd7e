"""Test the local cluster's tools on machines that cannot run it.

The tests cover the messages, and how supervisor and command line behave without a cluster.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from e2e.local import api, packages, supervisor
from e2e.local.__main__ import app, main
from e2e.local.cluster import Cluster
from e2e.local.processes import Process, ProcessDiedError, reserved_ports, stop_all, wait_gone
from e2e.local.supervision import ClusterError


@pytest.fixture(autouse=True)
def no_clusters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITONPIPE_CLUSTERS", str(tmp_path / "clusters"))


def test_root_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(packages.MachineError, match=r"needs root.*sudo.*KUBECONFIG"):
        packages.require_root()


def test_missing_programs_are_named_by_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packages, "SBIN", ())
    monkeypatch.setattr(packages, "CNI_PLUGINS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.missing() == sorted({*packages.PROGRAMS.values(), packages.CNI_PACKAGE})
    with pytest.raises(packages.MachineError, match=r"no apt-get.*runc"):
        packages.install()


@pytest.mark.parametrize("name", ["", "Local", "a_b", "1a", "a" * 32, "../x"])
def test_bad_cluster_names(name: str) -> None:
    with pytest.raises(ClusterError, match="bad cluster name"):
        Cluster(name)


def test_a_cluster_that_is_down_says_how_to_bring_it_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["e2e.local", "gpus", "3", "--name", "nowhere"])
    assert main() == 1
    assert "python -m e2e.local up --name nowhere" in capsys.readouterr().err


def test_status_of_a_named_cluster_fails_unless_ready() -> None:
    assert CliRunner().invoke(app, ["status"]).exit_code == 0
    assert CliRunner().invoke(app, ["status", "--name", "nowhere"]).exit_code == 1


def test_early_end_is_reported_with_the_log(tmp_path: Path) -> None:
    process = Process(
        "short", ["/bin/sh", "-c", "echo the reason >&2; exit 3"], tmp_path / "short.log"
    )
    with pytest.raises(ProcessDiedError, match=r"(?s)short ended with exit code 3.*the reason"):
        api.wait_for("its end", lambda: False, 10, process.check)


def test_stubborn_processes_end_too(tmp_path: Path) -> None:
    stubborn = Process(
        "stubborn", ["/bin/sh", "-c", "trap '' TERM; echo up; exec sleep 600"], tmp_path / "log"
    )
    tame = Process("tame", ["/bin/sleep", "600"], tmp_path / "tame.log")
    try:
        api.wait_for("its trap", lambda: (tmp_path / "log").read_text() == "up\n", 10)
    finally:
        stop_all([stubborn, tame], grace=0.2)
    assert wait_gone([stubborn.pid, tame.pid], 5) == []


def test_ports_are_distinct() -> None:
    with reserved_ports(20) as one, reserved_ports(20) as two:
        assert len({*one, *two}) == 40


def test_a_server_listens_on_a_reserved_port_and_another_caller_does_not_get_it() -> None:
    with reserved_ports(1) as (port,), socket.create_server(("127.0.0.1", port)):
        (ephemeral,) = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[:1]
        assert port < int(ephemeral)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_supervisor_waits_for_what_is_due_next() -> None:
    running = supervisor.Component("running", "{}", pid=10)
    again = supervisor.Component("again", "{}", start_at=105.0)
    leaving = supervisor.Component("leaving", "{}", pid=11, kill_at=103.0)
    assert supervisor.pause({"running": running}, 100.0) == 3600
    assert supervisor.pause({"running": running, "again": again}, 100.0) == 5
    assert supervisor.pause({"again": again, "leaving": leaving}, 100.0) == 3
    assert supervisor.pause({"again": again}, 106.0) == 0.01


def test_supervisor_starts_restarts_and_stops(tmp_path: Path) -> None:
    """The supervisor as a plain process: its loop, without namespaces and mounts."""
    (tmp_path / "components").mkdir()
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import supervisor, pathlib; "
        "supervisor.prepare_mounts = lambda state: None; "
    )
    program += "supervisor.RESTART_SECONDS = 0.05; supervisor.main(pathlib.Path(sys.argv[2]))"
    folder = str(Path(supervisor.__file__).parent)
    definition = (
        '{"command": ["/bin/sh", "-c", "echo run; exec sleep 600"], "log": '
        f'"{tmp_path / "one.log"}"}}'
    )
    (tmp_path / "components" / "one.json").write_text(definition)
    child = subprocess.Popen([sys.executable, "-c", program, folder, str(tmp_path)])
    try:
        first = wait_pid(tmp_path, 0)
        os.kill(first, signal.SIGKILL)
        second = wait_pid(tmp_path, first)
        (tmp_path / "components" / "one.json").unlink()
        os.kill(child.pid, signal.SIGHUP)
        assert wait_gone([second], 10) == []
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "one.log").read_text() == "run\nrun\n"


def wait_pid(state: Path, other_than: int) -> int:
    """The process id of component `one`, once the supervisor has started it anew."""
    found: list[int] = []

    def look() -> bool:
        pid: int = json.loads((state / "run.json").read_text()).get("one", {}).get("pid", 0)
        found[:] = [pid] if pid not in (0, other_than) and (state / "one.log").exists() else []
        return bool(found)

    api.wait_for("component", look, 20)
    return found[0]
