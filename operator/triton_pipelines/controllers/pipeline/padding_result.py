"""Take out of a tuning result the padding that ``Auto`` applies by itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.effective_padding import PaddingChoice
from triton_pipelines.compile.graph.padding_choice import uses_auto_padding
from triton_pipelines.compile.graph.resource_patch import (
    PaddingSetting,
    merge_patch,
    padding_fields,
    patch_pipeline,
)

from .padding_choices import VerifiedPadding, VerifiedPaddings
from .ragged_fallback import REQUEST_MAX, shorten

# Room in status.padding (512 in all) for the figures.
FIGURES_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class PaddingResult:
    """The part of a tuning result that ``Auto`` applies by itself, and the rest."""

    result: Mapping[str, Any]
    """Fields of ``status.tuning``, whose patch no longer names a padding."""
    patch: Mapping[str, Any]
    """That patch, with the padding that belongs to it written out."""
    choices: VerifiedPaddings
    """The verified choice by fingerprint: none or one."""


def split_result(
    pipeline: InferencePipeline,
    current_padding: PaddingChoice | None,
    result: Mapping[str, Any],
    run: tuple[str, str],
    budget: float | None,
    fingerprint: Callable[[InferencePipeline], str],
) -> PaddingResult:
    """Take out of a tuning result what ``Auto`` applies by itself.

    The result is unchanged if the resource names its padding.

    Args:
        pipeline: The pipeline that was measured.
        current_padding: Its padding.
        result: Fields of ``status.tuning`` as reported by the run. A patch in it was verified.
        run: Request and end (RFC 3339) of the run.
        budget: The latency budget in milliseconds within which requests were counted.
        fingerprint: Returns the fingerprint of a resource.
    """
    patch = patch_in(result)
    gain, unchanged = int(result.get("gainPercent") or 0), PaddingResult(result, patch, {})
    if (
        not patch
        or gain <= 0
        or current_padding is None
        or not uses_auto_padding(pipeline.spec.tokenizer)
    ):
        return unchanged
    try:
        patched = patch_pipeline(pipeline, patch)
        tokenizer, rest = patched.spec.tokenizer, _without_padding(patch)
        is_named = tokenizer is not None and not uses_auto_padding(tokenizer)
        if tokenizer is None or not (is_named or current_padding.measured):
            return unchanged  # Auto's rule applies before and after.
        before = setting = PaddingSetting(current_padding.chosen.value, current_padding.buckets)
        if is_named and tokenizer.padding is not None:
            # Otherwise the run verified its setting with the padding in force.
            setting = PaddingSetting(tokenizer.padding.value, tokenizer.buckets)
        target = fingerprint(patch_pipeline(pipeline, rest))
    except ValueError:
        return unchanged
    request, at = run
    figures = _figures_text(setting, before, gain, budget, bool(rest))
    measured = f"; {result['padding']}" if result.get("padding") else ""
    figures = shorten(
        f"{figures} (tuning run {shorten(request, REQUEST_MAX)!r}{measured})", FIGURES_MAX
    )
    choice = VerifiedPadding(Padding(setting.mode), setting.buckets, figures, request, at)
    return PaddingResult(
        _reported(result, rest, setting if is_named else None),
        merge_patch(rest, {"spec": {"tokenizer": padding_fields(pipeline, setting)}}),
        {target: choice},
    )


def _reported(
    result: Mapping[str, Any], rest: Mapping[str, Any], named: PaddingSetting | None
) -> dict[str, Any]:
    """Return the result for the status: without the padding that ``Auto`` applies by itself.

    Args:
        result: Fields of ``status.tuning`` as reported by the run.
        rest: The patch without its padding.
        named: The padding that the patch named.
    """
    if rest:
        reported = {**result, "patch": yaml.safe_dump(rest, sort_keys=False)}
    else:
        reported = {key: value for key, value in result.items() if key != "patch"}
    if named is not None:
        when = "once the patch in status.tuning is applied" if rest else "for this spec from now on"
        room = (
            1024
            - len(" It was measured with padding , which Auto uses .")
            - len(str(named))
            - len(when)
        )
        reported["message"] = (
            f"{shorten(str(result.get('message') or ''), room)} It was measured with padding"
            f" {named}, which Auto uses {when}.".lstrip()
        )
    return reported


def patch_in(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the merge patch of a result; empty if there is none or it cannot be read."""
    try:
        patch = yaml.safe_load(str(result.get("patch") or ""))
    except (yaml.YAMLError, ValueError, RecursionError):
        # ValueError: a text that looks like a date but is not a valid one.
        return {}
    return patch if isinstance(patch, Mapping) else {}


def _figures_text(
    setting: PaddingSetting,
    before: PaddingSetting,
    gain: int,
    budget: float | None,
    has_other_settings: bool,
) -> str:
    """Return the verified gain as text. ``has_other_settings``: others changed as well."""
    within = f" within {budget:g} ms" if budget is not None else ""
    times = f"{1 + gain / 100:.2f} times"
    if setting == before:
        return (
            f"measured: {setting} stays; with the settings of the patch it sustains {times}"
            f" its previous load{within}"
        )
    if has_other_settings:
        return (
            f"measured: {setting} with the settings of the patch sustains {times}"
            f" the load of {before} with the previous settings{within}"
        )
    return f"measured: {setting} sustains {times} the load of {before}{within}"


def _without_padding(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch without padding and buckets; empty if it has nothing else."""
    spec = dict(patch.get("spec") or {})
    tokenizer = {
        key: value
        for key, value in (spec.get("tokenizer") or {}).items()
        if key not in ("padding", "buckets")
    }
    spec = {key: value for key, value in spec.items() if key != "tokenizer"} | (
        {"tokenizer": tokenizer} if tokenizer else {}
    )
    return {key: value for key, value in patch.items() if key != "spec"} | (
        {"spec": spec} if spec else {}
    )
