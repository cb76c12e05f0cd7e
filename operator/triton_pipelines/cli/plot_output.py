"""The file of a plot that a command draws."""

from __future__ import annotations

from pathlib import Path

from triton_pipelines.tools.loadgen.plots import PlotError, check_available

from .errors import EXIT_USAGE, CommandError
from .output import check_writable


def check_plottable(file: Path | None) -> None:
    """Refuse a plot that cannot be drawn or written, before minutes of measuring.

    Args:
        file: the file of ``--plot``; ``None``: not given.

    Raises:
        CommandError: says why it cannot be drawn or written.
    """
    check_writable(file, "--plot")
    if file is not None:
        try:
            check_available()
        except PlotError as error:
            raise CommandError(f"--plot: {error}", EXIT_USAGE) from error
