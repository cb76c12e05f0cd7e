"""Access to one pod for the actuator: the Triton client and the prober behind its protocol."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.controllers.autoscaler.actuator import (
    PodGoneError,
    PodRejectedError,
    PodUnresponsiveError,
)
from triton_pipelines.controllers.pipeline.pod_probes import Prober, ProbeTarget
from triton_pipelines.controllers.pipeline.snapshot import Probe
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import (
    DeadlineError,
    NotReadyError,
    RejectedError,
    RestrictedError,
    TritonError,
    UnreachableError,
)
from triton_pipelines.triton.probe import SMALL_RESPONSE_BYTES
from triton_pipelines.triton.tls import accepted_identity

# Triton reports a count without queueing; a slower pod (seconds) must not delay the query of all
# others.
COUNT_SECONDS: Final = 2.0


def grpc_address(ip: str) -> str:
    """Return ``host:port`` of a pod's gRPC API."""
    return f"[{ip}]:{PORT_GRPC}" if ":" in ip else f"{ip}:{PORT_GRPC}"


@asynccontextmanager
async def client_of(target: ProbeTarget) -> AsyncIterator[TritonClient]:
    """Return a client of the pod that raises the actuator's errors."""
    address = grpc_address(target.pod.ip)
    try:
        async with TritonClient(
            address,
            target.control_key,
            max_response_bytes=SMALL_RESPONSE_BYTES,
            tls=await accepted_identity(address, target.tls),
        ) as client:
            yield client
    except UnreachableError as error:
        raise PodGoneError(str(error)) from error
    except DeadlineError as error:
        raise PodUnresponsiveError(str(error)) from error
    except RejectedError as error:
        raise PodRejectedError(error.reason) from error
    except (NotReadyError, RestrictedError, TritonError) as error:
        raise PodRejectedError(str(error)) from error


@dataclass(slots=True)
class TritonPod:
    """Implements :class:`~.actuator.PodControl` for a pod."""

    target: ProbeTarget
    """The pod and its models."""
    prober: Prober
    """Probes it as the pipeline controller does."""
    clock: Callable[[], dt.datetime]
    """Returns UTC now."""
    _last: Probe | None = None

    async def count(self, model: str) -> int:
        """Return the model's instances as the pod reports them."""
        async with client_of(self.target) as client:
            return await client.instance_count(model, COUNT_SECONDS)

    async def load(self, model: str, config_json: str, deadline: float) -> None:
        """Load the model with this complete config within ``deadline`` seconds."""
        async with client_of(self.target) as client:
            await client.load_model(model, config_json, deadline)

    async def fault(self, model: str, public: str) -> str:
        """Return why the model or the public model is not ready; empty if both are."""
        self._last = probe = await self.prober(self.target, self.clock())
        if probe.error and not probe.models:
            raise PodUnresponsiveError(probe.error)
        # If the index was read, only the test inference was not answered in time. Pods with long
        # queues are the ones that grow, and a busy pod is not broken: a dead process would have
        # been reported at once.
        for state in probe.models:
            if state.name in (model, public) and (state.state != "READY" or state.reason):
                reason = state.reason or "no reason given"
                return f"{state.name} is {state.state or 'not loaded'}: {reason}"
        return "" if probe.ensemble_ready else f"{public} is not ready"

    async def inference_error(self) -> str:
        """Return why the last test inference failed.

        "" if it succeeded, and if the pipeline has no example request.
        """
        return (self._last.inference_error or "") if self._last is not None else ""
