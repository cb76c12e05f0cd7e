"""Reject words that the project does not use: ``python -m hack.terminology``.

``hack/terminology.yaml`` holds the words with their replacements, the files and packages that are
covered, and the exceptions with their reasons. The check reads the prose and the fenced blocks of
Markdown pages, the comments of sample files, and of Python packages the docstrings, the string
literals and the names that they define.

    python -m hack.terminology            check what is covered; exit code 1 on a finding
    python -m hack.terminology --count    count findings per package of operator/, covered or not
    python -m hack.terminology PATH ...   check these files or folders, covered or not
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "hack" / "terminology.yaml"
SUFFIXES = (".md", ".txt", ".yaml", ".py")

# Code spans, link targets and addresses name files, fields and options, which keep their names.
_CODE = re.compile(r"``[^`\n]+``|`[^`\n]+`|(?<=\])\([^)\s]*\)|https?://\S+")

_FENCE = re.compile(r" *```+(\w*)")
_OUTPUT = ("text", "console")
# A word of a name: capitals such as SLO, a capitalized or lower-case word, or digits.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


@dataclass(frozen=True)
class Term:
    """A word that is rejected."""

    name: str
    """The word as it is listed; exceptions name it."""
    pattern: re.Pattern[str]
    """What is matched: the name as whole words, unless the list has a narrower expression."""
    replacement: str
    """What to write instead."""
    name_pattern: re.Pattern[str]
    """What is matched in the words of a defined name."""


@dataclass(frozen=True)
class AllowedName:
    """A defined name that may have a rejected word."""

    name: str
    """The name."""
    reason: str
    """Why it stays."""
    file: str = ""
    """The only file in which it may be defined; empty: any."""


@dataclass(frozen=True)
class Allowance:
    """A use of a rejected word that is right."""

    file: str
    """Path below the root of the repository."""
    term: str
    """Name of the term."""
    reason: str
    """Why the word is right there."""


@dataclass(frozen=True)
class Rules:
    """The content of ``hack/terminology.yaml``."""

    terms: tuple[Term, ...]
    """The rejected words."""
    covered: tuple[str, ...]
    """Files and folders that are checked; glob patterns below the root."""
    generated: tuple[str, ...]
    """Files and folders that are left out because their text comes from Python docstrings."""
    allowed: tuple[Allowance, ...]
    """The exceptions."""
    output_blocks: bool = True
    """Whether blocks of program output in Markdown pages are read, too."""
    allowed_names: tuple[AllowedName, ...] = ()
    """The exceptions among defined names."""


@dataclass(frozen=True)
class Finding:
    """A rejected word in a text."""

    file: str
    """Path below the root of the repository."""
    line: int
    """Line of the word, from 1."""
    found: str
    """The text that matched."""
    term: Term
    """The rule that it breaks."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: '{self.found}': write {self.term.replacement}"


def read_rules(document: Mapping[str, Any]) -> Rules:
    """Return the rules of a parsed YAML document.

    Raises:
        ValueError: A term is listed twice, or an exception has an unknown term or no reason.
    """
    terms = []
    for item in document["terms"]:
        pattern = item.get("pattern") or rf"\b{re.escape(item['term'])}\b"
        flags = 0 if item.get("case") else re.IGNORECASE
        in_names = re.compile(item.get("in_names") or pattern, flags)
        terms.append(Term(item["term"], re.compile(pattern, flags), item["write"], in_names))
    names = Counter(term.name for term in terms)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"terms listed twice: {', '.join(twice)}")
    allowed = tuple(
        Allowance(item["file"], item["term"], item.get("reason") or "")
        for item in document.get("allowed") or ()
    )
    for item in allowed:
        if item.term not in names or not item.reason:
            raise ValueError(f"exception for {item.file}: unknown term '{item.term}' or no reason")
    allowed_names = tuple(
        AllowedName(item["name"], item.get("reason") or "", item.get("file") or "")
        for item in document.get("allowed_names") or ()
    )
    for name in allowed_names:
        if not name.reason:
            raise ValueError(f"exception for the name {name.name}: no reason")
    return Rules(
        tuple(terms),
        tuple(document["covered"]),
        tuple(document.get("generated") or ()),
        allowed,
        bool(document.get("output_blocks", True)),
        allowed_names,
    )


def load_rules() -> Rules:
    """Return the rules of the repository."""
    return read_rules(yaml.safe_load(RULES.read_text(encoding="utf-8")))


