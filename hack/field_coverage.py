"""Print which test covers which field of the resource, and at which level.

``python -m hack.field_coverage`` prints docs/reference/field-coverage.md. Marks on tests claim the
coverage. They are read from the source text, so that no test has to run for the table:

- ``@pytest.mark.proves(path, level)`` on a test, on its class, on a parameter, or as ``pytestmark``
  of a file. ``*`` in a path matches any part of it (``spec.*.warmup.mode``), and a path to an
  object covers all fields below it.
- ``@pytest.mark.proves_files(place, level, *but)``: the same for every field that is set by the
  resources in a YAML file or a folder of them, except for fields that match a pattern in ``but``.

The levels of a field that ends up in Triton's configuration are ``parsed`` (by Triton's own proto)
→ ``loaded`` (in a real Triton) → ``behaviour`` (seen in answers, metrics, timing). Those of any
other field are ``accepted`` (by a real API server) → ``applied`` (seen in a generated object or
file) → ``behaviour``. A type can be used in several places (a source, a batcher). The place with
the highest level counts, but every place must reach the first level. A field below the second level
needs a reason in hack/field-coverage-reasons.yaml.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from tests.support.fields import fields, fields_of, owners, resources_in

ROOT = Path(__file__).resolve().parent.parent
TEST_FOLDERS = ("tests", "e2e")
REASONS = ROOT / "hack" / "field-coverage-reasons.yaml"
IN_TRITON = ("parsed", "loaded", "behaviour")
ELSEWHERE = ("accepted", "applied", "behaviour")
ENOUGH = 1
"""Index of the level from which on a field needs no reason."""

STEPS = (
    "spec.tokenizer.",
    "spec.model.",
    "spec.postprocess.",
    "spec.steps[].",
    "spec.auxiliaryModels[].",
)
NOT_IN_CONFIG = (
    "source.",
    "files[].",
    "python.",
    "batchStrategy.source.",
    "vllm.",
    "resourcesPerInstance.",
    "lengths.",
    "instances.min",
    "instances.max",
    "name",
)
"""Parts of a step that become files, mounts or limits of the pod, or only words of the resource."""


@dataclass(frozen=True)
class Claim:
    """One mark: the marked test, the path of the field (or the files that set it) and the level."""

    test: str
    target: str
    level: str
    files: bool = False
    but: tuple[str, ...] = ()


@dataclass(frozen=True)
class FieldCoverage:
    """The coverage of one field.

    Attributes:
        name: Class and field (``Source.uri``), as in the API reference.
        places: The paths where it is used.
        level: The highest level that a test reached at one of them; ``None`` if not even the first.
        tests: The tests that reached it.
        reason: Why it is not higher, if a reason is needed.
    """

    name: str
    places: tuple[str, ...]
    level: str | None
    tests: tuple[str, ...]
    reason: str | None = None

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the levels that this field can have, lowest first."""
        return ladder(self.places[0])


def ladder(path: str) -> tuple[str, ...]:
    """The levels of a field, lowest first."""
    step = next((prefix for prefix in STEPS if path.startswith(prefix)), None)
    if step is not None:
        rest = path.removeprefix(step)
        return (
            ELSEWHERE
            if rest.startswith(NOT_IN_CONFIG[:-1]) or rest == NOT_IN_CONFIG[-1]
            else IN_TRITON
        )
    return (
        IN_TRITON
        if path.startswith(("spec.ensemble.", "spec.repeatedSteps"))
        and path != "spec.ensemble.entryPoint"
        else ELSEWHERE
    )


