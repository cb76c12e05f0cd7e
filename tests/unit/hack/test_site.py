"""Test what the documentation site is built from; `make docs` builds it in strict mode."""

from __future__ import annotations

from pathlib import Path

from hack import site


def _targets() -> list[str]:
    return [
        target
        for section in site.navigation()
        for value in section.values()
        for target in ([value] if isinstance(value, str) else [*_values(value)])
    ]


def _values(entries: list[dict[str, str]]) -> list[str]:
    return [target for entry in entries for target in entry.values()]


def test_every_page_is_in_the_navigation_once() -> None:
    targets = _targets()
    assert len(targets) == len(set(targets))
    assert set(site.pages()) - set(targets) == set()


def test_everything_that_pages_link_to_is_staged(tmp_path: Path) -> None:
    site.stage(tmp_path)
    for page in site.pages():
        missing = [target for _, target in site.links(page) if not (tmp_path / target).exists()]
        assert missing == [], page
