"""Warn about tensor names that the PyTorch backend reads differently."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.wording import listed

from .graph import Graph
from .lint_findings import warning

# NAME__INDEX as the PyTorch backend reads it: split at the first "__", digits behind it.
_INDEXED = re.compile(r"(?:(?!__).)*__(\d*)$", re.DOTALL)


def lint_torchscript(graph: Graph) -> Iterator[Finding]:
    """Warn about tensor names whose index the PyTorch backend ignores.

    The rules are those of GetNamingConvention in the backend's source, which are the same in
    releases 24.10 and 26.04. Outputs are either all named NAME__INDEX or all taken in the order of
    the config. Inputs are either all named after arguments of ``forward``, which no config shows,
    or follow the same rule as outputs. An index is therefore ignored if any other name has none.
    """
    for step in graph.models:
        if step.platform == "pytorch_libtorch":
            yield from _torchscript_names(
                f"{step.path}.inputs", "inputs", [entry.tensor.name for entry in step.inputs]
            )
            yield from _torchscript_names(
                f"{step.path}.outputs", "outputs", [tensor.name for tensor in step.outputs]
            )


def _torchscript_names(path: str, what: str, given: Sequence[str]) -> Iterator[Finding]:
    indexes = {name: int(found[1] or 0) for name in given if (found := _INDEXED.match(name))}
    if not indexes:
        return
    if len(indexes) < len(given):
        plain = next(name for name in given if name not in indexes)
        yield warning(
            path,
            f"{plain!r} does not have the form NAME__INDEX, unlike {next(iter(indexes))!r}, "
            f"so Triton ignores the indexes and uses the {what} in the order listed here; "
            "use NAME__INDEX for all names",
            code=FindingCode.TORCHSCRIPT_NAMES,
        )
    elif len(set(indexes.values())) < len(indexes):
        twice = [name for name, index in indexes.items() if list(indexes.values()).count(index) > 1]
        yield warning(
            path,
            f"{listed(twice)} have the same index, so Triton treats these names as one "
            "tensor; use a different index for each name",
            code=FindingCode.TORCHSCRIPT_NAMES,
        )
