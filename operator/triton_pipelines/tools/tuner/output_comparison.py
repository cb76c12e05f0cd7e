"""Whether a setting on the server answers as the current one does: some requests of the mix are asked under both."""

from __future__ import annotations

from collections.abc import Sequence

from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .errors import OutputMismatchError, RequestShedError, SettingRefusedError
from .measured_server import MeasuredServer
from .output_equality import OutputTensors, output_difference
from .settings import BatchingSetting
from .workload import RequestTensors

# Requests of the mix whose answers another setting has to leave as they are: as many as are answered one by one in so many seconds. The first
# of few goes off alone on each of two instances; the rest waits, and shares a batch.
MAX_COMPARED = 24
MIN_COMPARED = 4
COMPARE_SECONDS = 2.0


def requests_to_compare(latency: float) -> int:
    """How many requests are compared where one takes ``latency`` seconds (0: not known)."""
    if latency <= 0:
        return MAX_COMPARED
    return max(MIN_COMPARED, min(MAX_COMPARED, int(COMPARE_SECONDS / latency)))


class OutputComparison:
    """What the current setting answers. Without :meth:`record_reference`, or where that failed, nothing is compared."""

    def __init__(self, server: MeasuredServer) -> None:
        self._server = server
        self._requests: Sequence[RequestTensors] = ()
        self._answers: list[OutputTensors] = []
        self._why_not = ""

    async def record_reference(
        self, requests: Sequence[RequestTensors], latency: float = 0.0
    ) -> str:
        """Keep what the current setting, which is on the server, answers: no other may answer anything else.

        Args:
            requests: of the mix.
            latency: usual seconds of a request (0: not known): of a slow model few are asked.

        Returns:
            Why answers are not compared, in words; empty: they are.
        """
        self._requests = requests[: requests_to_compare(latency)]
        try:
            first = await self._server.infer_each(self._requests)
            self._why_not = output_difference(first, await self._server.infer_each(self._requests))
        except RequestShedError as error:
            self._why_not = str(error)
            return f"the current setting leaves requests unanswered that are asked one by one ({error}): answers are not compared"
        if self._why_not:
            return f"the current setting answers the same requests differently from one time to the next ({self._why_not}): answers are not compared"
        self._answers = first
        return ""

    async def check(self, setting: BatchingSetting) -> None:
        """Refuse a setting, which is on the server, that answers otherwise than the current one.

        Raises:
            OtherAnswersError: it does, or nothing shows of another padding that it does not.
            SettingRefusedError: it leaves requests unanswered.
        """
        if setting == self._server.current:
            return
        mismatch = ""
        if self._answers:
            try:
                mismatch = output_difference(
                    self._answers, await self._server.infer_each(self._requests)
                )
            except RequestShedError as error:
                raise SettingRefusedError(
                    f"requests that are asked one by one stay unanswered: {error}"
                ) from error
        elif setting.padding != PaddingSetting():
            mismatch = f"nothing shows that it leaves answers as they are: {self._why_not}"
        if mismatch:
            raise OutputMismatchError(mismatch)


def shares_mismatch_cause(
    setting: BatchingSetting, refused: BatchingSetting, current: BatchingSetting
) -> bool:
    """Whether a setting cannot leave answers as they are where another one did not: it has the same padding or, where that is the current one,
    batches that are as unlike the current ones."""
    if setting.padding != refused.padding or refused.padding != current.padding:
        return setting.padding == refused.padding
    if refused.max_batch_size == current.max_batch_size:
        return (
            setting.max_batch_size == refused.max_batch_size
            and setting.model_instances == refused.model_instances
        )
    larger = refused.max_batch_size > current.max_batch_size
    return (
        setting.max_batch_size >= refused.max_batch_size
        if larger
        else setting.max_batch_size <= refused.max_batch_size
    )
