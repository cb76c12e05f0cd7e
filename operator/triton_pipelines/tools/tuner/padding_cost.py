"""Predict the cost of each padding mode, and which is cheapest. Pure.

Costs follow from the cost model of the model step and the lengths of the mix. All figures are of a
step that always finds enough requests to fill a batch. Triton's batcher takes requests in their
order and ends a batch at the first one of another shape (dynamic_batch_scheduler.cc), unless the
step takes ragged batches. So padding buys fuller batches with computed tokens: it pays if an
execution has a high fixed cost, and loses if tokens are expensive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .calibration import mean_longest
from .step_time_fit import StepCost

MAX_BUCKETS = 8
# Lengths that are considered as buckets: multiples of 8, which tensor cores like best, and no more
# than so many of them.
BUCKET_STEP = 8
_MOST_LENGTHS = 64
# Groups of one shape in a row that are counted one by one.
_LONGEST_RUN = 4096
_NO_WEIGHT = 1e-18
# Share of the time that a further bucket must save, and that a different padding must save; less is
# noise of the fit.
MIN_BUCKET_SAVING = 0.01
MIN_SAVING = 0.05


@dataclass(frozen=True, slots=True)
class RequestMix:
    """What arrives, and how it is batched."""

    lengths: tuple[int, ...]
    """Tokens of a row, equally likely."""
    rows: int
    """Rows of a request."""
    longest: int
    """Tokens to which Fixed pads."""
    batch: int
    """Most rows of a batch of the model."""
    tokenized: float = 1.0
    """Rows in one batch of the tokenizer, to whose longest Longest pads."""

    @property
    def requests(self) -> int:
        """Requests of a full batch."""
        return max(1, self.batch // self.rows)


@dataclass(frozen=True, slots=True)
class PaddingCandidate:
    """A padding mode that the pipeline could have."""

    padding: PaddingSetting
    """The padding."""
    equal_lengths: bool
    """Whether only requests of one length share a batch."""
    blocker: str = ""
    """Why it cannot be tried on the server that is measured; empty: it can."""


@dataclass(frozen=True, slots=True)
class PaddingCost:
    """The cost of a padding mode for the rows of one full batch."""

    candidate: PaddingCandidate
    """The padding mode."""
    seconds: float
    """Seconds of the model step."""
    executions: float
    """Executions of the model step."""
    tokens: float
    """Tokens computed for each real one."""
    batch: int = 0
    """Most rows of a batch at this cost."""


@dataclass(frozen=True, slots=True)
class PaddingRanking:
    """The padding modes by cost."""

    costs: tuple[PaddingCost, ...]
    """All modes, cheapest first."""
    current: PaddingCost
    """The mode in force."""
    cost: StepCost
    """The cost model of the model step."""
    rows: int
    """Rows of a full batch."""

    @property
    def best(self) -> PaddingCost:
        """The cheapest mode, or the current one if none is cheaper by more than the noise."""
        first = self.costs[0]
        return first if first.seconds <= (1 - MIN_SAVING) * self.current.seconds else self.current

    @property
    def is_better(self) -> bool:
        """Whether another mode is expected to be cheaper by more than the noise."""
        return self.best is not self.current

    @property
    def trial(self) -> PaddingCost | None:
        """The cheapest mode that is expected to be better and can be tried, if there is one."""
        return next(
            (
                one
                for one in self.costs
                if not one.candidate.blocker
                and one.seconds <= (1 - MIN_SAVING) * self.current.seconds
            ),
            None,
        )

    @property
    def figures(self) -> str:
        """Each mode with its milliseconds, cheapest first."""
        return ", ".join(map(self._figure, self.costs))

    def _figure(self, one: PaddingCost) -> str:
        batch = f" in batches of {one.batch}" if one.batch < self.rows else ""
        in_force = " (current)" if one is self.current else ""
        return f"{one.candidate.padding} {one.seconds * 1e3:.1f} ms{batch}{in_force}"


def price(cost: StepCost, mix: RequestMix, candidate: PaddingCandidate) -> PaddingCost:
    """Return the cost of a padding mode.

    If lengths must be equal, runs of requests of one length are cut into batches: a length that a
    request has with probability p begins p·(1-p)/(1-p^m) batches per request, for at most m
    requests per batch (runs are geometric). Otherwise m requests share every batch, and each is
    computed at a length between its own and the longest (``cost.spread``).
    """
    most = mix.requests
    real = mean_longest(mix.lengths, 1)
    if candidate.padding.mode == Padding.LONGEST:
        return _longest(cost, mix, candidate, real)
    shares = _shares(mix, candidate.padding)
    mean = sum(length * share for length, share in shares.items())
    if candidate.equal_lengths:
        begun = {length: batches_begun(share, most) for length, share in shares.items()}
        each = sum(
            begun[length]
            * cost.seconds(share / begun[length], mix.rows * share / begun[length], length)
            for length, share in shares.items()
        )
        return PaddingCost(candidate, most * each, most * sum(begun.values()), mean / real)
    longest = _mean_longest_of(shares, most)
    computed = mean + cost.spread * (longest - mean)
    return PaddingCost(
        candidate, cost.seconds(most, most * mix.rows, computed), 1.0, computed / real
    )


def batches_begun(share: float, most: int) -> float:
    """Return the batches that a length begins, per request of the mix.

    Args:
        share: Share of the requests that have this length.
        most: Requests of a full batch.
    """
    if share >= 1.0 - 1e-12:
        return 1.0 / most
    return share * (1.0 - share) / (1.0 - share**most)


def _longest(
    cost: StepCost, mix: RequestMix, candidate: PaddingCandidate, real: float
) -> PaddingCost:
    """Return the cost of padding to the longest row of the tokenizer's batch."""
    most = mix.requests
    together = max(1, round(mix.tokenized / mix.rows))
    own = mean_longest(mix.lengths, together * mix.rows)
    if not candidate.equal_lengths:
        # A batch takes requests of 1 + (most - 1) / together batches of the tokenizer on average,
        # and is as long as all of these.
        longest = mean_longest(mix.lengths, (together + most - 1) * mix.rows)
        computed = own + cost.spread * (longest - own)
        return PaddingCost(
            candidate, cost.seconds(most, most * mix.rows, computed), 1.0, computed / real
        )
    # Batches of the tokenizer with the same longest row follow each other in geometric runs, as
    # lengths do, and are one shape to the model.
    each = executions = 0.0
    for length, share in _longest_shares(mix, together).items():
        requests, batches = share, _group_batches_begun(share, together, most)
        each += batches * cost.seconds(requests / batches, mix.rows * requests / batches, length)
        executions += batches
    return PaddingCost(candidate, most * each, most * executions, own / real)


