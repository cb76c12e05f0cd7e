"""The paddings of one pipeline: which it could have, under which its steps are timed, and how they compare. Pure."""

from __future__ import annotations

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .calibration import Executed
from .contract import Knobs
from .padding_candidates import Rebuild, in_force, longest_of, way_of
from .padding_cost import Mix, Verdict, Way, best_buckets, judge, told
from .prediction import Pipe, Shape
from .profiling import Profile
from .workload import Workload

_PLAIN = (Padding.RAGGED, Padding.LONGEST, Padding.FIXED)


class Paddings:
    """What a pipeline's tokens could be padded to.

    Args:
        pipeline, graph: what is measured; ``rebuild``: the graph of a changed resource; ``work``: its requests.
    """

    def __init__(
        self, pipeline: InferencePipeline, graph: Graph, rebuild: Rebuild, work: Workload
    ) -> None:
        self._pipeline, self._graph, self._rebuild, self._work = pipeline, graph, rebuild, work
        self._shapes: dict[PaddingSetting, Shape] = {}
        self._own = in_force(graph) if work.text_inputs else None

    def timing(self) -> Shape | None:
        """The padding under which steps are timed, where the pipeline's own makes rows of different length equally long: what a token
        costs would not be seen. ``None``: its own does."""
        if self._own is None or self._own.mode not in (Padding.FIXED, Padding.BUCKETED):
            return None
        longest = longest_of(self._graph)
        lengths = {min(length, longest) for length in self._work.profile_lengths}
        way = self._way(PaddingSetting(Padding.BUCKETED.value, tuple(sorted({*lengths, longest}))))
        return (
            self._shapes[way.padded]
            if way is not None and not way.hindrance and len(lengths) > 1
            else None
        )

    def shape(self, padded: PaddingSetting) -> Shape:
        """What a padding that was judged makes of the steps."""
        return self._shapes[padded]

    def judge(
        self, pipe: Pipe, profile: Profile, tokenized: Executed | None, current: Knobs
    ) -> Verdict | None:
        """How they compare for the model step with the current batch size; ``None``: what a token costs cannot be told.

        ``tokenized``: what the tokenizer did under load.
        """
        stage = next((stage for stage in pipe.stages if stage.name == pipe.model), None)
        if self._own is None or stage is None or not told(profile.token_lengths):
            return None
        rows = tokenized.rows if tokenized is not None else 1.0
        mix = Mix(
            self._work.lengths,
            self._work.rows,
            longest_of(self._graph),
            current.max_batch_size,
            rows,
        )
        ways = [
            way for mode in _PLAIN if (way := self._way(PaddingSetting(mode.value))) is not None
        ]
        # Buckets are of use only where a batch ends at another length; which are best, the other ways' shape does not matter.
        probe = self._way(PaddingSetting(Padding.BUCKETED.value, (mix.longest,)))
        if probe is not None and probe.equal:
            buckets = best_buckets(stage.cost, mix, self._fits)
            best = (
                self._way(PaddingSetting(Padding.BUCKETED.value, buckets))
                if len(buckets) > 1
                else None
            )
            ways += [best] if best is not None else []
        own = Way(self._own, stage.equal)
        return judge(stage.cost, mix, ways, own)

    def _fits(self, length: int) -> bool:
        """Whether the pipeline may have rows of this length."""
        return (
            self._way(PaddingSetting(Padding.BUCKETED.value, (length, longest_of(self._graph))))
            is not None
        )

    def _way(self, padded: PaddingSetting) -> Way | None:
        found = way_of(self._pipeline, self._graph, self._rebuild, padded)
        if found is None:
            return None
        self._shapes[padded] = found[1]
        return found[0]