def claims_of(file: Path, root: Path = ROOT) -> Iterator[Claim]:
    """Return the marks of one test file.

    Raises:
        ValueError: The arguments of a mark are not plain text.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    place = file.relative_to(root).as_posix()
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "pytestmark" in tables:
        yield from _marks(tables["pytestmark"], place, tables)
    for node in tree.body:
        yield from _tests(node, place, tables)


def _tests(node: ast.stmt, place: str, tables: Mapping[str, ast.expr]) -> Iterator[Claim]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for decorator in node.decorator_list:
            yield from _marks(decorator, f"{place}::{node.name}", tables)
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from _tests(inner, f"{place}::{node.name}", tables)


def _marks(tree: ast.expr, test: str, tables: Mapping[str, ast.expr]) -> Iterator[Claim]:
    """Yield the marks in an expression and in the tables it names (parameters with marks)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in tables and tables[node.id] is not tree:
            yield from _marks(tables[node.id], test, {})
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("proves", "proves_files")
        ):
            continue
        values = [
            value.value
            for value in node.args
            if isinstance(value, ast.Constant) and isinstance(value.value, str)
        ]
        files = node.func.attr == "proves_files"
        if (
            len(values) != len(node.args)
            or node.keywords
            or len(values) < 2
            or (len(values) > 2 and not files)
        ):
            raise ValueError(
                f"{test}, line {node.lineno}: {node.func.attr} takes two plain "
                f"texts{' and patterns' if files else ''}"
            )
        yield Claim(test, values[0], values[1], files, tuple(values[2:]))


def all_claims(root: Path = ROOT) -> list[Claim]:
    """The marks of all tests."""
    files = [file for folder in TEST_FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    return [claim for file in files for claim in claims_of(file, root)]


def match_claims(  # noqa: C901
    names: Mapping[str, str], claims: Sequence[Claim], reasons: Mapping[str, str], root: Path = ROOT
) -> tuple[list[FieldCoverage], list[str]]:
    """Return the coverage of each field, and the errors in claims and reasons.

    Args:
        names: Class and field of each path (:func:`tests.support.fields.owners`), for fields only.
        claims: The claims of all tests.
        reasons: Reasons why a field has no higher level.
        root: The root folder of the repository.
    """
    reached: dict[str, dict[str, list[str]]] = {path: {} for path in names}
    wrong = []
    for claim in claims:
        meant = (
            _written(root / claim.target)
            if claim.files
            else {path for path in names if _below(path, claim.target)}
        )
        if claim.level not in IN_TRITON + ELSEWHERE:
            wrong.append(f"{claim.test}: there is no level {claim.level}")
        elif not meant:
            wrong.append(
                f"{claim.test}: no resource in {claim.target}"
                if claim.files
                else f"{claim.test}: there is no field {claim.target}"
            )
        elif not claim.files and not any(claim.level in ladder(path) for path in meant):
            wrong.append(
                f"{claim.test}: {claim.target} has the levels "
                f"{', '.join(ladder(min(meant)))}, not {claim.level}"
            )
        wrong += [
            f"{claim.test}: {pattern} excepts nothing"
            for pattern in claim.but
            if not any(_fits(path, pattern) for path in meant)
        ]
        for path in {
            path
            for path in meant & set(names)
            if not any(_fits(path, pattern) for pattern in claim.but)
        }:
            if claim.level in ladder(path):
                reached[path].setdefault(claim.level, []).append(claim.test)
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for path, name in names.items():
        groups.setdefault((name, ladder(path)), []).append(path)
    covered, used = [], set()
    for (name, levels), places in groups.items():
        level = next(
            (level for level in reversed(levels) if any(level in reached[path] for path in places)),
            None,
        )
        tests = (
            {test: None for path in places for test in reached[path].get(level, [])}
            if level
            else {}
        )
        unseen = [path for path in places if not reached[path]]
        pattern = next(
            (
                pattern
                for pattern in reasons
                if any(_fits(path, pattern) for path in unseen or places)
            ),
            None,
        )
        if not unseen and level is not None and levels.index(level) >= ENOUGH:
            covered.append(FieldCoverage(name, tuple(places), level, tuple(tests)))
            continue
        if pattern is None:
            missing = f"{levels[0]} at {', '.join(unseen)}" if unseen else levels[ENOUGH]
            wrong.append(
                f"{name}: no test shows it {missing}; mark one (see hack/field_coverage.py), or "
                f"say why not in {REASONS.name}"
            )
        used.add(pattern)
        covered.append(
            FieldCoverage(name, tuple(places), level, tuple(tests), reasons.get(pattern or ""))
        )
    wrong += [
        f"{REASONS.name}: nothing needs the reason for {pattern} any more"
        for pattern in reasons
        if pattern not in used
    ]
    return covered, wrong


def _below(path: str, pattern: str) -> bool:
    """Whether a field is the one that a mark names, or stands below it."""
    return any(_fits(path, f"{pattern}{end}") for end in ("", ".*", "[].*", "{}.*"))


def _fits(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern.replace("[", "[[]"))


def _written(place: Path) -> set[str]:
    return (
        {path for _, document in resources_in(place) for path in fields_of(document)}
        if place.exists()
        else set()
    )


def reasons_of(file: Path = REASONS) -> dict[str, str]:
    """Path pattern → why no test gets further."""
    found: dict[str, str] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return found


@functools.cache
def current() -> tuple[list[FieldCoverage], list[str]]:
    """The state of this checkout."""
    owner = owners()
    return match_claims({path: owner[path] for path in fields()}, all_claims(), reasons_of())


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.replace('::', '.') or Path(file).name}](../../{file})"


