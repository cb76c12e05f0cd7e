"""The server that is measured: settings put on it by whole configs over gRPC, load, statistics. It serves nobody else, and gets back what ran."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import patch_pipeline
from triton_pipelines.compile.render.errors import RefusedError, RenderError
from triton_pipelines.compile.render.model_config import configs, parse
from triton_pipelines.tools import loadgen
from triton_pipelines.tools.loadgen import LoadError, LoadResult, LoadSpec, Protocol, Target
from triton_pipelines.tools.loadgen.summary import too_late, turned_away
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import (
    DeadlineError,
    OverloadedError,
    RejectedError,
    TritonError,
)

from .acceptance import CARRIED_SHARE
from .contract import Knobs, Load, TuneError, TuneTarget
from .knobs import knobs_of, patch_of
from .output_equality import Answer
from .padding_candidates import OTHER_FILES, other_files
from .running_config import agree, other_interface, setting
from .workload import Request

# A step that was loaded anew is asked so often before it is timed: its first batches build caches and kernels.
WARM_REQUESTS = 8
TRIES_ALONE = 4
READY_SECONDS = 60.0
_READY_POLL = 0.05
# A request that takes longer than this has no place under any wall.
TIMEOUT_SECONDS = 30.0
# For all that a server still computes of an overload; and for all that is asked again of what a queue turned away.
WORK_OFF_SECONDS = 60.0
_WORK_OFF_POLL = 0.05
# Requests at once, where a queue does not take all: a few, then one by one.
FEWER = (4, 1)
NOT_PUT_BACK = "the first setting could not be put back on the server; start it anew"


class SettingRefusedError(Exception):
    """The server, or the checks of the resource, refuse a setting; what ran before goes on."""


class UnansweredError(Exception):
    """The server sheds requests, or is late with them, though they are asked one by one."""


class Server:
    """One server and the setting that it runs; an async context manager that puts back what ran when it was entered.

    Args:
        target: where it is.
        pipeline, graph: what it runs.
        left: told in words where the run is stopped and what ran first could not be put back: who stops a run does not get its errors.
    """

    def __init__(
        self,
        target: TuneTarget,
        pipeline: InferencePipeline,
        graph: Graph,
        left: Callable[[str], None] | None = None,
    ) -> None:
        self._target, self._pipeline, self._graph, self._left = target, pipeline, graph, left
        self.current = knobs_of(graph)
        self.rebuild = target.rebuild
        self.client = TritonClient(target.address, target.control_key)
        self._own = {name: parse(text) for name, text in configs(graph).items()}
        self._first: dict[str, Any] = {}
        self._running: dict[str, Any] = {}
        self.notes: list[str] = []
        self.failed = 0
        self.late = 0
        self.sent = 0
        self.carried = 0.0  # most requests/s that were answered in one load

    async def __aenter__(self) -> Self:
        """Check that it runs this pipeline, and keep what exactly that is.

        Raises:
            TuneError: it cannot be reached, or runs something else.
        """
        try:
            for name, wanted in self._own.items():
                running = await self.client.model_config(name)
                if said := other_interface(running, wanted):
                    raise TuneError(
                        f"{self._target.address}: {name} runs with {said}; give the resource that the server was started from"
                    )
                # The same in the resource's own words is taken for the same by the server, too.
                self._first[name] = wanted if agree(running, wanted) else running
                if shown := setting(running, wanted):
                    self.notes.append(
                        f"{name} ran with {shown} in the resource: the resource's setting is measured as the current one, and what ran is put back"
                    )
            if cached := sorted(
                name for name, config in self._first.items() if config.response_cache.enable
            ):
                self.notes.append(
                    f"{', '.join(cached)}: the response cache is off while settings are measured, since answers out of it tell nothing of a setting;"
                    " requests that repeat come on top of what is measured"
                )
        except TritonError as error:
            await self.client.close()
            raise TuneError(
                f"{self._target.address}: does not run this pipeline as it should: {error}"
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
            # A server that was started for the run ends with it: nothing is owed to it.
            if not self._target.own:
                await self._load(self._first)
        except (TritonError, TuneError):
            if error is None:
                raise TuneError(NOT_PUT_BACK) from None
            if isinstance(error, TuneError):
                raise TuneError(f"{error}; {NOT_PUT_BACK}") from error
            self._tell_left(error)
        except BaseException as stopped:
            # Stopped again while it is put back.
            self._tell_left(stopped)
            raise
        finally:
            await self.client.close()

    def _tell_left(self, error: BaseException) -> None:
        error.add_note(NOT_PUT_BACK)
        if self._left is not None:
            self._left(NOT_PUT_BACK)

    @property
    def most_rows(self) -> int:
        """Most rows of one request with the setting that runs."""
        return max(1, int(self._running[self._graph.model_name].max_batch_size))

    async def put(self, knobs: Knobs, warm: Sequence[Request] = ()) -> None:
        """Bring the server to a setting and warm it.

        Raises:
            SettingRefusedError: the setting is not possible here.
            TuneError: the server is gone, or does not come back.
        """
        try:
            pipeline = patch_pipeline(self._pipeline, patch_of(self._pipeline, self.current, knobs))
            graph = self._target.rebuild(pipeline)
            wanted = {name: _uncached(parse(text)) for name, text in configs(graph).items()}
        except (ValueError, RefusedError, RenderError) as error:
            raise SettingRefusedError(str(error)) from error
        if other_files(self._graph, graph):
            raise SettingRefusedError(OTHER_FILES)
        before = {**self._first, **self._running}
        try:
            try:
                await self._load(wanted)
            except RejectedError as error:
                await self._load(before)
                raise SettingRefusedError(str(error)) from error
        except TritonError as error:
            raise TuneError(f"the server does not take {knobs}: {error}") from error
        for request in list(warm)[:WARM_REQUESTS]:
            try:
                await self._ask_alone(request)
            except OverloadedError as error:
                if knobs == self.current:
                    raise TuneError(
                        f"the current setting turns away a request that is alone: {error.reason}; raise the queue's limits"
                    ) from error
                # Such as a delay that is longer than the queue's timeout.
                raise SettingRefusedError(
                    f"it turns away a request that is alone: {error.reason}"
                ) from error
            except TritonError as error:
                raise TuneError(f"the server does not answer with {knobs}: {error}") from error

    async def _ask_alone(self, request: Request) -> None:
        """Ask one request, with nothing beside it. A machine that pauses may keep one longer than its queue's timeout; a setting that turns
        away what is alone does so every time."""
        for tries_left in reversed(range(TRIES_ALONE)):
            try:
                await self.client.infer(self._graph.model_name, request, deadline_s=TIMEOUT_SECONDS)
                return
            except OverloadedError:
                if not tries_left:
                    raise

    async def _load(self, wanted: Mapping[str, Any]) -> None:
        """Load what differs. A batch size that falls goes from the ensemble inwards, one that rises outwards: an ensemble may never allow
        more rows than its steps."""
        public = self._graph.model_name
        different = [name for name, config in wanted.items() if self._running.get(name) != config]
        falls = (
            wanted[public].max_batch_size
            < self._running.get(public, self._first[public]).max_batch_size
        )
        for name in sorted(different, key=lambda name: (name != public) == falls):
            before = self._running.pop(
                name, None
            )  # while it loads, and where that is broken off, nobody knows what runs
            try:
                await self.client.load_model(
                    name, json_format.MessageToJson(wanted[name], preserving_proto_field_name=True)
                )
            except RejectedError:
                if (
                    before is not None and name != public
                ):  # what ran goes on; a refused ensemble is taken down
                    self._running[name] = before
                raise
            self._running[name] = wanted[name]
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await self.client.model_ready(public):
            if asyncio.get_running_loop().time() > deadline:
                raise TuneError(
                    f"{public} is not ready {READY_SECONDS:.0f} s after a change of its batching"
                )
            await asyncio.sleep(_READY_POLL)

    async def answers(self, requests: Sequence[Request]) -> list[Answer]:
        """What the server answers to each of some requests: all are asked at once, so that they share batches, and those that are turned away,
        or are not answered in time, again with less company.

        Raises:
            UnansweredError: it sheds some of them even so.
            TuneError: it does not answer.
        """
        now = asyncio.get_running_loop().time
        until = now() + WORK_OFF_SECONDS
        found: dict[int, Answer] = {}
        shed: TritonError | None = None

        async def ask(number: int, limit: asyncio.Semaphore) -> None:
            nonlocal shed
            async with limit:
                try:
                    deadline = min(TIMEOUT_SECONDS, until - now())
                    found[number] = await self.client.infer(
                        self._graph.model_name, requests[number], deadline_s=deadline
                    )
                except (OverloadedError, DeadlineError) as error:
                    shed = error

        for together in (max(1, len(requests)), *FEWER):
            limit = asyncio.Semaphore(together)
            try:
                await asyncio.gather(
                    *(ask(number, limit) for number in range(len(requests)) if number not in found)
                )
            except TritonError as error:
                raise TuneError(f"the server does not answer: {error}") from error
        if len(found) < len(requests):
            raise UnansweredError(str(shed)) from shed
        return [found[number] for number in range(len(requests))]

    async def run(
        self,
        requests: Sequence[Request],
        spec: LoadSpec,
        tell: Callable[[float], None] | None = None,
    ) -> LoadResult:
        """Put load on the pipeline. ``tell``: told the share that is done.

        Raises:
            TuneError: the server cannot be reached.
        """
        over_http = bool(self._target.url)
        target = Target(
            url=self._target.url or self._target.address,
            model=self._graph.model_name,
            requests=requests,
            protocol=Protocol.HTTP if over_http else Protocol.GRPC,
            rows=None if self._graph.max_batch_size > 0 else 1,
        )
        told = (
            None
            if tell is None
            else lambda progress: tell(min(1.0, progress.elapsed_s / progress.total_s))
        )
        try:
            result = await loadgen.run(target, spec, told)
        except LoadError as error:
            raise TuneError(str(error)) from error
        failed, late = int(np.count_nonzero(result.error >= 0)), late_in(result)
        self.sent += len(result.error)
        self.late += late
        self.failed += failed - late
        self.carried = max(self.carried, load_of(result).rate)
        if late:
            await self._worked_off(requests[0])
        return result

    async def _worked_off(self, request: Request) -> None:
        """Wait behind what the server may still do for requests that were given up: neither a change nor a load must wait for it."""
        until = asyncio.get_running_loop().time() + WORK_OFF_SECONDS
        while True:
            try:
                await self.client.infer(
                    self._graph.model_name,
                    request,
                    deadline_s=until - asyncio.get_running_loop().time(),
                )
                return
            except OverloadedError:  # its queue is full still
                await asyncio.sleep(_WORK_OFF_POLL)
            except TritonError as error:
                raise TuneError(
                    f"the server does not come back from a load beyond what it carries: {error}"
                ) from error


def _uncached(config: Any) -> Any:
    """The same without a response cache."""
    config.ClearField("response_cache")
    return config


def load_of(result: LoadResult) -> Load:
    """The measured time of a load."""
    counted = result.measured()
    failed = int(np.count_nonzero(counted & (result.error >= 0)))
    # Answers of requests that were due in the measured time, whenever they came: what has to be answered to keep up. From the first answer to
    # the last one: where each takes long, all are late alike, and nothing is left behind. Few that are far behind all others are the tail,
    # which p99 leaves out as well, and no backlog: at most as long as all take at the pace of 99 in 100.
    ends, sent = result.end[counted], int(np.count_nonzero(counted))
    spans = np.percentile(ends, (99, 100)) - ends.min() if sent else np.zeros(2)
    seconds = max(result.duration_s, float(min(spans[0] / 0.99, spans[1])))
    found = Load(
        result.latencies,
        sent,
        failed,
        seconds,
        offered=sent / result.duration_s,
        ended=result.end_s if result.overloaded else 0.0,
        arrivals=np.sort(result.due),
    )
    late = _late(result, overload=_overload(found)) & counted
    codes = result.error[counted & (result.error >= 0) & ~late]
    codes = codes if len(codes) else result.error[counted & (result.error >= 0)]
    first = result.errors[codes[0]] if len(codes) else ""
    return replace(found, first_error=first, late=int(np.count_nonzero(late)))


def late_in(result: LoadResult) -> int:
    """Requests of a load, warm-up included, that were turned away, or that only overload made fail."""
    return int(np.count_nonzero(_late(result, overload=_overload(load_of(result)))))


def _overload(found: Load) -> bool:
    return bool(found.ended) or found.rate < CARRIED_SHARE * found.offered


def _late(result: LoadResult, *, overload: bool) -> NDArray[np.bool_]:
    """Which requests waited too long or were turned away. No answer in time is a fault where the server keeps up; a full queue is none ever."""
    is_late = too_late if overload else turned_away
    by_code = np.array(
        [*(is_late(message) for message in result.errors), False], dtype=np.bool_
    )  # the last one is of code -1: answered
    return by_code[result.error]