def _longest_shares(mix: RequestMix, together: int) -> dict[int, float]:
    """Return longest row of a group → share of such groups, ascending.

    A group has ``together`` requests.
    """
    requests = _requests(mix)
    upper = np.minimum(np.cumsum(list(requests.values())), 1.0) ** together
    shares = zip(requests, np.diff(upper, prepend=0.0), strict=True)
    return {length: float(share) for length, share in shares if share > 1e-12}


def _group_batches_begun(share: float, together: int, most: int) -> float:
    """Return the batches of at most ``most`` requests that a longest row begins, per request.

    As :func:`batches_begun`, but requests come in groups of ``together``, and each group has this
    longest row with probability ``share``.
    """
    if most % together == 0:
        return batches_begun(share, most // together) / together
    longest = _LONGEST_RUN
    if share < 1.0:  # longer runs weigh less than float precision
        longest = min(longest, math.ceil(math.log(_NO_WEIGHT) / math.log(share)))
    runs = np.arange(1, longest + 1)
    begun = np.ceil(runs * together / most)
    chance = share**runs * (1.0 - share) ** 2
    # Runs beyond the longest that is counted are cut into full batches.
    beyond = share ** (longest + 1) * (1.0 + longest * (1.0 - share))
    return float(chance @ begun + beyond * together / most) / together


def _shares(mix: RequestMix, padding: PaddingSetting) -> dict[int, float]:
    """Return length of a request after padding → share of requests, ascending."""
    shares: dict[int, float] = {}
    for length, share in _requests(mix).items():
        to = length
        if padding.mode == Padding.FIXED:
            to = mix.longest
        elif padding.mode == Padding.BUCKETED:
            to = next((bucket for bucket in padding.buckets if bucket >= length), mix.longest)
        shares[to] = shares.get(to, 0.0) + share
    return shares


def _requests(mix: RequestMix) -> dict[int, float]:
    """Return longest row of a request → share of requests, ascending."""
    values, counts = np.unique(np.minimum(mix.lengths, mix.longest), return_counts=True)
    upper = np.cumsum(counts) / counts.sum()
    share = np.diff(upper**mix.rows, prepend=0.0)
    return {int(value): float(one) for value, one in zip(values, share, strict=True)}


def _mean_longest_of(shares: Mapping[int, float], count: int) -> float:
    """Return the expected longest row of ``count`` requests."""
    upper = np.minimum(np.cumsum(list(shares.values())), 1.0) ** count
    return float(np.sum(np.array(list(shares)) * np.diff(upper, prepend=0.0)))


def best_buckets(
    cost: StepCost, mix: RequestMix, fits: Callable[[int], bool] = lambda _: True
) -> tuple[int, ...]:
    """Return the buckets with which padding Bucketed costs least if lengths must be equal.

    They are ascending, the longest row last. The result is exact over multiples of 8 (of more, for
    rows beyond 512), by dynamic programming: a bucket's cost depends only on what falls into it.
    Fewer buckets are preferred within 1 %.

    Args:
        cost: The cost model of the model step.
        mix: The requests.
        fits: Whether the model accepts rows of a length.
    """
    step = BUCKET_STEP * -(-mix.longest // (BUCKET_STEP * _MOST_LENGTHS))
    lengths = [length for length in range(step, mix.longest, step) if fits(length)] + [mix.longest]
    requests = _requests(mix)
    held = [sum(share for own, share in requests.items() if own <= length) for length in lengths]

    def one(low: float, index: int) -> float:
        share = held[index] - low
        if share <= 1e-12:
            return 0.0
        begun = batches_begun(share, mix.requests)
        return begun * cost.seconds(share / begun, mix.rows * share / begun, lengths[index])

    last = len(lengths) - 1
    # least[j]: lowest cost with the current number of buckets if the last one is lengths[j], and
    # these buckets.
    least: list[tuple[float, tuple[int, ...]]] = [
        (one(0.0, index), (length,)) for index, length in enumerate(lengths)
    ]
    found = [least[last]]
    for _ in range(MAX_BUCKETS - 1):
        least = [
            min(
                (least[below][0] + one(held[below], index), (*least[below][1], lengths[index]))
                for below in range(index)
            )
            if index
            else (float("inf"), (lengths[0],))
            for index in range(len(lengths))
        ]
        found.append(least[last])
    cheapest = min(seconds for seconds, _ in found)
    return next(
        buckets for seconds, buckets in found if seconds <= (1 + MIN_BUCKET_SAVING) * cheapest
    )


def cheapest(cost: StepCost, mix: RequestMix, candidate: PaddingCandidate) -> PaddingCost:
    """Return the cost at the best batch size up to that of the mix.

    Batch sizes are tuned as well: a step whose tokens are expensive prefers small batches of rows
    that pad each other little. ``seconds`` and ``executions`` are still those of ``mix.batch``
    rows.
    """
    sizes = {
        mix.rows * mix.requests,
        *(mix.rows * 2**power for power in range(mix.requests.bit_length())),
    }
    found = []
    for size in sorted(sizes, reverse=True):
        one = price(cost, replace(mix, batch=size), candidate)
        share = mix.requests * mix.rows / size
        found.append(
            replace(one, seconds=share * one.seconds, executions=share * one.executions, batch=size)
        )
    return min(found, key=lambda one: one.seconds)


def rank_paddings(
    cost: StepCost,
    mix: RequestMix,
    candidates: Sequence[PaddingCandidate],
    current: PaddingCandidate,
) -> PaddingRanking:
    """Return all candidates at the batch size that is best for each, cheapest first.

    Among equals the current one is first, then the given order counts.
    """
    own = cheapest(cost, mix, current)
    others = [
        cheapest(cost, mix, candidate)
        for candidate in candidates
        if candidate.padding != current.padding
    ]
    return PaddingRanking(
        tuple(sorted((own, *others), key=lambda one: one.seconds)),
        own,
        cost,
        mix.requests * mix.rows,
    )


def describe(
    ranking: PaddingRanking, verified: PaddingSetting | None = None, refused: str = ""
) -> str:
    """Return the ranking as text.

    Args:
        ranking: The ranking.
        verified: The padding that measurements of the whole pipeline verified as better.
        refused: Why the padding that was to be tried was refused.
    """
    cost, best = ranking.cost, ranking.best
    padding = best.candidate.padding
    law = (
        f"a model execution costs {cost.fixed * cost.scale * 1e3:.2f} ms plus"
        f" {cost.per_token * cost.scale * 1e6:.2f} us per token"
        if cost.fitted
        else "the model's timings do not fit a linear model, so the measured values are used"
    )
    text = f"Padding: {law}; {ranking.rows} rows of this mix take {ranking.figures}."
    if not ranking.is_better:
        return f"{text} Keep {padding}: no other is predicted to be {MIN_SAVING:.0%} cheaper."
    if verified == padding:
        return f"{text} {padding} is cheapest, and this was verified on the server."
    if best.candidate.blocker:
        text += f" {padding} is cheapest, but only predicted: {best.candidate.blocker}."
    elif refused:
        text += f" {padding} was predicted to be cheapest but is not recommended: {refused}."
    else:
        text += (
            f" {padding} is predicted to be cheapest, but no gain was verified for the "
            "whole pipeline."
        )
    if verified is not None and verified.mode:
        text += f" {verified} is verified on the server."
    return text


def can_tell_token_cost(lengths: Sequence[int]) -> bool:
    """Return whether times of rows of these lengths (as the model got them) tell a token's cost."""
    return len(set(lengths)) > 1
