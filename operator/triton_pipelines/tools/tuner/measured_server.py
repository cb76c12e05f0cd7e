"""The server that is measured: apply settings over gRPC, put load on it, restore its own setting.

Settings are applied as whole model configs. The server has no other clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from google.protobuf import json_format

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import patch_pipeline
from triton_pipelines.compile.render.errors import RefusedError, RenderError
from triton_pipelines.compile.render.model_config import configs, parse
from triton_pipelines.tools.loadgen import (
    InferenceProtocol,
    LoadGeneratorError,
    LoadResult,
    LoadSpec,
    LoadTarget,
    run_load,
)
from triton_pipelines.triton.client import UNLIMITED_BYTES, TritonClient
from triton_pipelines.triton.errors import (
    DeadlineError,
    OverloadedError,
    RejectedError,
    TritonError,
)

from .errors import RequestShedError, SettingRefusedError, TuneError
from .load_measurement import count_late, measurement_of
from .options import TuningTarget
from .output_equality import OutputTensors
from .padding_candidates import NEEDS_OTHER_FILES, needs_other_files
from .running_config import interface_difference, is_same_config, setting_difference
from .settings import BatchingSetting, setting_of, setting_patch
from .workload import RequestTensors

# Requests to a reloaded step before it is timed: its first batches build caches and kernels.
WARM_REQUESTS = 8
MAX_TRIES_ALONE = 4
READY_SECONDS = 60.0
_READY_POLL = 0.05
# A request that takes longer than this exceeds any latency budget.
TIMEOUT_SECONDS = 30.0
# Time to finish the backlog of an overload, and to repeat all requests that a queue rejected.
WORK_OFF_SECONDS = 60.0
_WORK_OFF_POLL = 0.05
# Concurrent requests after a queue rejected some: a few, then one by one.
RETRY_CONCURRENCY = (4, 1)
NOT_RESTORED = "the original settings could not be restored, so restart the Triton server"


class MeasuredServer:
    """One server and the setting that is applied to it.

    An async context manager that restores what ran when it was entered.

    Args:
        target: The server.
        pipeline: The resource that it runs.
        graph: The compiled graph of the resource.
        on_not_restored: Called with a message if the run is stopped and what ran first could not be
            restored, because whoever stops a run does not receive its errors.
    """

    def __init__(
        self,
        target: TuningTarget,
        pipeline: InferencePipeline,
        graph: Graph,
        on_not_restored: Callable[[str], None] | None = None,
    ) -> None:
        self._target, self._pipeline, self._graph = target, pipeline, graph
        self._on_not_restored = on_not_restored
        self.current = setting_of(graph)
        self.rebuild = target.rebuild
        self.client = TritonClient(
            target.address, target.control_key, max_response_bytes=UNLIMITED_BYTES
        )
        self._own = {name: parse(text) for name, text in configs(graph).items()}
        self._first: dict[str, Any] = {}
        self._running: dict[str, Any] = {}
        self.notes: list[str] = []
        self.failed = 0
        self.late = 0
        self.sent = 0
        self.carried = 0.0  # most requests/s that were answered in one load

    async def __aenter__(self) -> Self:
        """Check that the server runs this pipeline, and record its configs.

        Raises:
            TuneError: The server cannot be reached, or runs something else.
        """
        try:
            for name, desired in self._own.items():
                running = await self.client.model_config(name)
                if mismatch := interface_difference(running, desired):
                    raise TuneError(
                        f"{self._target.address}: model {name!r} runs with {mismatch}; specify "
                        "the resource with which the server was started"
                    )
                # A config that is equal in the resource's own form is also equal for the server.
                self._first[name] = desired if is_same_config(running, desired) else running
                if shown := setting_difference(running, desired):
                    self.notes.append(
                        f"model {name!r} was running with {shown} in the resource. The "
                        "tuner measures the resource's setting as the current one, and "
                        "restores the running setting afterwards"
                    )
            if cached := sorted(
                name for name, config in self._first.items() if config.response_cache.enable
            ):
                self.notes.append(
                    f"{', '.join(cached)}: the response cache is disabled during "
                    "measurements; with the cache, the server can handle repeated requests "
                    "in addition to the measured rates"
                )
        except TritonError as error:
            await self.client.close()
            raise TuneError(
                f"the server at {self._target.address} does not serve this pipeline: {error}"
            ) from error
        except TuneError:
            await self.client.close()
            raise
        self._running = dict(self._first)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # A server that was started for the run ends with it, so nothing has to be restored.
            if not self._target.own:
                await self._load(self._first)
        except (TritonError, TuneError):
            if error is None:
                raise TuneError(NOT_RESTORED) from None
            if isinstance(error, TuneError):
                raise TuneError(f"{error}; {NOT_RESTORED}") from error
            self._report_not_restored(error)
        except BaseException as stopped:
            # The run was stopped again while the setting was being restored.
            self._report_not_restored(stopped)
            raise
        finally:
            await self.client.close()

    def _report_not_restored(self, error: BaseException) -> None:
        error.add_note(NOT_RESTORED)
        if self._on_not_restored is not None:
            self._on_not_restored(NOT_RESTORED)

    @property
    def most_rows(self) -> int:
        """Most rows of one request with the setting that runs."""
        return max(1, int(self._running[self._graph.model_name].max_batch_size))

    async def apply(self, setting: BatchingSetting, warm: Sequence[RequestTensors] = ()) -> None:
        """Bring the server to a setting and warm it.

        Raises:
            SettingRefusedError: the setting is not possible here.
            TuneError: The server cannot be reached, or does not recover.
        """
        try:
            pipeline = patch_pipeline(
                self._pipeline, setting_patch(self._pipeline, self.current, setting)
            )
            graph = self._target.rebuild(pipeline)
            desired = {name: _uncached(parse(text)) for name, text in configs(graph).items()}
        except (ValueError, RefusedError, RenderError) as error:
            raise SettingRefusedError(str(error)) from error
        if needs_other_files(self._graph, graph):
            raise SettingRefusedError(NEEDS_OTHER_FILES)
        before = {**self._first, **self._running}
        try:
            try:
                await self._load(desired)
            except RejectedError as error:
                await self._load(before)
                raise SettingRefusedError(str(error)) from error
        except TritonError as error:
            raise TuneError(f"the server failed to apply {setting}: {error}") from error
        for request in list(warm)[:WARM_REQUESTS]:
            try:
                await self._infer_alone(request)
            except OverloadedError as error:
                if setting == self.current:
                    raise TuneError(
                        "with the current settings, Triton rejects requests that are sent "
                        f"one at a time ({error.reason}); raise maxQueueSize or the timeout "
                        "in the step's dynamicBatching.queuePolicy"
                    ) from error
                # Such as a delay that is longer than the queue's timeout.
                raise SettingRefusedError(
                    f"Triton rejects requests that are sent one at a time ({error.reason})"
                ) from error
            except TritonError as error:
                raise TuneError(
                    f"with {setting}, the Triton server does not respond: {error}"
                ) from error

    async def _infer_alone(self, request: RequestTensors) -> None:
        """Send one request while no other is in flight.

        It is retried: on a machine that pauses, a request may exceed its queue's timeout once, but
        a setting that rejects single requests does so every time.
        """
        for tries_left in reversed(range(MAX_TRIES_ALONE)):
            try:
                await self.client.infer(self._graph.model_name, request, deadline_s=TIMEOUT_SECONDS)
                return
            except OverloadedError:
                if not tries_left:
                    raise

    async def _load(self, desired: Mapping[str, Any]) -> None:
        """Load the configs that differ from the running ones.

        An ensemble may never allow more rows than its steps. So a lower batch size is loaded into
        the ensemble first, a higher one into the steps first.
        """
        public = self._graph.model_name
        different = [name for name, config in desired.items() if self._running.get(name) != config]
        falls = (
            desired[public].max_batch_size
            < self._running.get(public, self._first[public]).max_batch_size
        )
        for name in sorted(different, key=lambda name: (name != public) == falls):
            before = self._running.pop(
                name, None
            )  # while it loads; if loading is interrupted, what runs is unknown
            try:
                await self.client.load_model(
                    name, json_format.MessageToJson(desired[name], preserving_proto_field_name=True)
                )
            except RejectedError:
                if (
                    before is not None and name != public
                ):  # the old config stays; a refused ensemble is unloaded
                    self._running[name] = before
                raise
            self._running[name] = desired[name]
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await self.client.model_ready(public):
            if asyncio.get_running_loop().time() > deadline:
                raise TuneError(
                    f"{public} is still not ready {READY_SECONDS:.0f} s after its batching was "
                    "changed"
                )
            await asyncio.sleep(_READY_POLL)

    async def infer_each(self, requests: Sequence[RequestTensors]) -> list[OutputTensors]:
        """Return the outputs of each request.

        All are sent at once, so that they share batches; those that are rejected or time out are
        repeated with less concurrency.

        Raises:
            RequestShedError: The server rejects some of them even so.
            TuneError: It does not answer.
        """
        now = asyncio.get_running_loop().time
        until = now() + WORK_OFF_SECONDS
        found: dict[int, OutputTensors] = {}
        shed: TritonError | None = None

        async def infer(number: int, limit: asyncio.Semaphore) -> None:
            nonlocal shed
            async with limit:
                try:
                    deadline = min(TIMEOUT_SECONDS, until - now())
                    found[number] = await self.client.infer(
                        self._graph.model_name, requests[number], deadline_s=deadline
                    )
                except (OverloadedError, DeadlineError) as error:
                    shed = error

        for together in (max(1, len(requests)), *RETRY_CONCURRENCY):
            limit = asyncio.Semaphore(together)
            try:
                await asyncio.gather(
                    *(
                        infer(number, limit)
                        for number in range(len(requests))
                        if number not in found
                    )
                )
            except TritonError as error:
                raise TuneError(f"the Triton server does not respond: {error}") from error
        if len(found) < len(requests):
            raise RequestShedError(str(shed)) from shed
        return [found[number] for number in range(len(requests))]

    async def run(
        self,
        requests: Sequence[RequestTensors],
        spec: LoadSpec,
        tell: Callable[[float], None] | None = None,
    ) -> LoadResult:
        """Put load on the pipeline; ``tell`` is called with the share that is done.

        Raises:
            TuneError: the server cannot be reached.
        """
        over_http = bool(self._target.url)
        target = LoadTarget(
            url=self._target.url or self._target.address,
            model=self._graph.model_name,
            requests=requests,
            protocol=InferenceProtocol.HTTP if over_http else InferenceProtocol.GRPC,
            rows=None if self._graph.max_batch_size > 0 else 1,
        )
        reported = (
            None
            if tell is None
            else lambda progress: tell(min(1.0, progress.elapsed_s / progress.total_s))
        )
        try:
            result = await run_load(target, spec, reported)
        except LoadGeneratorError as error:
            raise TuneError(str(error)) from error
        failed, late = int(np.count_nonzero(result.error >= 0)), count_late(result)
        self.sent += len(result.error)
        self.late += late
        self.failed += failed - late
        self.carried = max(self.carried, measurement_of(result).rate)
        if late:
            await self._worked_off(requests[0])
        return result

    async def _worked_off(self, request: RequestTensors) -> None:
        """Wait until the server has finished requests that were given up.

        Neither a change nor a load must wait for them.
        """
        until = asyncio.get_running_loop().time() + WORK_OFF_SECONDS
        while True:
            try:
                await self.client.infer(
                    self._graph.model_name,
                    request,
                    deadline_s=until - asyncio.get_running_loop().time(),
                )
                return
            except OverloadedError:  # its queue is still full
                await asyncio.sleep(_WORK_OFF_POLL)
            except TritonError as error:
                raise TuneError(f"the server does not recover from an overload: {error}") from error


def _uncached(config: Any) -> Any:
    """Return the config without a response cache; it is changed in place."""
    config.ClearField("response_cache")
    return config
