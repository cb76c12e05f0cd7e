"""Process 1 of a local cluster's node: sets up its mounts, then runs and restarts its components.

Runs alone (standard library only) in new mount and process namespaces and in the cluster's network
namespace, so that killing it ends every process of the cluster, pods included, and with the last
process every mount goes too.

Components are described by `components/*.json` in the state folder (`command`, `log`); SIGHUP makes
the supervisor look again: new files are started, removed ones stopped. A component that ends is
started again after a second, as an init system would do. `run.json` tells each component's process
id (in this process namespace) and how often it ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

RESTART_SECONDS = 1.0
STOP_SECONDS = 5.0
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Values that the kubelet requires for these settings.

They belong to the whole machine. The node sees these values instead of changing the machine's.
"""

SIGNALS = frozenset({signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT})


@dataclass
class Component:
    """One supervised program."""

    name: str
    definition: str
    pid: int = 0
    ended: int = 0
    start_at: float = 0.0
    kill_at: float = 0.0
    """When a component that is to stop gets SIGKILL; 0 while it is to run."""


def main(state: Path) -> None:
    """Run until SIGTERM, then stop everything."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    prepare_mounts(state)
    components: dict[str, Component] = {}
    stopping = False
    rescan(state, components)
    while components or not stopping:
        for component in components.values():
            advance(component)
        publish(state, components)
        received = signal.sigtimedwait(SIGNALS, pause(components, time.monotonic()))
        if received is not None and received.si_signo == signal.SIGHUP and not stopping:
            rescan(state, components)
        elif received is not None and received.si_signo in (signal.SIGTERM, signal.SIGINT):
            stopping = True
            for component in components.values():
                stop(component)
        reap(components)


def prepare_mounts(state: Path) -> None:
    """Give the node its own /proc, /run, logs, kubelet and CNI folders.

    They are mounted under the paths that all components expect.
    """
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    for target in ("/var/log", "/var/lib/kubelet", "/var/lib/cni"):
        source = state / "node" / target.lstrip("/")
        source.mkdir(parents=True, exist_ok=True)
        Path(target).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(source), target)
    settings = state / "node" / "sys"
    settings.mkdir(parents=True, exist_ok=True)
    for name, value in KERNEL_SETTINGS.items():
        target_file = Path("/proc/sys") / name
        if target_file.exists():
            source = settings / name.replace("/", ".")
            source.write_text(value + "\n")
            mount("--bind", str(source), str(target_file))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    # The kubelet passes mounts on to containers and back (mountPropagation).
    mount("--make-rshared", "/")


def mount(*arguments: str) -> None:
    """Run the mount command (section 8 of the manual)."""
    subprocess.run(["mount", *arguments], check=True)


def rescan(state: Path, components: dict[str, Component]) -> None:
    """Compare the definitions with the running components.

    Starts new components and stops those that were removed or changed.
    """
    wanted = {path.stem: path.read_text() for path in sorted((state / "components").glob("*.json"))}
    for name, definition in wanted.items():
        if name not in components:
            components[name] = Component(name, definition)
        elif components[name].definition != definition:
            components[name].definition = definition
            if components[name].pid:
                os.kill(components[name].pid, signal.SIGTERM)
    for name, component in components.items():
        if name not in wanted:
            stop(component)


def stop(component: Component) -> None:
    """Ask a component to end; `advance` kills it if it does not, `reap` forgets it."""
    if not component.kill_at:
        component.kill_at = time.monotonic() + STOP_SECONDS
        if component.pid:
            os.kill(component.pid, signal.SIGTERM)


def advance(component: Component) -> None:
    """Start or kill a component when its time has come."""
    now = time.monotonic()
    if component.kill_at:
        if component.pid and now >= component.kill_at:
            os.kill(component.pid, signal.SIGKILL)
    elif not component.pid and now >= component.start_at:
        component.pid = launch(json.loads(component.definition))


def launch(definition: dict[str, object]) -> int:
    """Start one program in its own session, with its output appended to its log.

    Returns its process id.
    """
    command, log = definition["command"], definition["log"]
    if not isinstance(command, list) or not isinstance(log, str):
        raise TypeError(f"bad component definition: {definition}")
    with open(log, "ab") as output:  # noqa: PTH123 - a descriptor is all that is needed
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=unblock_signals,
        )
    child.returncode = 0  # reaped below, together with the orphans of the whole namespace
    return child.pid


def unblock_signals() -> None:
    """Children start with no signal blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reap(components: dict[str, Component]) -> None:
    """Collect every ended child, adopted orphans included."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pid = 0
        if pid == 0:
            break
        for component in components.values():
            if component.pid == pid:
                component.pid = 0
                component.ended += 1
                component.start_at = time.monotonic() + RESTART_SECONDS
                print(
                    f"{component.name} ended with status {os.waitstatus_to_exitcode(status)}",
                    flush=True,
                )
    for name in [
        name for name, component in components.items() if component.kill_at and not component.pid
    ]:
        del components[name]


def pause(components: dict[str, Component], now: float) -> float:
    """Seconds until something is due; an hour when nothing is."""
    due = [component.kill_at for component in components.values() if component.kill_at]
    due += [
        component.start_at
        for component in components.values()
        if not component.kill_at and not component.pid
    ]
    return max(0.01, min(due, default=now + 3600) - now)


def publish(state: Path, components: dict[str, Component]) -> None:
    """Write `run.json`."""
    document = {
        component.name: {"pid": component.pid, "ended": component.ended}
        for component in components.values()
    }
    scratch = state / ".run.json.new"
    scratch.write_text(json.dumps(document))
    scratch.replace(state / "run.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
