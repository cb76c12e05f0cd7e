"""The padding modes of one pipeline. Pure.

This module selects which modes the pipeline could use and under which mode its steps are timed, and
compares their costs.
"""

from __future__ import annotations

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .calibration import StepExecutions
from .padding_candidates import Rebuild, current_padding, longest_row, padding_candidate
from .padding_cost import (
    PaddingCandidate,
    PaddingRanking,
    RequestMix,
    best_buckets,
    can_tell_token_cost,
    rank_paddings,
)
from .prediction import PaddingEffect, PipelineModel
from .profiling import PipelineProfile
from .settings import BatchingSetting
from .workload import Workload

_MODES_WITHOUT_BUCKETS = (Padding.RAGGED, Padding.LONGEST, Padding.FIXED)


class PaddingOptions:
    """The padding modes that a pipeline could use.

    Args:
        pipeline: The resource that is measured.
        graph: Its compiled graph.
        rebuild: Compiles the graph of a changed resource.
        work: The requests.
    """

    def __init__(
        self, pipeline: InferencePipeline, graph: Graph, rebuild: Rebuild, work: Workload
    ) -> None:
        self._pipeline, self._graph, self._rebuild, self._work = pipeline, graph, rebuild, work
        self._shapes: dict[PaddingSetting, PaddingEffect] = {}
        self._own = current_padding(graph) if work.text_inputs else None

    def timing(self) -> PaddingEffect | None:
        """Return the padding under which steps are timed.

        ``None``: the pipeline's own. If that makes rows of different length equally long, the cost
        of a token would not be visible.
        """
        if self._own is None or self._own.mode not in (Padding.FIXED, Padding.BUCKETED):
            return None
        longest = longest_row(self._graph)
        lengths = {min(length, longest) for length in self._work.profile_lengths}
        candidate = self._candidate(
            PaddingSetting(Padding.BUCKETED.value, tuple(sorted({*lengths, longest})))
        )
        return (
            self._shapes[candidate.padding]
            if candidate is not None and not candidate.blocker and len(lengths) > 1
            else None
        )

    def effect(self, padding: PaddingSetting) -> PaddingEffect:
        """Return the effect on the steps of a padding mode that was considered before."""
        return self._shapes[padding]

    def rank_paddings(
        self,
        pipe: PipelineModel,
        profile: PipelineProfile,
        tokenized: StepExecutions | None,
        current: BatchingSetting,
    ) -> PaddingRanking | None:
        """Rank the padding modes for the model step, with the current batch size.

        Args:
            pipe: The model of the pipeline.
            profile: Execution times of the steps.
            tokenized: Executions of the tokenizer under load, if known.
            current: The current setting.

        Returns:
            The ranking; ``None`` if the cost of a token is unknown.
        """
        stage = next((stage for stage in pipe.stages if stage.name == pipe.model), None)
        if self._own is None or stage is None or not can_tell_token_cost(profile.token_lengths):
            return None
        rows = tokenized.rows if tokenized is not None else 1.0
        mix = RequestMix(
            self._work.lengths,
            self._work.rows,
            longest_row(self._graph),
            current.max_batch_size,
            rows,
        )
        candidates = [
            candidate
            for mode in _MODES_WITHOUT_BUCKETS
            if (candidate := self._candidate(PaddingSetting(mode.value))) is not None
        ]
        # Buckets help only if a batch ends at a request of another length. Which buckets are best
        # does not depend on the effects of the other modes.
        probe = self._candidate(PaddingSetting(Padding.BUCKETED.value, (mix.longest,)))
        if probe is not None and probe.equal_lengths:
            buckets = best_buckets(stage.cost, mix, self._fits)
            best = (
                self._candidate(PaddingSetting(Padding.BUCKETED.value, buckets))
                if len(buckets) > 1
                else None
            )
            candidates += [best] if best is not None else []
        own = PaddingCandidate(self._own, stage.equal_lengths)
        return rank_paddings(stage.cost, mix, candidates, own)

    def _fits(self, length: int) -> bool:
        """Return whether the pipeline may have rows of this length."""
        return (
            self._candidate(
                PaddingSetting(Padding.BUCKETED.value, (length, longest_row(self._graph)))
            )
            is not None
        )

    def _candidate(self, padding: PaddingSetting) -> PaddingCandidate | None:
        found = padding_candidate(self._pipeline, self._graph, self._rebuild, padding)
        if found is None:
            return None
        self._shapes[padding] = found[1]
        return found[0]
