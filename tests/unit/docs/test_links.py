"""Every relative link of every page leads somewhere, and the index leads to every page of docs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.unit.docs import markdown

PAGES = markdown.pages()


@pytest.mark.parametrize("page", PAGES, ids=markdown.name)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in markdown.links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, fragment = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(markdown.ROOT):
            broken.append(f"{link}: no such file")
        elif fragment and fragment not in markdown.anchors(target):
            broken.append(f"{link}: no such heading")
    assert broken == []


def test_the_index_leads_to_every_page_of_docs() -> None:
    index = markdown.ROOT / "docs" / "index.md"
    led_to = {(index.parent / link.partition("#")[0]).resolve() for link in markdown.links(index)}
    assert {
        page for page in (markdown.ROOT / "docs").rglob("*.md") if page != index
    } - led_to == set()


def test_anchors_are_githubs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n## `make x` & [y](z.md)\n## Same\n## Same\n## Same\n```sh\n# no heading\n```\n"
    )
    assert markdown.anchors(page) == {"one-two", "make-x--y", "same", "same-1", "same-2"}
