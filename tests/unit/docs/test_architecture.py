"""Test docs/architecture*.md.

Named paths exist, and the packages are complete and in the order of the import contract.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.unit.docs import markdown

DOCS = markdown.ROOT / "docs"
PAGES = sorted(DOCS.glob("architecture*.md"))
PACKAGES = DOCS / "architecture-packages.md"
CONTRIBUTING = markdown.ROOT / "CONTRIBUTING.md"
PACKAGE = markdown.ROOT / "operator" / "triton_pipelines"
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
SUFFIXES = (".py", ".md", ".yaml", ".toml", ".j2", ".txt")
ROW = re.compile(r"^\| `([\w./]+)` \| [^|]+ \| (\d+)", re.MULTILINE)


def named_paths(text: str) -> set[str]:
    """Code spans that name a file or a folder, without build results (``out/``)."""
    spans = SPAN.findall(text)
    return {
        span
        for span in spans
        if PATH.fullmatch(span)
        and ("/" in span or span.endswith(SUFFIXES))
        and not span.startswith(("/", "out/"))
        and not span.startswith("config.pbtxt")
    }


def missing(text: str) -> list[str]:
    """Named paths that exist neither in the repository nor in the operator package."""
    return sorted(
        path
        for path in named_paths(text)
        if not (markdown.ROOT / path).exists() and not (PACKAGE / path).exists()
    )


def packages() -> set[str]:
    """Packages of the operator, and its single modules at the top."""
    found = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    return (found - {"."}) | modules


def rows() -> list[tuple[str, int]]:
    """Package and layer, in the order of the table."""
    return [(name, int(layer)) for name, layer in ROW.findall(PACKAGES.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=markdown.name)
def test_every_named_path_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_every_named_path_of_contributing_exists() -> None:
    assert missing(CONTRIBUTING.read_text(encoding="utf-8")) == []


def test_a_path_that_does_not_exist_is_found() -> None:
    text = "`api/gone.py`, `hack/`, `compile/graph`, `make unit`, `kopf`, `gone.md`"
    assert missing(text) == ["api/gone.py", "gone.md"]


def test_every_package_is_listed_once() -> None:
    listed = [name for name, _ in rows()]
    assert sorted(listed) == sorted(packages())


def test_packages_are_in_the_order_of_the_import_contract() -> None:
    configuration = tomllib.loads((markdown.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = configuration["tool"]["importlinter"]["contracts"]
    contract = next(item for item in contracts if item.get("containers") == ["triton_pipelines"])
    layer_of = {
        name.strip(): number
        for number, layer in enumerate(contract["layers"], 1)
        for name in layer.split(":")
    }
    listed = rows()
    assert [layer for _, layer in listed] == sorted(layer for _, layer in listed)
    assert {name: layer for name, layer in listed if "/" not in name} == {
        f"{name}.py" if (PACKAGE / f"{name}.py").exists() else name: number
        for name, number in layer_of.items()
    }
    assert all(layer == layer_of[name.split("/")[0].removesuffix(".py")] for name, layer in listed)
