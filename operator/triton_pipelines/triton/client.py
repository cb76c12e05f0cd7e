"""Async client of ONE Triton pod over gRPC.

Repository control uses gRPC only: a load over HTTP blocks a worker thread of the server and all
inference on it (measured, Triton 2.51.0). Every call has a deadline; failures are the types of
``errors``. Address pods, never a Service: a load changes one pod.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

import grpc
from tritonclient.grpc import InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException

from triton_pipelines.api import names
from triton_pipelines.redaction import MASK
from triton_pipelines.triton.errors import (
    DeadlineError,
    FloodError,
    NotReadyError,
    RejectedError,
    TooLargeError,
    translate,
)
from triton_pipelines.triton.infer_requests import Array, input_tensor, output_array, stream_request
from triton_pipelines.triton.limited_relay import CLOSED, LimitedRelay, limit_with_overhead
from triton_pipelines.triton.model_index import INDEX_ENTRIES_MAX, ModelIndexEntry
from triton_pipelines.triton.response_limits import TOO_LARGE, UndecodedResponse
from triton_pipelines.triton.service_client import ServiceClient
from triton_pipelines.triton.tls import POD_CHANNEL_OPTIONS, TlsIdentity, open_channel

T = TypeVar("T")

DEADLINE_S: Final = 5.0
"""Default deadline of a call, in seconds."""
_DEADLINE_GRACE_S: Final = 1.0
LOAD_DEADLINE_S: Final = 120.0
"""Deadline of a load, in seconds.

Triton removes instances one after the other while batches run, about 1.2 s each (measured). It
loads new ones in parallel.
"""
RESPONSE_BYTES_MAX: Final = 16 * 1024**2
"""Default size of the largest response, tensor data included."""
INSTANCES_MAX: Final = 2**31 - 1
"""Most instances of a model: the field of the config is an int32."""
UNLIMITED_BYTES: Final = 2**31 - 1
"""Size of the largest message of gRPC, for clients of a server that is trusted.

