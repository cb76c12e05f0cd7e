"""Whether the GPU tier can run here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

MODULES = ("torch", "pynvml")
"""What the tier imports beyond the development environment; requirements/gpu.txt brings both."""


def devices(folder: Path = Path("/dev")) -> list[Path]:
    """Device files of NVIDIA GPUs: ``nvidia0``, ``nvidia1``, ...; ``nvidiactl`` alone is no GPU."""
    return sorted(
        path for path in folder.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()
    )


def obstacle(
    found: Sequence[Path] | None = None,
    installed: Callable[[str], object] = importlib.util.find_spec,
) -> str:
    """Return why the tier cannot run here; "" if it can.

    A GPU whose driver does not respond is a failure of the tier and not an obstacle.

    Args:
        found: The GPUs' device files; by default those of this machine.
        installed: Returns whether a module can be imported.
    """
    if not (devices() if found is None else found):
        return "no NVIDIA GPU here (no /dev/nvidia0)"
    missing = [module for module in MODULES if not installed(module)]
    if missing:
        return (
            f"{' and '.join(missing)} not installed in this environment: run `make gpu`, which "
            "installs requirements/gpu.txt"
        )
    return ""