def _shown(field: FieldCoverage, most: int = 2) -> str:
    more = f" and {len(field.tests) - most} more" if len(field.tests) > most else ""
    links = ", ".join(_link(test) for test in field.tests[:most]) + more
    return "; ".join(part for part in (links, field.reason) if part)


def _places(field: FieldCoverage) -> str:
    more = f" and {len(field.places) - 1} more" if len(field.places) > 1 else ""
    return f"`{min(field.places, key=_rank)}`{more}"


def _rank(path: str) -> tuple[int, int]:
    """The model's own fields stand for those of other steps; else the shortest path."""
    return (not path.startswith("spec.model."), len(path))


def render(covered: Sequence[FieldCoverage]) -> str:
    """The table as Markdown."""
    lines = [
        (
            "<!-- Generated by `python -m hack.field_coverage` from the CRD and the marks of the "
            "tests. Do not edit. -->"
        ),
        "# Field coverage",
        "",
        (
            "What the tests show of each field of `spec`. A field that ends in Triton's "
            "configuration is **parsed** by Triton's own proto, **loaded** in a"
        ),
        (
            "real Triton, and its **behaviour** is seen; any other is **accepted** by a real API "
            "server, **applied** (seen in an object or a file"
        ),
        (
            "that is made), and its **behaviour** is seen. Only the highest level is told, with "
            "tests that reach it. One type can stand at several"
        ),
        (
            "places: the first level is shown at each of them, the highest at one at least. A "
            "field below the second level has its reason beside it."
        ),
        "",
        "| Fields | first level only | second | behaviour | none |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, levels in (("in Triton's configuration", IN_TRITON), ("elsewhere", ELSEWHERE)):
        group = [field for field in covered if field.levels == levels]
        counts = [sum(field.level == level for field in group) for level in (*levels, None)]
        lines.append(
            f"| {name}: {len(group)} ({', '.join(levels)}) | {' | '.join(map(str, counts))} |"
        )
    section = ""
    for field in sorted(covered, key=_section):  # a stable sort: the reference's order stays
        if _section(field) != section:
            section = _section(field)
            lines += [
                "",
                f"## {section}",
                "",
                "| Field | Stands at | Level | Shown by |",
                "| --- | --- | --- | --- |",
            ]
        lines.append(
            f"| `{field.name.partition('.')[2]}` | {_places(field)} | "
            f"{field.level or 'none'} | {_shown(field)} |"
        )
    return "\n".join(lines) + "\n"


def _section(field: FieldCoverage) -> str:
    return field.name.partition(".")[0]


def main() -> None:
    """Print the table, and on stderr what is wrong; the unit tests fail on that."""
    covered, wrong = current()
    sys.stdout.write(render(covered))
    for line in wrong:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
