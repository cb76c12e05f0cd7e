"""Measured figures that are not guaranteed.

They are printed and kept as JSON for the documentation.

They go to `out/e2e/measured/`, or to the folder that `E2E_MEASURED` names (`docs/user/measured`
renews the published ones).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.load.record import Summary

ROOT = Path(__file__).resolve().parents[2]
ENV_FOLDER = "E2E_MEASURED"
Record = Callable[[str, Mapping[str, Summary]], None]


def folder() -> Path:
    """Where figures are kept."""
    given = os.environ.get(ENV_FOLDER, "")
    return ROOT / given if given else ROOT / "out" / "e2e" / "measured"


def record(topic: str, case: str, summaries: Mapping[str, Summary]) -> None:
    """Put one case's figures, per kind of client, into `<topic>.json`; other cases there stay."""
    path = folder() / f"{topic}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(path.read_text()) if path.exists() else {}
    document[case] = {client: summary.figures() for client, summary in sorted(summaries.items())}
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    print(f"\n{topic}, {case}:", *summaries.values(), sep="\n  ")
