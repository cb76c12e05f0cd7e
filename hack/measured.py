"""Write the figures that the end-to-end suite measured into the user guide, between its marks.

    python -m hack.measured [--write]

The figures are stored in docs/user/measured/*.json. The suite writes them to the path in
E2E_MEASURED. If they are missing, the page says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "user" / "measured" / "rollout.json"
PAGE = ROOT / "docs" / "user" / "rollout-clients.md"
CLIENTS = {
    "grpc": "gRPC",
    "http-new-connection": "HTTP, new connections",
    "http-keep-alive": "HTTP, keep-alive",
}
_MARKS = re.compile(r"(<!-- measured: start -->\n).*?(<!-- measured: end -->)", re.DOTALL)


def table(cases: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return a table of the figures by case and client.

    The figures are failed requests and the longest time without an answer.
    """
    lines = [f"| Rollout | {' | '.join(CLIENTS.values())} |", f"| --- |{' --- |' * len(CLIENTS)}"]
    lines += [
        f"| {case} | {' | '.join(_cell(clients.get(client)) for client in CLIENTS)} |"
        for case, clients in sorted(cases.items())
    ]
    return "\n".join(lines)


def _cell(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return "–"
    return (
        f"{figures['failed']} of {figures['requests']} failed; longest gap "
        f"{figures['longestGapMilliseconds']} ms"
    )


def block() -> str:
    """Return the text between the marks."""
    if not FIGURES.exists():
        return (
            "No figures are published yet. `make e2e` measures and prints them, and stores them "
            "in `out/e2e/measured`."
        )
    cases = json.loads(FIGURES.read_text(encoding="utf-8"))
    head = (
        "Measured on the local single-node cluster (two cores, Triton on CPU), under load during "
        "the whole\nrollout, until the last old pod was gone:"
    )
    return f"{head}\n\n{table(cases)}"


def page(text: str) -> str:
    """Return a page with its block up to date."""
    changed, count = _MARKS.subn(lambda match: f"{match[1]}{block()}\n{match[2]}", text)
    if count != 1:
        raise SystemExit(
            f"{PAGE.relative_to(ROOT)}: the marks 'measured: start' and 'measured: end' must "
            "appear once each, in this order"
        )
    return changed


def main(arguments: list[str]) -> int:
    """Check the page, or write it; exit code 1 on a difference."""
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if before == after:
        return 0
    if "--write" in arguments:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    print(
        f"{PAGE.relative_to(ROOT)} differs from its figures: python -m hack.measured --write",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
