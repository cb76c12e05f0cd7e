"""Check the models of a pipeline before they become a resource: what Triton would refuse.

The rules are those of :mod:`triton_pipelines.compile.validation`, so that the message names the
file and the field of the repository instead of a field of a resource that is not written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from triton_pipelines.api.wording import listed
from triton_pipelines.compile.validation import RuleId, ServerFacts, validate_repository

from .import_notes import ModelRepositoryError
from .repository import RepositoryModel

# Rules of single releases, which depend on the server of the resource, and of files that the
# import replaces.
_NOT_HERE: Final = frozenset(
    {
        RuleId.FIELD_VERSION,
        RuleId.LABELS,
        RuleId.LABELS_FOLDER,
        RuleId.BATCH_STRATEGY_FOLDER,
    }
)
_SHOWN: Final = 12


def check_models(
    checked: Sequence[RepositoryModel],
    models: Mapping[str, RepositoryModel],
    *,
    optional: bool = False,
) -> None:
    """Refuse models that Triton would not load.

    Args:
        checked: the models of the pipeline.
        models: all models of the repository, which ensembles refer to.
        optional: whether the pipeline works without them.

    Raises:
        ModelRepositoryError: a model would not load; lists file, field, problem and remedy.
    """
    names = {model.name for model in checked}
    reached = {**{model.name: model for model in checked}, **models}
    # Folders without any version are incomplete copies; what they would have is unknown.
    facts = ServerFacts(
        files={
            name: dict.fromkeys((f"{version}/" for version in model.versions), 0)
            # Sizes do not matter here.
            | dict.fromkeys(model.other_files, sys.maxsize)
            for name, model in reached.items()
            if model.versions
        }
    )
    violations = validate_repository({name: model.config for name, model in reached.items()}, facts)
    found = [
        f"{reached[violation.model].origin}: {violation.field}: {violation.message}"
        if violation.field
        else f"{reached[violation.model].origin}: {violation.message}"
        for violation in violations
        if violation.model in names and violation.rule not in _NOT_HERE
    ]
    found += [text for model in checked for text in _missing_versions(model)]
    if not found:
        return
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"and {len(found) - _SHOWN} more errors"]
    if optional:
        blamed = list(dict.fromkeys(one.model for one in violations if one.model in names))
        leave_out = " ".join(f"--without {name}" for name in blamed)
        found[-1] += f"; to import the pipeline without this model, use {leave_out}"
    raise ModelRepositoryError("\n".join(found))


def _missing_versions(model: RepositoryModel) -> Iterator[str]:
    """Yield versions that the policy pins and that do not exist; Triton only logs them."""
    pinned = model.config.version_policy.specific.versions
    missing = [version for version in pinned if version not in model.versions]
    if model.versions and missing:
        present = listed([str(version) for version in sorted(model.versions)])
        does, versions, folder = (
            ("does", "version", "directory")
            if len(missing) == 1
            else ("do", "versions", "directories")
        )
        yield (
            f"{model.origin}: version_policy.specific.versions: {versions} "
            f"{listed([str(version) for version in missing])} {does} not exist; the directory "
            f"contains only {'version' if len(model.versions) == 1 else 'versions'} {present}. "
            f"Remove the {versions} from the list, or add the version {folder}"
        )
