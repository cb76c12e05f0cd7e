"""Decide which source or plan file writes which path of the repository: one writer per path."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from triton_pipelines.api.loadplan import FetchKind, LoadPlan, LoadReason, PlanFetch
from triton_pipelines.loader.errors import LoaderError
from triton_pipelines.loader.selection import FIRST


class Layout:
    """Paths below the repository and their writers.

    The plan puts some files (a runner's ``model.py``, side files) into version 1 of a model. If the
    model's versions come from a source, these files belong to each version, and only this class
    knows which versions there are.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = {item.path for item in plan.files}
        self._plan |= {item.path for item in plan.libraries}
        self._models = {item.target for item in plan.fetch if item.kind is FetchKind.MODEL}
        self._versions: dict[str, tuple[int, ...]] = {}
        self._written: dict[str, str] = {}

    def found(self, item: PlanFetch, versions: Collection[int]) -> None:
        """Note the versions that a model's source has."""
        if item.kind is FetchKind.MODEL:
            self._versions[item.target] = tuple(sorted(versions))

    def note(self, item: PlanFetch, names: Collection[str]) -> None:
        """Note files that an earlier attempt wrote."""
        self._written |= dict.fromkeys(names, item.spec_field)

    def of_plan(self) -> Mapping[str, tuple[str, ...]]:
        """Return the places of each of the plan's own files."""
        return {path: self._everywhere(path) for path in self._plan}

    def place(self, item: PlanFetch, path: str, what: str) -> tuple[str, ...]:
        """Return the places of a fetched file.

        Raises:
            LoaderError: something else writes there.
        """
        model, _, rest = path.partition("/")
        if item.kind is FetchKind.MODEL:
            inner = f"{model}/{FIRST}/{rest.partition('/')[2]}"
            paths: tuple[str, ...] = (path,)
            requested = {path, inner}
        else:
            paths = self._everywhere(path)
            requested = {path, *paths}
        for own in sorted(requested & self._plan):
            raise LoaderError(
                LoadReason.MODEL_MISMATCH,
                f"{what}: the source contains {PurePosixPath(path).name}, but the operator "
                f"writes {own} itself; remove or rename the file in the source",
            )
        for one in paths:
            if (other := self._written.get(one)) is not None or (
                other := self._folded(one)
            ) is not None:
                raise LoaderError(
                    LoadReason.MODEL_MISMATCH,
                    f"{what} would overwrite {one} from {other}; change one of the two paths.",
                )
        for one in paths:
            self._written[one] = item.spec_field
        return paths

    def _folded(self, path: str) -> str | None:
        """Return what writes a file where ``path`` needs a folder."""
        return next(
            (
                self._written[str(parent)]
                for parent in PurePosixPath(path).parents
                if str(parent) in self._written
            ),
            None,
        )

    def _everywhere(self, path: str) -> tuple[str, ...]:
        model, _, rest = path.partition("/")
        inner = rest.removeprefix(f"{FIRST}/")
        if model not in self._models or inner == rest:
            return (path,)
        return tuple(
            f"{model}/{version}/{inner}" for version in self._versions.get(model, (FIRST,))
        )
