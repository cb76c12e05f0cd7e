"""Read what a load starts from: the plan, the counts and the resolved sources."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from triton_pipelines.api import names
from triton_pipelines.api.loadplan import (
    LiveCounts,
    LoadPlan,
    LoadReason,
    ResolvedSource,
    ResolvedSources,
)
from triton_pipelines.api.wording import validation_message
from triton_pipelines.loader.errors import LoaderError


def read_plan(folder: Path) -> LoadPlan:
    """Return the revision's plan.

    Raises:
        LoaderError: the plan is not readable or not valid; names the first field in error.
    """
    path = folder / names.KEY_PLAN
    try:
        return LoadPlan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR, f"{path} cannot be read: {error.strerror}"
        ) from error
    except ValidationError as error:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            f"{path}: {first_error(error)} (the versions of operator and loader might differ)",
        ) from error


def first_error(error: ValidationError) -> str:
    """Return the first error of a document, with the path of the field."""
    first = error.errors(include_url=False, include_input=False)[0]
    message = validation_message(str(first["msg"]))
    return ": ".join(part for part in (".".join(map(str, first["loc"])), message) if part)


def read_counts(folder: Path, log: logging.Logger) -> dict[str, int]:
    """Return the desired instance counts by step; none if absent.

    Invalid ones are logged and ignored: the pod then starts with initial counts.
    """
    path = folder / names.KEY_COUNTS
    try:
        return LiveCounts.model_validate_json(path.read_bytes()).root
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        log.warning(
            "%s is not usable, initial counts are used: %s", path, str(error).partition("\n")[0]
        )
        return {}


def read_resolved(folder: Path, revision: str) -> dict[str, ResolvedSource]:
    """Return what each step's source was at the first load of ``revision``.

    Raises:
        LoaderError: the content is not valid; to ignore it could make pods differ.
    """
    path = folder / names.KEY_RESOLVED
    try:
        return ResolvedSources.model_validate_json(path.read_bytes()).root.get(revision, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR, f"{path} is not valid: {str(error).partition(chr(10))[0]}"
        ) from error
