"""Reading the project's Markdown: its pages, their headings, links and fenced blocks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_TEST_LINK = re.compile(r"\[(test_\w+)\]\(([^)]+)\)")
_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page."""

    page: str
    """Path of the page."""
    line: int
    """Line of the opening fence."""
    info: tuple[str, ...]
    """Words of the info string behind the opening fence."""
    text: str
    """Content, without indentation."""

    @property
    def language(self) -> str:
        """The first word behind the fence."""
        return self.info[0] if self.info else ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read: those of the root, docs, and the READMEs of other folders."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    found += [*(ROOT / "docs").rglob("*.md")]
    for folder in ("bench", "changelog.d", "charts", "e2e", "manifests"):
        found += (ROOT / folder).rglob("*.md")
    found += [page for page in [ROOT / "CHANGELOG.md"] if page.exists()]
    return sorted(found)


def name(page: Path) -> str:
    """The page as people write it."""
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> Iterator[Fence]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        indent = len(match[1])
        body = "".join(
            line[indent:] if line[:indent].isspace() or not indent else line
            for line in match[4].splitlines(keepends=True)
        )
        yield Fence(
            name(page), text.count("\n", 0, match.start()) + 1, tuple(match[3].split()), body
        )


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    """Headings of all levels, without their marks."""
    return re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What a link's fragment may name: headings as GitHub writes them, and explicit anchors."""
    made: set[str] = set()
    for heading in headings(page):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 1
        while slug in made:
            slug, number = f"{slug.removesuffix(f'-{number - 1}')}-{number}", number + 1
        made.add(slug)
    return made | set(re.findall(r'<a (?:id|name)="([^"]+)"', prose(page)))


def links(page: Path) -> list[str]:
    """Targets of a page's links and images."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)", text) + re.findall(
        r"^\[[^]]+\]:\s*(\S+)", text, re.MULTILINE
    )


def linked_tests(page: Path, cell: str) -> tuple[int, list[str]]:
    """Return how many tests a table's cell links, and what is wrong with these links."""
    links = _TEST_LINK.findall(cell)
    wrong = []
    for test, file in links:
        path = (page.parent / file).resolve()
        if not path.is_file():
            wrong.append(f"{file} does not exist")
        elif test not in functions(path.read_text(encoding="utf-8")):
            wrong.append(f"{file} has no {test}")
    return len(links), wrong


def functions(source: str) -> set[str]:
    """Names of the functions that a Python module defines."""
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
