"""Build the documentation site from the pages of the repository: ``python -m hack.site``.

Pages and everything that they link to are copied to a staging folder with the paths of the
repository, so links are the same on the site, in an editor and on a Git server. The navigation is
that of ``docs/index.md``. MkDocs runs in strict mode: a broken link or anchor fails the build.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "out" / "site"
INDEX: Final = "docs/index.md"
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_SECTION: Final = re.compile(r"^## +(.+)$", re.MULTILINE)


def pages() -> list[str]:
    """Return the pages of the site, relative to the root of the repository."""
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [*found, "README.md", "CONTRIBUTING.md", "SECURITY.md"]


def links(page: str) -> Iterator[tuple[str, str]]:
    """Yield text and target of each link of a page to a file of the repository."""
    text = _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for name, target in _LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            yield name, posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(target)))


def navigation() -> list[dict[str, Any]]:
    """Return MkDocs' navigation: the sections of the index with the first link to each page."""
    sections = _SECTION.split((ROOT / INDEX).read_text(encoding="utf-8"))[1:]
    result: list[dict[str, Any]] = [{"Overview": "README.md"}, {"All pages": INDEX}]
    seen: set[str] = set()
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        entries = []
        for name, target in _LINK.findall(body):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), target))
            if path.endswith(".md") and path not in seen:
                seen.add(path)
                entries.append({name[:1].upper() + name[1:]: path})
        result.append({title: entries})
    return result


def configuration(staging: Path) -> dict[str, Any]:
    """Return MkDocs' configuration for the pages in ``staging``."""
    return {
        "site_name": "triton-pipelines",
        "docs_dir": str(staging),
        "site_dir": str(OUT / "html"),
        "strict": True,
        "use_directory_urls": False,
        "nav": navigation(),
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.indexes", "navigation.top", "content.code.copy"],
            "palette": [
                {
                    "media": f"(prefers-color-scheme: {scheme})",
                    "scheme": name,
                    "toggle": {"icon": "material/brightness-6", "name": "Light or dark"},
                }
                for scheme, name in (("light", "default"), ("dark", "slate"))
            ],
        },
        "plugins": ["search"],
        "validation": {
            "links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"},
            "nav": {"omitted_files": "ignore", "not_found": "warn"},
        },
        "markdown_extensions": [
            "tables",
            "attr_list",
            "md_in_html",
            "sane_lists",
            {"toc": {"permalink": True, "slugify": "SLUGIFY"}},
            "pymdownx.highlight",
            {"pymdownx.superfences": {"custom_fences": ["MERMAID"]}},
        ],
    }


def stage(staging: Path) -> None:
    """Copy all pages and the files that they link to."""
    shutil.rmtree(staging, ignore_errors=True)
    waiting, copied = pages(), set()
    while waiting:
        path = waiting.pop()
        source = ROOT / path
        if path in copied or path.startswith("..") or not source.is_file():
            continue
        copied.add(path)
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, staging / path)
        if path.endswith(".md"):
            waiting += [target for _, target in links(path)]


def main() -> int:
    """Build the site; return the exit code of MkDocs."""
    staging = OUT / "pages"
    stage(staging)
    text = yaml.safe_dump(configuration(staging), sort_keys=False)
    # Headings get the anchors of a Git server. MkDocs reads functions from YAML tags only.
    text = text.replace(
        "SLUGIFY", "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
    ).replace(
        "- MERMAID",
        "- {name: mermaid, class: mermaid, "
        "format: !!python/name:pymdownx.superfences.fence_code_format }",
    )
    (OUT / "mkdocs.yml").write_text(text, encoding="utf-8")
    mkdocs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("mkdocs")
    done = subprocess.run([mkdocs, "build", "--quiet", "--config-file", OUT / "mkdocs.yml"])
    if done.returncode == 0:
        print(f"the site is in {(OUT / 'html').relative_to(ROOT)}; open index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
