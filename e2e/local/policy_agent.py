"""Enforce NetworkPolicies on the local node: follow the API server and keep the rules current.

`python -m e2e.local.policy_agent KUBECONFIG ADDRESS…` runs in the node's network namespace until
it is stopped. Traffic from the given addresses always passes.

The pod network of the local cluster (CNI plugin `ptp`) ignores policies. On a cluster whose network
plugin enforces them, this agent is not needed.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from e2e.local import api, packages
from e2e.local.policy_rules import CHAIN, Objects, document

PATHS = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}
RETRY_SECONDS = 1.0
"""Pause after a failed request."""
SETTLE_SECONDS = 0.1
"""Changes that follow each other this fast are applied together."""
WATCH = {"watch": "1", "timeoutSeconds": "300"}
"""Parameters of a watch."""


def follow(kubeconfig: Path, path: str, changed: threading.Event) -> None:
    """Set `changed` whenever an object of a kind changes; never returns."""
    with api.client(kubeconfig) as connection:
        while True:
            changed.set()
            try:
                with connection.stream("GET", path, params=WATCH, timeout=None) as events:
                    events.raise_for_status()
                    for _ in events.iter_lines():
                        changed.set()
            except httpx.HTTPError as error:
                print(f"watching {path}: {error}", flush=True)
                time.sleep(RETRY_SECONDS)


def read(connection: httpx.Client) -> Objects:
    """Return the current objects."""
    found = {
        name: connection.get(path).raise_for_status().json()["items"]
        for name, path in PATHS.items()
    }
    return Objects(**found)


def run_iptables(command: Sequence[str], rules: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of iptables; its output goes to the log."""
    return subprocess.run(
        command,
        input=rules,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={"PATH": packages.search_path()},
    )


def apply(rules: str) -> None:
    """Replace the rules in one transaction, and let all forwarded packets pass through them.

    Raises:
        RuntimeError: iptables refused; with its message.
    """
    jump = ["FORWARD", "-j", CHAIN]
    commands = [(["iptables-restore", "--wait", "--noflush"], rules)]
    if run_iptables(["iptables", "--wait", "-C", *jump]).returncode != 0:
        commands.append((["iptables", "--wait", "-I", *jump], ""))
    for command, text in commands:
        done = run_iptables(command, text)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout.strip()}\n{text}")


def main(kubeconfig: Path, trusted: Sequence[str]) -> None:
    """Keep the rules current until the process is stopped."""
    changed = threading.Event()
    for path in PATHS.values():
        threading.Thread(target=follow, args=(kubeconfig, path, changed), daemon=True).start()
    applied = ""
    with api.client(kubeconfig) as connection:
        while True:
            changed.wait()
            time.sleep(SETTLE_SECONDS)
            changed.clear()
            try:
                rules = document(read(connection), trusted)
                if rules != applied:
                    apply(rules)
                    applied = rules
            except (httpx.HTTPError, RuntimeError) as error:
                print(f"not applied, trying again: {error}", flush=True)
                time.sleep(RETRY_SECONDS)
                changed.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
