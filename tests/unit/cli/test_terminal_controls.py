"""Texts of a cluster, which any of its users may have written, do not control the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run, Serve, response
from tests.unit.cli.test_status import kubeconfig, listed
from triton_pipelines.cli.errors import EXIT_FAILED

# Clears the screen, hides what follows, forges a line, and reverses the order of characters.
CONTROLS = "\x1b[2J\x1b[8m\r\nReady True\x9b0m\u202e\x00\x7f"


@pytest.mark.parametrize("command", ["status", "scaling", "explain"])
@pytest.mark.parametrize("name", [("sentiment",), (), ("-o", "wide")])
def test_no_text_of_the_cluster_controls_the_terminal(
    tritonpipe: Run, server: Serve, tmp_path: Path, command: str, name: tuple[str, ...]
) -> None:
    conditions = [
        {"type": kind, "status": status, "reason": CONTROLS, "message": CONTROLS}
        for kind, status in (("Ready", "False"), ("ScalingLimited", "True"))
    ]
    step = dict.fromkeys(("name", "modelName", "verdict", "verdictReason", "reason"), CONTROLS)
    change = dict.fromkeys(("time", "step", "from", "to", "reason"), CONTROLS)
    document = {
        "metadata": {"namespace": "nlp", "name": "sentiment", "generation": 1},
        "status": {
            "conditions": conditions,
            "revision": CONTROLS,
            "steps": [{**step, "instances": 1, "desiredInstances": 1}],
            "scaling": {"bottleneck": CONTROLS, "mode": CONTROLS, "history": [change]},
            "warnings": [{"path": CONTROLS, "message": CONTROLS}],
        },
    }
    answer = response(document) if name[:1] == ("sentiment",) else listed(document)
    url = server({"GET": answer}).partition("/v2")[0]
    file = kubeconfig(tmp_path / "config", url)
    shown = tritonpipe(command, *name, "--kubeconfig", file)
    assert "sentiment" in shown.out
    assert "\\x1b[2J" in shown.out or command != "status"
    lines = shown.out.split("\n")
    assert all(line.isprintable() and not line.startswith("Ready True") for line in lines), lines


def test_no_error_of_a_server_controls_the_terminal(tritonpipe: Run, server: Serve) -> None:
    url = server({"GET": response({"error": CONTROLS}, 400)})
    ended = tritonpipe("infer", url, "a")
    assert ended.code == EXIT_FAILED
    assert "\\x1b[2J" in ended.err
    assert all(line.isprintable() for line in ended.err.split("\n"))
