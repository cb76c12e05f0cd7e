"""What an API server names as the causes of a refusal."""

from __future__ import annotations

from typing import Any

# Causes that the API server adds when it stopped before the rules, and when it checked the type of
# an integer or text twice.
ECHOES = (
    "some validation rules were not checked",
    "Checked value must be",
    "must validate at least one schema",
    "accessor error",
)


def causes_of(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Return field and message of each cause, without those that repeat another one."""
    causes = status.get("details", {}).get("causes", [])
    return [
        (cause.get("field", ""), cause["message"])
        for cause in causes
        if not any(echo in cause["message"] for echo in ECHOES)
    ]