def texts_of(path: Path, output_blocks: bool = True) -> Iterator[tuple[int, str]]:
    """Yield each line of prose of a file with its number.

    Args:
        path: The file; its suffix says how it is read.
        output_blocks: Whether ``text`` and ``console`` blocks of a Markdown page count.
    """
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _python_texts(source)
    elif path.suffix == ".yaml":
        for number, line in enumerate(source.splitlines(), 1):
            comment = re.search(r"(?:^|\s)#(.*)$", line)
            if comment:
                yield number, comment[1]
    else:
        inside = False
        for number, line in enumerate(source.splitlines(), 1):
            fence = _FENCE.match(line)
            if fence:
                inside = not inside and fence[1] in _OUTPUT
            elif output_blocks or not inside:
                yield number, line


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of docstrings and string literals.

    A literal without a space is a key or a name, not prose.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " not in node.value.strip():
                continue
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def check_texts(file: str, texts: Iterable[tuple[int, str]], rules: Rules) -> Iterator[Finding]:
    """Yield the rejected words in the lines of a file, without those that an exception allows."""
    allowed = {item.term for item in rules.allowed if item.file == file}
    terms = [term for term in rules.terms if term.name not in allowed]
    for number, line in texts:
        prose = _CODE.sub(" ", line)
        for term in terms:
            for match in term.pattern.finditer(prose):
                yield Finding(file, number, match[0], term)


def names_of(path: Path) -> dict[str, int]:
    """Return the names that a Python module defines, and its own, with the line of the first."""
    names = {path.stem: 1}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.arg):
            names.setdefault(node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.attr, node.lineno)
    return names


def words_of(name: str) -> str:
    """Return the words of a name in snake case or camel case, separated by spaces."""
    return " ".join(_WORD.findall(name)).lower()


def check_names(file: str, names: Mapping[str, int], rules: Rules) -> Iterator[Finding]:
    """Yield the defined names that have a rejected word, unless an exception allows them."""
    allowed = {item.name for item in rules.allowed_names if item.file in ("", file)}
    for name, line in names.items():
        if name in allowed:
            continue
        for term in rules.terms:
            if term.name_pattern.search(words_of(name)) or term.name_pattern.search(name):
                yield Finding(file, line, name, term)


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def files_below(places: Sequence[str], root: Path = ROOT) -> list[Path]:
    """Return the text files that paths, folders or glob patterns name, sorted.

    Raises:
        ValueError: A place names no file.
    """
    files: set[Path] = set()
    for place in places:
        found: set[Path] = set()
        for path in root.glob(place):
            candidates = path.rglob("*") if path.is_dir() else [path]
            found |= {item for item in candidates if item.suffix in SUFFIXES and item.is_file()}
        if not found:
            raise ValueError(f"covered: {place} names no file")
        files |= found
    return sorted(files)


def check_files(files: Sequence[Path], rules: Rules, root: Path = ROOT) -> list[Finding]:
    """Return the rejected words of files, except for generated ones."""
    findings: list[Finding] = []
    for path in files:
        name = _name(path, root)
        if not name.startswith(rules.generated):
            findings += check_texts(name, texts_of(path, rules.output_blocks), rules)
            if path.suffix == ".py":
                findings += check_names(name, names_of(path), rules)
    return findings


def unused_exceptions(rules: Rules, root: Path = ROOT) -> list[str]:
    """Return exceptions that except nothing: their file is gone, or no longer has the word."""
    unused = []
    for item in rules.allowed:
        path = root / item.file
        term = next(term for term in rules.terms if term.name == item.term)
        used = path.is_file() and any(
            term.pattern.search(_CODE.sub(" ", line))
            for _, line in texts_of(path, rules.output_blocks)
        )
        if not used:
            unused.append(f"{item.file}: the exception for '{item.term}' is not used; remove it")
    if not rules.allowed_names:
        return unused
    modules = [path for path in files_below(rules.covered, root) if path.suffix == ".py"]
    names = {_name(path, root): names_of(path) for path in modules}
    for name in rules.allowed_names:
        files = [name.file] if name.file else names
        if not any(name.name in names.get(file, {}) for file in files):
            place = name.file or "any file"
            unused.append(f"{place}: the exception for the name {name.name} is not used; remove it")
    return unused


def count(rules: Rules) -> Counter[str]:
    """Return the number of findings per package of operator/."""
    package = ROOT / "operator" / "triton_pipelines"
    files = sorted(package.rglob("*.py"))
    return Counter(finding.file.split("/")[2] for finding in check_files(files, rules))


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the check; return exit code 1 on a finding."""
    rules = load_rules()
    if arguments == ["--count"]:
        for package, number in sorted(count(rules).items()):
            print(f"{package:16} {number}")
        return 0
    if arguments:
        places = [_name(Path(argument).resolve(), root) for argument in arguments]
        messages: list[str] = []
    else:
        places = list(rules.covered)
        messages = unused_exceptions(rules, root)
    messages += [str(finding) for finding in check_files(files_below(places, root), rules, root)]
    for message in messages:
        print(message)
    if messages:
        print(f"terminology: {len(messages)} findings; words are listed in {_name(RULES, ROOT)}")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
