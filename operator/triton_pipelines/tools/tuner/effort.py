"""How much a tuning run measures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton_pipelines.api.v1alpha1 import TuningMode

from .options import TuningOptions


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """How much is measured.

    Seconds of the calibration, of a point and of its warm-up; points at most; repeats of what
    counts; seconds in which the measuring is done: no point is begun that would take longer.
    """

    calibration: float
    seconds: float
    warmup: float
    points: int
    repeats: int
    limit: float


# Quick: five points behind the calibration, six in all, with warm-up within 20 s each, and three
# minutes with the report and the way back.
EFFORTS = {
    TuningMode.QUICK: TuningEffort(
        calibration=8.0, seconds=16.0, warmup=1.5, points=5, repeats=2, limit=170.0
    ),
    TuningMode.THOROUGH: TuningEffort(
        calibration=20.0, seconds=60.0, warmup=5.0, points=16, repeats=4, limit=3600.0
    ),
}


def effort(options: TuningOptions) -> TuningEffort:
    """How much is measured for these settings."""
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
