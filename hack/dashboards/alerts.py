"""Alerts on a dashboard: those that are active, and what each of them means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from triton_pipelines.compile.render.prometheus_rules import RUNBOOKS
from triton_pipelines.compile.render.recording_rules import Rule

from .grafana import Kind, Panel, Query

_ROOT: Final = Path(__file__).resolve().parents[2]


def active(selectors: Iterable[str]) -> Panel:
    """Return the table of pending and firing alerts.

    Args:
        selectors: Matchers of the series ``ALERTS``; each selects some of the alerts.
    """
    labels = ("alertstate", "severity", "alertname", "namespace", "pipeline", "pod", "reason")
    found = " or ".join(f"ALERTS{{{selector}}}" for selector in selectors)
    return Panel(
        "Active alerts",
        "Alerts that fire, and alerts whose waiting time has not passed yet (pending). Needs the"
        " alerting rules of this project in Prometheus.",
        "short",
        (Query(f"max by ({', '.join(labels)}) ({found})", labels=labels),),
        kind=Kind.TABLE,
        width=12,
    )


def meanings(rules: Iterable[Rule]) -> Panel:
    """Return a text with the meaning of each alert, and a link to its runbook."""
    page = PurePosixPath(RUNBOOKS).relative_to("docs")
    runbook = (_ROOT / RUNBOOKS).read_text(encoding="utf-8")
    lines = [
        f"- [{rule['alert']}](${{docs_url}}/{page}#{rule['alert'].lower()}):"
        f" {_meaning(runbook, rule['alert'])}"
        for rule in rules
    ]
    return Panel(
        "What the alerts mean",
        "Each name is a link to the runbook of the alert. Set the address in Docs URL.",
        "none",
        kind=Kind.TEXT,
        width=12,
        text="\n".join(lines),
    )


def _meaning(runbook: str, alert: str) -> str:
    """Return the paragraph of the runbook about the meaning of an alert, without its links.

    Raises:
        ValueError: The runbook has no such paragraph.
    """
    found = re.search(rf"^## {alert}\n+\*\*Meaning\.\*\* (.+?)\n\n", runbook, re.M | re.S)
    if found is None:
        raise ValueError(f"{RUNBOOKS}: section {alert} has no paragraph that starts with Meaning")
    text = " ".join(found[1].split())
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
