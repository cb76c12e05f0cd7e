"""The effort of a tuning run: how much it measures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton_pipelines.api.tuning import TuningMode

from .options import TuningOptions


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """How much is measured."""

    calibration: float
    """Seconds of the calibration."""
    seconds: float
    """Seconds of a point."""
    warmup: float
    """Seconds of a point's warm-up."""
    points: int
    """Maximum number of points."""
    repeats: int
    """Repeats of the measurements that decide."""
    limit: float
    """Seconds for all measurements: no point is started that would end later."""


# Quick: five points after the calibration, so six in all, each within 20 s including warm-up; three
# minutes including the report and restoring the server's own setting.
EFFORTS = {
    TuningMode.QUICK: TuningEffort(
        calibration=8.0, seconds=16.0, warmup=1.5, points=5, repeats=2, limit=170.0
    ),
    TuningMode.THOROUGH: TuningEffort(
        calibration=20.0, seconds=60.0, warmup=5.0, points=16, repeats=4, limit=3600.0
    ),
}


def effort(options: TuningOptions) -> TuningEffort:
    """Return the effort for these options."""
    usual = EFFORTS[options.mode]
    if options.seconds is None:
        return usual
    limit = usual.limit + usual.points * max(0.0, options.seconds - usual.seconds)
    return replace(
        usual,
        seconds=options.seconds,
        calibration=min(usual.calibration, options.seconds),
        limit=limit,
    )
