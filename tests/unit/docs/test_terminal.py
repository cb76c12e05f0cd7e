"""The recorded terminal session: it shows the commands that the script runs."""

from __future__ import annotations

import html
import re

from hack.terminal import PICTURE, SESSION, Line, picture
from tests.unit.docs import markdown
from tests.unit.docs.test_examples import options

SVG = PICTURE.read_text(encoding="utf-8")


def shown(svg: str) -> str:
    """The text of the picture, with single spaces."""
    spans = re.findall(r"<text [^>]*clip-path[^>]*>([^<]*)</text>", svg)
    return " ".join(html.unescape(" ".join(spans)).split())


def test_the_picture_shows_every_command_and_its_result() -> None:
    text = shown(SVG)
    for command in SESSION:
        assert command in text
    for result in (
        "the list has 3 labels, but output",
        "has 2 classes",
        "is served by",
        "positive",
    ):
        assert result in text
    assert "Traceback" not in text


def test_the_options_exist() -> None:
    for command in SESSION:
        assert set(re.findall(r"--[a-z-]+", command)) <= options(command.split()[1])


def test_the_readme_shows_it() -> None:
    assert "](docs/terminal.svg)" in (markdown.ROOT / "README.md").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_another_host() -> None:
    assert not re.search(r"url\([\"']?http|@import|href=", SVG)


def test_each_line_appears_at_its_time() -> None:
    svg = picture([Line("$ a", 1.0), Line("b" * 150, 4.0), Line("c", 0.0)])
    starts = re.findall(r"@keyframes line-(\d) \{from \{opacity: 0\} ([\d.]+)%", svg)
    # The second line is longer than the terminal and takes two; five seconds follow the last one.
    assert starts == [("0", "10.00"), ("1", "50.00"), ("2", "50.00"), ("3", "50.00")]
    assert "prefers-reduced-motion: no-preference" in svg
