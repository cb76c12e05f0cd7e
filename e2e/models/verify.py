"""Whether the generated files of the sample models are what their scripts make."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from e2e.models import golden, sentiment

# One unit of the last digit that is stored: rounding may fall either way on another machine.
HEAD_TOLERANCE: Final = 1.01 * 10.0**-sentiment.DECIMALS
GOLDEN_TOLERANCE: Final = 1.01 * 10.0**-golden.DECIMALS
# Processors order the additions of a matrix product differently.
RELATIVE_TOLERANCE: Final = 1e-9


def differences(stored: Any, made: Any, tolerance: float, where: str = "") -> list[str]:
    """Return the paths at which two JSON values differ.

    Numbers may differ by ``tolerance`` and :data:`RELATIVE_TOLERANCE`. Everything else must be
    equal.
    """
    if isinstance(stored, dict) and isinstance(made, dict):
        if stored.keys() != made.keys():
            return [f"{where}: keys {sorted(stored)} instead of {sorted(made)}"]
        return [
            found
            for key in made
            for found in differences(stored[key], made[key], tolerance, f"{where}.{key}")
        ]
    if isinstance(stored, list) and isinstance(made, list):
        if len(stored) != len(made):
            return [f"{where}: {len(stored)} items instead of {len(made)}"]
        pairs = enumerate(zip(stored, made, strict=True))
        return [
            found
            for number, (a, b) in pairs
            for found in differences(a, b, tolerance, f"{where}[{number}]")
        ]
    if isinstance(stored, float) and isinstance(made, float):
        equal = math.isclose(stored, made, rel_tol=RELATIVE_TOLERANCE, abs_tol=tolerance)
        return [] if equal else [f"{where}: {stored!r} instead of {made!r}"]
    return (
        []
        if stored == made and type(stored) is type(made)
        else [f"{where}: {stored!r} instead of {made!r}"]
    )


def _compare(path: Path, made: dict[str, Any], tolerance: float, command: str) -> list[str]:
    advice = f"run `python -m e2e.models {command}`"
    if not path.is_file():
        return [f"{path.name} is missing: {advice}"]
    found = differences(json.loads(path.read_text(encoding="utf-8")), made, tolerance)
    return (
        [f"{path.name} is out of date ({len(found)} differences, first {found[0]}): {advice}"]
        if found
        else []
    )


def findings() -> list[str]:
    """Return what is out of date, with the command that fixes it.

    The list is empty if everything is current. Takes about 20 s.
    """
    found = []
    for path, described in sentiment.HEADS.items():
        found += _compare(path, sentiment.train(described=described), HEAD_TOLERANCE, "train")
    for name, made in golden.compute().items():
        found += _compare(golden.FOLDER / name, made, GOLDEN_TOLERANCE, "golden")
    return found
