"""The contract between renderer and loader: load plan, live counts, resolved sources and report.

``plan.json`` is stored in the revision's ConfigMap (:data:`triton_pipelines.api.names.KEY_PLAN`),
``counts.json`` and ``resolved.json`` in the live ConfigMap. The report is the loader's termination
message. Both sides use these models, so neither can write a plan that the other cannot read. JSON
names are camelCase, Python names snake_case. Every model is immutable, strict and rejects unknown
fields, so that an older loader never silently skips a setting of a newer plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, RootModel, model_validator

from triton_pipelines.api.loadreport import (
    INFORMATIVE,
    REPORT_MAX_BYTES,
    LoadFinding,
    LoadReason,
    LoadReport,
    ReportSource,
    ResolvedSource,
    ResolvedSources,
    diverged_sources,
    resolution,
    same_source,
)
from triton_pipelines.api.loadtypes import Key, LoadModel, Name, RelativePath, source_key

from .loadchecks import (
    PlanAdapt,
    PlanCheck,
    PlanPlace,
    PlanPool,
    PlanRaggedInput,
    PlanTensor,
    PlanTokens,
    shape_input,
)
from .loadfetch import FetchKind, PlanFetch, PlanVersions

__all__ = [
    "INFORMATIVE",
    "REPORT_MAX_BYTES",
    "FetchKind",
    "LiveCounts",
    "LoadFinding",
    "LoadPlan",
    "LoadReason",
    "LoadReport",
    "PlanAdapt",
    "PlanCheck",
    "PlanCount",
    "PlanFetch",
    "PlanFile",
    "PlanLibrary",
    "PlanPlace",
    "PlanPool",
    "PlanRaggedInput",
    "PlanTensor",
    "PlanTokens",
    "PlanVersions",
    "ReportSource",
    "ResolvedSource",
    "ResolvedSources",
    "diverged_sources",
    "resolution",
    "same_source",
    "shape_input",
    "source_key",
]

PLAN_VERSION: Final = 1


class PlanFile(LoadModel):
    """A file written verbatim from the revision's ConfigMap."""

    key: Key
    path: RelativePath


class PlanCount(LoadModel):
    """A step whose instance count may change while the pod runs."""

    step: Name
    path: RelativePath
    """Its config.pbtxt, relative to the repository."""
    initial: Annotated[int, Field(ge=1)]
    min: Annotated[int, Field(ge=1)]
    max: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _ordered(self) -> PlanCount:
        if not self.min <= self.initial <= self.max:
            raise ValueError(
                f"step {self.step}: min {self.min} <= initial {self.initial} <= max "
                f"{self.max} is required"
            )
        return self

    def clamp(self, desired: int | None) -> int:
        """Return the number of instances that a new pod starts with, within min and max.

        Args:
            desired: The desired count; ``None`` if none has been recorded yet, which means
                ``initial``.
        """
        return max(self.min, min(self.max, self.initial if desired is None else desired))


class PlanLibrary(LoadModel):
    """A backend library of the operator, which the loader has for its own machine."""

    step: Name
    path: RelativePath
    """Its place, relative to the repository."""
    field: str
    """The field of the resource that decides whether it is used."""


class LoadPlan(LoadModel):
    """Everything the loader does for one pod of one revision, in the order of the fields."""

    version: Literal[1] = PLAN_VERSION
    pipeline: str
    namespace: str
    revision: str
    files: Annotated[tuple[PlanFile, ...], Field(strict=False)] = ()
    empty_dirs: Annotated[tuple[RelativePath, ...], Field(strict=False)] = ()
    counts: Annotated[tuple[PlanCount, ...], Field(strict=False)] = ()
    fetch: Annotated[tuple[PlanFetch, ...], Field(strict=False)] = ()
    checks: Annotated[tuple[PlanCheck, ...], Field(strict=False)] = ()
    pool: Annotated[tuple[PlanPool, ...], Field(strict=False)] = ()
    adapt: Annotated[tuple[PlanAdapt, ...], Field(strict=False)] = ()
    libraries: Annotated[tuple[PlanLibrary, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> LoadPlan:
        # The contents of folders are known only once they are fetched, so the loader checks their
        # files for collisions.
        files = [
            item.target for item in self.fetch if item.kind in (FetchKind.FILE, FetchKind.TOKENIZER)
        ]
        own = [item.path for item in self.files] + [item.path for item in self.libraries]
        targets = own + files
        twice = sorted({path for path in targets if targets.count(path) > 1})
        if twice:
            raise ValueError(f"files are written twice: {', '.join(twice)}")
        models = [item.target for item in self.fetch if item.kind is FetchKind.MODEL]
        keys = [item.key for item in self.fetch]
        for what, names in (("models fetched", models), ("sources named", keys)):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what} twice: {', '.join(twice)}")
        missing = sorted({item.path for item in self.counts} - {item.path for item in self.files})
        if missing:
            raise ValueError(
                f"counts refers to files that the plan does not write: {', '.join(missing)}"
            )
        return self

    def to_json(self) -> str:
        """Return the plan as canonical JSON (sorted keys, one trailing newline).

        Equal plans give equal bytes. Fields that were added to the contract later are left out
        while they are unset: a plan that does not use them keeps its bytes, and thereby the
        pipeline's revision.
        """
        plan: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        for part in ("pool", "adapt", "libraries"):
            if not plan[part]:
                del plan[part]
        for part, later in _LATER.items():
            for item in plan.get(part, ()):
                for name in later:
                    if not item[name]:
                        del item[name]
                if isinstance(item.get("versions"), dict):
                    item["versions"] = {
                        name: value for name, value in item["versions"].items() if value is not None
                    }
        return json.dumps(plan, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


_LATER: Final[Mapping[str, tuple[str, ...]]] = {
    "fetch": ("slot", "file", "sourceFile", "whole", "versions", "pinned", "cutsPairs"),
    "checks": ("path", "model", "file", "tokens", "controls", "stateInputs", "stateOutputs"),
    "adapt": ("path", "model", "file"),
}


class LiveCounts(RootModel[dict[str, Annotated[int, Field(ge=0)]]]):
    """``counts.json``: desired instances by step; new pods start with them."""

    model_config = ConfigDict(frozen=True, strict=True)
