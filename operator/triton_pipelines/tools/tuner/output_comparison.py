"""Compare the outputs of a setting with those of the current one, for some requests of the mix."""

from __future__ import annotations

from collections.abc import Sequence

from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .errors import OutputMismatchError, RequestShedError, SettingRefusedError
from .measured_server import MeasuredServer
from .output_equality import OutputTensors, output_difference
from .settings import BatchingSetting
from .workload import RequestTensors

# Requests of the mix that are compared: as many as are answered one by one in COMPARE_SECONDS.
# The first of few is computed alone on each of two instances; the rest waits, and shares a batch.
MAX_COMPARED = 24
MIN_COMPARED = 4
COMPARE_SECONDS = 2.0


def requests_to_compare(latency: float) -> int:
    """Return how many requests to compare if one takes ``latency`` seconds (0: unknown)."""
    if latency <= 0:
        return MAX_COMPARED
    return max(MIN_COMPARED, min(MAX_COMPARED, int(COMPARE_SECONDS / latency)))


class OutputComparison:
    """The outputs of the current setting.

    Without :meth:`record_reference`, or if that failed, nothing is compared.
    """

    def __init__(self, server: MeasuredServer) -> None:
        self._server = server
        self._requests: Sequence[RequestTensors] = ()
        self._reference: list[OutputTensors] = []
        self._problem = ""

    async def record_reference(
        self, requests: Sequence[RequestTensors], latency: float = 0.0
    ) -> str:
        """Record the outputs of the current setting, which is applied.

        Args:
            requests: Requests of the mix.
            latency: Usual seconds of a request (0: unknown); of a slow model few are compared.

        Returns:
            Why outputs are not compared; empty: they are.
        """
        self._requests = requests[: requests_to_compare(latency)]
        try:
            first = await self._server.infer_each(self._requests)
            self._problem = output_difference(first, await self._server.infer_each(self._requests))
        except RequestShedError as error:
            self._problem = str(error)
            return (
                "outputs are not compared, because Triton rejects single requests or times "
                f"out with the current setting ({error})"
            )
        if self._problem:
            return (
                "outputs are not compared, because the current setting returns different "
                f"outputs for the same requests ({self._problem})"
            )
        self._reference = first
        return ""

    async def check(self, setting: BatchingSetting) -> None:
        """Compare the outputs of a setting, which is applied, with the reference.

        Raises:
            OutputMismatchError: They differ, or cannot be compared for another padding.
            SettingRefusedError: It leaves requests unanswered.
        """
        if setting == self._server.current:
            return
        mismatch = ""
        if self._reference:
            try:
                mismatch = output_difference(
                    self._reference, await self._server.infer_each(self._requests)
                )
            except RequestShedError as error:
                raise SettingRefusedError(
                    f"Triton rejects single requests or times out: {error}"
                ) from error
        elif setting.padding != PaddingSetting():
            mismatch = f"the outputs cannot be compared: {self._problem}"
        if mismatch:
            raise OutputMismatchError(mismatch)


def shares_mismatch_cause(
    setting: BatchingSetting, refused: BatchingSetting, current: BatchingSetting
) -> bool:
    """Return whether a setting must change the outputs because a refused one did.

    It has the same padding as the refused one or, if that is the current padding, batches that
    differ as much from the current ones.
    """
    if setting.padding != refused.padding or refused.padding != current.padding:
        return setting.padding == refused.padding
    if refused.max_batch_size == current.max_batch_size:
        return (
            setting.max_batch_size == refused.max_batch_size
            and setting.model_instances == refused.model_instances
        )
    if refused.max_batch_size > current.max_batch_size:
        return setting.max_batch_size >= refused.max_batch_size
    return setting.max_batch_size <= refused.max_batch_size
