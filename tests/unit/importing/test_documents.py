"""Check that random resources are the same whatever happened to earlier ones."""

import json
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.support.differential.resources import Document, documents


def clear(value: Any) -> None:
    """Empty every mapping and list of a resource."""
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            clear(inner)
    value.clear()


def drawn() -> list[str]:
    found: list[str] = []

    @seed(1)
    @settings(
        max_examples=100,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(documents())
    def draw(document: Document) -> None:
        found.append(json.dumps(document))
        clear(document)

    draw()
    return found


def test_a_changed_resource_changes_no_later_one() -> None:
    assert drawn() == drawn()
