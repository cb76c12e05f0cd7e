"""One pod as the scaling actuator handles it: the Triton client and the prober in the actuator's terms."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.names import PORT_GRPC
from triton_pipelines.controllers.autoscaler.actuator import (
    PodGoneError,
    PodRefusedError,
    PodSilentError,
)
from triton_pipelines.controllers.pipeline.reconciler import Prober, ProbeTarget
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

# A count is told without any queue; a pod that takes longer (seconds) must not hold up the look at all others.
COUNT_SECONDS: Final = 2.0


def grpc_address(ip: str) -> str:
    """``host:port`` of a pod's gRPC API."""
    return f"[{ip}]:{PORT_GRPC}" if ":" in ip else f"{ip}:{PORT_GRPC}"


@asynccontextmanager
async def client_of(target: ProbeTarget) -> AsyncIterator[TritonClient]:
    """A client of the pod, with its errors in the actuator's terms."""
    try:
        async with TritonClient(grpc_address(target.pod.ip), target.control_key) as client:
            yield client
    except UnreachableError as error:
        raise PodGoneError(str(error)) from error
    except DeadlineError as error:
        raise PodSilentError(str(error)) from error
    except RejectedError as error:
        raise PodRefusedError(error.reason) from error
    except (NotReadyError, RestrictedError, TritonError) as error:
        raise PodRefusedError(str(error)) from error


@dataclass(slots=True)
class TritonPod:
    """Implements ``scaling.actuator.PodControl``. ``prober`` asks as the reconciler does; ``clock`` gives UTC now."""

    target: ProbeTarget
    prober: Prober
    clock: Callable[[], dt.datetime]
    _last: Probe | None = None

    async def count(self, model: str) -> int:
        """Instances of the model as the pod reports them."""
        async with client_of(self.target) as client:
            return await client.instance_count(model, COUNT_SECONDS)

    async def load(self, model: str, config_json: str, deadline: float) -> None:
        """Load the model with this whole config."""
        async with client_of(self.target) as client:
            await client.load_model(model, config_json, deadline)

    async def fault(self, model: str, public: str) -> str:
        """Why model or public model is not as it should be; "" where both are ready and the index carries no reason."""
        self._last = seen = await self.prober(self.target, self.clock())
        if seen.error and not seen.models:
            raise PodSilentError(seen.error)
        # With the index at hand only the inference was not answered in time: growth is for pods with long queues, and busy is not broken.
        # A dead process would have said so at once.
        for state in seen.models:
            if state.name in (model, public) and (state.state != "READY" or state.reason):
                return f"{state.name} is {state.state or 'not loaded'}: {state.reason or 'no reason given'}"
        return "" if seen.ensemble_ready else f"{public} is not ready"

    async def answers(self) -> str:
        """Why a real inference fails; "" where it was answered, or where the pipeline has no example request."""
        return (self._last.inference_error or "") if self._last is not None else ""
