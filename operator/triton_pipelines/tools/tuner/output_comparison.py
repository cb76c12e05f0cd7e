"""Whether a setting on the server answers as the current one does: some requests of the mix are asked under both."""

from __future__ import annotations

from collections.abc import Sequence

from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .contract import Knobs
from .measured_server import Server, SettingRefusedError, UnansweredError
from .output_equality import Answer, difference
from .workload import Request

# Requests of the mix whose answers another setting has to leave as they are: as many as are answered one by one in so many seconds. The first
# of few goes off alone on each of two instances; the rest waits, and shares a batch.
COMPARED = 24
FEWEST_COMPARED = 4
COMPARE_SECONDS = 2.0


class OtherAnswersError(SettingRefusedError):
    """A setting changes answers."""


def compared(latency: float) -> int:
    """How many requests are compared where one takes ``latency`` seconds (0: not known)."""
    if latency <= 0:
        return COMPARED
    return max(FEWEST_COMPARED, min(COMPARED, int(COMPARE_SECONDS / latency)))


class Comparison:
    """What the current setting answers. Without :meth:`remember`, or where that failed, nothing is compared."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._requests: Sequence[Request] = ()
        self._answers: list[Answer] = []
        self._why_not = ""

    async def remember(self, requests: Sequence[Request], latency: float = 0.0) -> str:
        """Keep what the current setting, which is on the server, answers: no other may answer anything else.

        Args:
            requests: of the mix.
            latency: usual seconds of a request (0: not known): of a slow model few are asked.

        Returns:
            Why answers are not compared, in words; empty: they are.
        """
        self._requests = requests[: compared(latency)]
        try:
            first = await self._server.answers(self._requests)
            self._why_not = difference(first, await self._server.answers(self._requests))
        except UnansweredError as error:
            self._why_not = str(error)
            return f"the current setting leaves requests unanswered that are asked one by one ({error}): answers are not compared"
        if self._why_not:
            return f"the current setting answers the same requests differently from one time to the next ({self._why_not}): answers are not compared"
        self._answers = first
        return ""

    async def check(self, knobs: Knobs) -> None:
        """Refuse a setting, which is on the server, that answers otherwise than the current one.

        Raises:
            OtherAnswersError: it does, or nothing shows of another padding that it does not.
            SettingRefusedError: it leaves requests unanswered.
        """
        if knobs == self._server.current:
            return
        said = ""
        if self._answers:
            try:
                said = difference(self._answers, await self._server.answers(self._requests))
            except UnansweredError as error:
                raise SettingRefusedError(
                    f"requests that are asked one by one stay unanswered: {error}"
                ) from error
        elif knobs.padding != PaddingSetting():
            said = f"nothing shows that it leaves answers as they are: {self._why_not}"
        if said:
            raise OtherAnswersError(said)


def alike(knobs: Knobs, refused: Knobs, current: Knobs) -> bool:
    """Whether a setting cannot leave answers as they are where another one did not: it has the same padding or, where that is the current one,
    batches that are as unlike the current ones."""
    if knobs.padding != refused.padding or refused.padding != current.padding:
        return knobs.padding == refused.padding
    if refused.max_batch_size == current.max_batch_size:
        return (
            knobs.max_batch_size == refused.max_batch_size
            and knobs.model_instances == refused.model_instances
        )
    larger = refused.max_batch_size > current.max_batch_size
    return (
        knobs.max_batch_size >= refused.max_batch_size
        if larger
        else knobs.max_batch_size <= refused.max_batch_size
    )