They connect without a :mod:`relay <.limited_relay>`.
"""
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", UNLIMITED_BYTES),
    # No ping after each response, which measures the bandwidth: pods are near, and a probe is one
    # small call.
    ("grpc.http2.bdp_probe", 0),
    *POD_CHANNEL_OPTIONS,
)


class TritonClient:
    """Client of one pod; an async context manager.

    All methods raise ``errors.TritonError``.
    """

    def __init__(
        self,
        address: str,
        control_key: str | None = None,
        deadline_s: float = DEADLINE_S,
        max_response_bytes: int = RESPONSE_BYTES_MAX,
        tls: TlsIdentity | None = None,
    ) -> None:
        """Create the client.

        Args:
            address: ``host:port`` of the pod's gRPC API.
            control_key: the pod's control key, which the repository index and loads need where they
                are restricted. Never logged.
            deadline_s: default deadline of a call, in seconds.
            max_response_bytes: maximum size of a response; a larger one is an
                ``errors.TooLargeError``.
            tls: how to connect with TLS; ``None`` for plaintext.
        """
        self.address = address
        self._deadline_s = deadline_s
        self._key = control_key
        self._control = {} if control_key is None else {names.CONTROL_GRPC_METADATA: control_key}
        # Otherwise, the name of the relay.
        plaintext = (("grpc.default_authority", address),)
        channel_options = [
            *_CHANNEL_OPTIONS,
            ("grpc.max_receive_message_length", max_response_bytes),
            *(tls.channel_options() if tls is not None else plaintext),
        ]
        self._relay: LimitedRelay | None = None
        target = address
        if max_response_bytes < UNLIMITED_BYTES:
            self._relay = LimitedRelay(address, limit_with_overhead(max_response_bytes))
            target = self._relay.target
        on_request = self._relay.extend if self._relay is not None else None
        self._client = ServiceClient(open_channel(target, tls, channel_options), on_request)
        self._is_closed = False

    def __repr__(self) -> str:
        return f"TritonClient({self.address!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Calls that are under way fail."""
        self._is_closed = True
        try:
            await self._client.close()
        finally:
            if self._relay is not None:
                await self._relay.close()

    @property
    def received_bytes(self) -> int:
        """Bytes that the pod has sent; 0 for a server that is trusted."""
        return self._relay.received if self._relay is not None else 0

    async def model_ready(self, name: str, deadline_s: float | None = None) -> bool:
        """Return whether a version of the model serves; False for an unknown one.

        An ensemble serves only if all of its steps do.
        """
        try:
            return bool(
                await self._call(
                    f"checking whether model '{name}' is ready",
                    self._client.is_model_ready,
                    deadline_s,
                    model_name=name,
                )
            )
        except NotReadyError:
            return False

    async def repository_index(self, deadline_s: float | None = None) -> list[ModelIndexEntry]:
        """Return the state of every model in the repository.

        Needs the control key where model-repository is restricted.
        """
        answer = await self._call(
            "reading the repository index",
            self._client.get_model_repository_index,
            deadline_s,
            headers=self._control,
        )
        if len(answer.models) > INDEX_ENTRIES_MAX:
            raise TooLargeError(
                f"reading the repository index at {self.address}: it has more than "
                f"{INDEX_ENTRIES_MAX} entries"
            )
        return [
            ModelIndexEntry(model.name, model.version, model.state, self._masked(model.reason))
            for model in answer.models
        ]

    async def model_config(self, name: str, deadline_s: float | None = None) -> Any:
        """Return the running config: a ``tritonclient.grpc.model_config_pb2.ModelConfig``."""
        answer = await self._call(
            f"reading the config of model '{name}'",
            self._client.get_model_config,
            deadline_s,
            model_name=name,
        )
        return answer.config

    async def instance_count(self, name: str, deadline_s: float | None = None) -> int:
        """Return the instances of the model, over all its instance groups."""
        config = await self.model_config(name, deadline_s)
        count = int(sum(group.count for group in config.instance_group))
        if not 0 <= count <= INSTANCES_MAX:
            reason = (
                f"the config has {count} instances, which is not a valid number; check that Triton"
                " itself responds at this address"
            )
            raise RejectedError(f"model '{name}' at {self.address}: {reason}", reason)
        return count

    async def statistics(self, name: str = "", deadline_s: float | None = None) -> list[Any]:
        """Return statistics per model version (``service_pb2.ModelStatistics``).

        An empty name returns those of all models.
        """
        action = f"reading the statistics of {f'model {name!r}' if name else 'all models'}"
        answer = await self._call(
            action, self._client.get_inference_statistics, deadline_s, model_name=name
        )
        return list(answer.model_stats)

    async def load_model(
        self, name: str, config_json: str | None = None, deadline_s: float = LOAD_DEADLINE_S
    ) -> None:
        """Load a model, or change a loaded one.

        Success says nothing about the ensembles that the model is part of: check ``model_ready`` of
        these, the index and the count afterwards.

        Args:
            name: model. Not an ensemble with a config: a rejected one takes the running ensemble
                down.
            config_json: the whole ModelConfig in JSON. It replaces the config as a whole (a part of
                it would drop the tensors). ``None`` loads what the files say.
            deadline_s: seconds; after ``DeadlineError`` the load continues in the server.

        Raises:
            RejectedError: with Triton's reason; what ran before continues.
            RestrictedError: without the right control key.
        """
        await self._call(
            f"loading model '{name}'",
            self._client.load_model,
            deadline_s,
            model_name=name,
            config=config_json,
            headers=self._control,
        )

    async def infer(
        self,
        name: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
    ) -> dict[str, Array]:
        """Run one inference.

        Args:
            name: model or ensemble.
            inputs: arrays by input name, rows first where the model batches; texts as an object
                array of bytes or str, BF16 as ``ml_dtypes.bfloat16``.
            outputs: names of the requested outputs; ``None`` for all.
            deadline_s: seconds.
            request_id: returned by the server and written to its traces.
            sequence_id: if given, the request is a whole sequence with this id: its first and its
                last.

        Returns:
            Arrays by output name; texts as object arrays of bytes.

        Raises:
            RejectedError: the request was wrong, or a queue was full.
            DeadBackendError: a process of a Python model is gone.
            NotReadyError: no such model is serving.
        """
        answer: InferResult = await self._call(
            f"inference on '{name}'",
            self._client.infer,
            deadline_s,
            model_name=name,
            inputs=[input_tensor(key, array) for key, array in inputs.items()],
            outputs=None
            if outputs is None
            else [InferRequestedOutput(output) for output in outputs],
            request_id=request_id,
            sequence_id=sequence_id,
            sequence_start=bool(sequence_id),
            sequence_end=bool(sequence_id),
        )
        return self._arrays(name, answer)

    async def first_response(
        self,
        name: str,
        inputs: Mapping[str, Array],
        deadline_s: float | None = None,
        request_id: str = "",
        sequence_id: int | str = 0,
    ) -> dict[str, Array]:
        """Return the first response to a request on a stream and cancel the rest.

        Decoupled models need a stream. Arguments and errors are those of :meth:`infer`.

        Returns:
            As :meth:`infer`; empty if the model ends the request without a response, which it may.
        """
        request = stream_request(name, inputs, request_id, sequence_id)

        async def once(client_timeout: float) -> InferResult:
            # The library's own stream cannot request an empty last response.
            stream = self._client._client_stub.ModelStreamInfer(timeout=client_timeout)
            try:
                await stream.write(request)
                answer = await stream.read()
            except grpc.aio.AioRpcError as error:
                raise InferenceServerException(error.details() or "", str(error.code())) from None
            finally:
                stream.cancel()
            if answer is grpc.aio.EOF:
                raise InferenceServerException(
                    "the stream ended without a response", "StatusCode.UNAVAILABLE"
                )
            if isinstance(answer, UndecodedResponse):
                return InferResult(answer)
            if answer.error_message:
                raise InferenceServerException(answer.error_message)
            return InferResult(answer.infer_response)

        answer: InferResult = await self._call(f"inference on '{name}'", once, deadline_s)
        return self._arrays(name, answer)

    def _arrays(self, name: str, answer: InferResult) -> dict[str, Array]:
        try:
            response = answer.get_response()
            return {
                tensor.name: output_array(tensor, response.raw_output_contents[index : index + 1])
                for index, tensor in enumerate(response.outputs)
            }
        except Exception as error:
            # The pod controls the content of a response: shapes, types and bytes may not fit
            # together.
            reason = f"the response cannot be read ({type(error).__name__}: {error})"
            raise RejectedError(
                f"inference on '{name}' at {self.address}: {reason}", reason
            ) from None

    def _masked(self, text: str) -> str:
        """Return a text of the pod without the control key, which the pod receives and knows."""
        return text.replace(self._key, MASK) if self._key else text

    async def _connect(self, action: str, seconds: float) -> float:
        """Connect to the pod if necessary; return how many of the seconds are left."""
        relay, end = self._relay, time.monotonic() + seconds
        if relay is not None and not relay.renew():
            try:
                async with asyncio.timeout(seconds):
                    await relay.connect()
            except TimeoutError:
                raise translate(action, self.address, "DEADLINE_EXCEEDED", "") from None
            except OSError as error:
                number = error.errno or 0
                reason = os.strerror(number) if number > 0 else str(error)
                raise translate(action, self.address, "UNAVAILABLE", reason) from None
        if self._is_closed:
            # gRPC crashes the process if a method of a closed channel is used for the first time.
            raise translate(action, self.address, "CANCELLED", CLOSED)
        if (left := end - time.monotonic()) <= 0:
            raise translate(action, self.address, "DEADLINE_EXCEEDED", "")
        return left

    async def _call(
        self,
        action: str,
        method: Callable[..., Awaitable[T]],
        deadline_s: float | None,
        **arguments: Any,
    ) -> T:
        deadline = self._deadline_s if deadline_s is None else deadline_s
        if deadline <= 0:
            raise DeadlineError(f"{action} at {self.address}: the deadline has passed")
        deadline = await self._connect(action, deadline)
        try:
            # gRPC itself waits without end for a pod that does not read the request.
            async with asyncio.timeout(deadline + _DEADLINE_GRACE_S):
                answer = await method(client_timeout=deadline, **arguments)
        except TimeoutError:
            raise translate(action, self.address, "DEADLINE_EXCEEDED", "") from None
        except InferenceServerException as error:
            detail = self._masked(error.message() or "")
            if (relay := self._relay) is not None:
                if relay.is_exceeded:
                    sent = f"the pod sent more than {relay.bytes_max // 1024} KiB"
                    text = f"{action} at {self.address}: {sent} in response to one call"
                    raise FloodError(text) from None
                detail = detail.replace(relay.target, self.address)
            raise translate(action, self.address, str(error.status() or ""), detail) from None
        except asyncio.CancelledError:
            # gRPC cancels its own calls when the channel closes; that is not a cancelled task.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise translate(action, self.address, "CANCELLED", CLOSED) from None
        response = answer.get_response() if isinstance(answer, InferResult) else answer
        if not isinstance(response, UndecodedResponse):
            return answer
        text = f"{action} at {self.address}: {response.reason}"
        raise (
            TooLargeError(text) if response is TOO_LARGE else RejectedError(text, response.reason)
        )
