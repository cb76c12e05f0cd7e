"""Loads that time the steps: single requests, bursts, and several requests at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec

from .errors import SettingRefusedError, TuneError
from .measured_server import MeasuredServer
from .settings import BatchingSetting
from .workload import RequestTensors, Workload

BURSTS_SECONDS = 1.2
# Requests of a burst: the first is taken alone, the rest together.
BURSTS = (2, 3, 5, 9, 17)
# Time for a burst: this multiple of the time of one request with all its rows, plus seconds for
# each request.
_BURST_TIMES = 2.0
_BURST_REQUEST = 0.001
_LONGEST_CELL = 4.0
MIN_SAMPLES = 3


async def apply_largest_accepted(
    server: MeasuredServer, setting: BatchingSetting, work: Workload
) -> tuple[BatchingSetting, list[str]]:
    """Apply the largest setting that the server accepts, and return it with notes.

    First the setting as given, then with fewer instances, then with the current batch size.
    """
    bare = replace(setting, padding=PaddingSetting())
    tries = [
        (setting, ""),
        *(
            [
                (
                    bare,
                    f"padding {setting.padding}, for timing multiple lengths, was rejected: {{}}",
                )
            ]
            if setting.padding.mode
            else []
        ),
        (
            replace(bare, model_instances=server.current.model_instances),
            f"{setting.model_instances} model instances were rejected: {{}}",
        ),
        (
            replace(server.current, queue_delay=0),
            f"batch size {setting.max_batch_size} was rejected: {{}}",
        ),
    ]
    notes: list[str] = []
    reason = ""
    for one, note in tries:
        try:
            await server.apply(one, [work.uniform(work.profile_lengths[0], work.rows)] * 4)
        except SettingRefusedError as error:
            reason = str(error)
            continue
        if note:
            notes.append(note.format(reason))
        return one, notes
    raise TuneError(f"the server rejects its own setting: {reason}")


async def timed_load(
    server: MeasuredServer, requests: Sequence[RequestTensors], spec: LoadSpec
) -> LoadResult:
    """Put a short load on the server; a longer one if too few requests were answered."""
    while True:
        result = await server.run(requests, spec)
        if (
            len(result.latencies) >= max(MIN_SAMPLES, spec.concurrency)
            or spec.duration_s > _LONGEST_CELL
        ):
            # A burst may be more than a queue accepts: the requests that were answered suffice.
            few = len(result.latencies) < MIN_SAMPLES
            bad = [error for error in result.errors if few or not error.is_rejected]
            if bad:
                raise TuneError(f"requests fail while the steps are timed: {bad[0]}")
            return result
        spec = replace(
            spec,
            duration_s=3 * spec.duration_s,
            warmup_s=3 * spec.warmup_s,
            schedule=[3 * due for due in spec.schedule],
        )


def closed_loop(concurrency: int, seconds: float) -> LoadSpec:
    """Return a load of clients that never pause."""
    return LoadSpec(concurrency=concurrency, duration_s=seconds, warmup_s=seconds / 4)


def burst_spec(alone: Mapping[int, float], rows: int) -> LoadSpec:
    """Return bursts of all sizes in turn, each with time to be finished before the next.

    Args:
        alone: Rows → seconds of one request with that number of rows.
        rows: Rows of a request of a burst.
    """
    due: list[float] = []
    at = 0.0
    while at < BURSTS_SECONDS:
        for count in BURSTS:
            due += [at] * count
            fits = [seconds for size, seconds in alone.items() if size >= count * rows]
            at += _BURST_TIMES * min(fits, default=max(alone.values())) + _BURST_REQUEST * count
            if at > _LONGEST_CELL:  # a slow step gets small bursts only
                break
    # Otherwise a whole number of turns, so that every size is measured.
    return LoadSpec(schedule=due, duration_s=at, warmup_s=0.0)


def request_sizes(rows: int, largest: int) -> list[int]:
    """Return the rows of the requests: those of a request times powers of two."""
    sizes = [rows]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return sizes
