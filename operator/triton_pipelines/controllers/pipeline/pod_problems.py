"""Explain why a pod does not serve, from its status, the loader's report and Triton's output."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.conditions import KIND_OF, Reason, ReasonKind
from triton_pipelines.api.loadplan import INFORMATIVE, LoadReason
from triton_pipelines.api.loadreport import EXIT_PERMANENT
from triton_pipelines.api.wording import first_of, listed
from triton_pipelines.compile.render.pod_scheduling import GPU_PRODUCT_LABEL

from .snapshot import Object, Pod, Probe

# The kubelet's reasons for an image that cannot be pulled.
IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
    }
)
CONFIG_REASONS = frozenset({"CreateContainerConfigError"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one pod does not serve."""

    reason: Reason
    message: str
    pod: str
    is_permanent: bool = False
    """Whether the loader found twice that starting again cannot help.

    It cannot help as long as the source is the same. This ends the wait for a rollout that has
    already removed old pods. Otherwise the pod may wait for the source to appear.
    """

    @property
    def is_final(self) -> bool:
        """Whether only a change of the spec, or of what it names, can help."""
        return KIND_OF[self.reason] is ReasonKind.STALLED


# Measured with 24.10, over HTTP and gRPC; fixed in 25.07 (release notes).
_CLASSIFICATION: Final = (
    ". Triton releases before 25.07 crash in this way on a request for the classification of a "
    "text output; use release 25.07 or later"
)


def problem_of(
    pod: Pod, probe: Probe | None, gpu_resource: str, nodes: Sequence[Object] | None
) -> Problem | None:
    """Return the most telling problem of a pod that is not ready or fails a test inference.

    ``None`` if the pod serves.
    """
    if pod.deleting:
        return None
    if pod.ready:
        if probe is not None and probe.inference_error:
            devices = ", ".join(pod.unhealthy_devices)
            cause = f"; the kubelet reports its device {devices} as unhealthy" if devices else ""
            return Problem(
                Reason.INFERENCE_FAILED,
                f"pod {pod.name} is ready, but a test inference failed: {probe.inference_error}"
                f"{cause}",
                pod.name,
            )
        return None
    return (
        _unscheduled(pod, gpu_resource, nodes)
        or _image(pod)
        or _loader(pod)
        or _server(pod, probe)
        or _starting(pod)
    )


def preflight_problem(
    pod: Pod, gpu_resource: str, nodes: Sequence[Object] | None
) -> Problem | None:
    """Return why the pod of a preflight has not passed; ``None`` if nothing is known yet.

    A loader that runs again keeps the problem of its last attempt.
    """
    return _unscheduled(pod, gpu_resource, nodes) or _image(pod) or _loader(pod)


def _unscheduled(pod: Pod, gpu_resource: str, nodes: Sequence[Object] | None) -> Problem | None:
    condition = pod.condition("PodScheduled")
    if condition.get("status") != "False" or condition.get("reason") != "Unschedulable":
        return None
    # The scheduler's verdict ends where its notes on claims and preemption begin.
    message = re.split(
        r"\.? (?:no new claims|still not schedulable|preemption:)",
        str(condition.get("message", "")),
    )[0].rstrip(" .,")
    requested = requests_of(pod)
    if gpu_resource in requested and (
        gpu_resource in message
        or "node affinity" in message
        or "node selector" in message
        or "taint" in message
    ):
        offered = _offered(nodes, gpu_resource)
        products = _products(pod)
        request_text = f"{requested[gpu_resource]} {gpu_resource}" + (
            f" of product {' or '.join(products)}" if products else ""
        )
        return Problem(
            Reason.WAITING_FOR_GPU,
            f"pod {pod.name} requests {request_text}; {offered}scheduler: {message}",
            pod.name,
        )
    missing = sorted(set(re.findall(r"Insufficient ([a-z0-9./-]*[a-z0-9])", message)))
    request_text = ", ".join(f"{value} {key}" for key, value in sorted(requested.items()))
    shortage = f"no node has enough {listed(missing)}; " if missing else ""
    return Problem(
        Reason.WAITING_FOR_RESOURCES,
        f"pod {pod.name} requests {request_text}; {shortage}scheduler: {message}",
        pod.name,
    )


def requests_of(pod: Pod) -> dict[str, str]:
    """Return the resource requests of a pod's server, or of the loader of a preflight."""
    for container in (pod.raw.get("spec") or {}).get("containers") or ():
        if container.get("name") in (names.CONTAINER_SERVER, names.CONTAINER_LOADER):
            return {**((container.get("resources") or {}).get("requests") or {})}
    return {}


def _products(pod: Pod) -> list[str]:
    """Return the GPU products that the pod's node affinity allows; empty if it allows any."""
    affinity = ((pod.raw.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get(
        "nodeSelectorTerms"
    ) or ()
    expressions = [
        expression for term in terms for expression in term.get("matchExpressions") or ()
    ]
    return sorted(
        {
            value
            for item in expressions
            if item.get("key") == GPU_PRODUCT_LABEL and item.get("operator") == "In"
            for value in item["values"]
        }
    )


def _offered(nodes: Sequence[Object] | None, resource: str) -> str:
    if nodes is None:
        return ""
    offers = []
    for node in nodes:
        amount = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
        if amount and str(amount) != "0":
            product = ((node["metadata"].get("labels")) or {}).get(GPU_PRODUCT_LABEL, "")
            offers.append(
                f"{amount} on node {node['metadata']['name']}{f' ({product})' if product else ''}"
            )
    if not offers:
        return f"no node provides {resource}; "
    return f"available: {first_of(offers, 5)}; "


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return (status.get("state") or {}).get("waiting") or {}


def _image(pod: Pod) -> Problem | None:
    for name in (names.CONTAINER_LOADER, names.CONTAINER_SERVER):
        status = pod.container(name)
        waiting = _waiting(status)
        if waiting.get("reason") in IMAGE_REASONS:
            images = ", ".join(_image_sources(pod))
            sources = f" or a source ({images})" if images else ""
            return Problem(
                Reason.IMAGE_UNAVAILABLE,
                f"pod {pod.name}: image {status.get('image')} of container {name}{sources} cannot "
                f"be pulled ({waiting['reason']}): {waiting.get('message', '')}",
                pod.name,
            )
    return None


def _image_sources(pod: Pod) -> list[str]:
    """Return the URIs of the sources that the kubelet pulls: it reports no failure by volume."""
    volumes = (pod.raw.get("spec") or {}).get("volumes") or ()
    return [
        f"image://{volume['image'].get('reference')}" for volume in volumes if volume.get("image")
    ]


def config_missing(pod: Pod, name: str = "") -> bool:
    """Return whether the kubelet cannot find a Secret or ConfigMap that the pod refers to.

    An empty ``name`` matches any.
    """
    waiting = (
        _waiting(pod.container(container))
        for container in (names.CONTAINER_LOADER, names.CONTAINER_SERVER)
    )
    return any(
        item.get("reason") in CONFIG_REASONS and name in str(item.get("message", ""))
        for item in waiting
    )


def _loader(pod: Pod) -> Problem | None:
    status = pod.container(names.CONTAINER_LOADER)
    state, last = status.get("state") or {}, status.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    if not ended or (state.get("terminated") and ended.get("exitCode") == 0):
        return None
    if ended.get("exitCode") == 0:
        return None
    report = pod.load_report()
    failures = (
        [finding for finding in report.findings if finding.reason not in INFORMATIVE]
        if report
        else []
    )
    if failures:
        reason = min(
            (Reason(finding.reason.value) for finding in failures),
            key=lambda item: _ORDER.index(KIND_OF[item]),
        )
        text = "; ".join(
            f"{finding.field or finding.step}: {finding.message}" for finding in failures
        )
        return Problem(
            reason,
            f"pod {pod.name}: {text}",
            pod.name,
            # A second attempt excludes rights that take effect late. Room on the volume may return,
            # but the exit code is the same.
            is_permanent=ended.get("exitCode") == EXIT_PERMANENT
            and status.get("restartCount", 0) >= 1
            and all(finding.reason is not LoadReason.NO_SPACE for finding in failures),
        )
    return Problem(
        Reason.INTERNAL_ERROR,
        f"pod {pod.name}: the loader exited with code {ended.get('exitCode')}:"
        f" {str(ended.get('message') or ended.get('reason') or '')[:500]}",
        pod.name,
    )


def _server(pod: Pod, probe: Probe | None) -> Problem | None:
    if probe is not None and not probe.ensemble_ready:
        failed = [
            model
            for model in probe.models
            if model.state == "UNAVAILABLE" and model.reason and model.reason != "unloaded"
        ]
        if failed:
            text = "; ".join(f"model '{model.name}': {model.reason}" for model in failed)
            return Problem(
                Reason.MODEL_FAILED, f"pod {pod.name}: Triton could not load {text}", pod.name
            )
    status = pod.container(names.CONTAINER_SERVER)
    ended = ((status.get("state") or {}).get("terminated")) or (
        (status.get("lastState") or {}).get("terminated")
    )
    if ended and not status.get("ready"):
        tail = str(ended.get("message") or "").strip()[-600:]
        log = f"; its log ends with: {tail}" if tail else ""
        why = f"{ended.get('reason', 'Error')}, {_exit_code(ended.get('exitCode'))}"
        return Problem(
            Reason.SERVER_CRASHED,
            f"pod {pod.name}: Triton exited ({why}; restarts: {status.get('restartCount', 0)})"
            f"{_known_cause(ended.get('exitCode'))}{log}",
            pod.name,
        )
    return None


def _exit_code(code: object) -> str:
    """Return an exit code with the signal that it stands for."""
    number = _signal(code)
    return f"exit code {code}" if number is None else f"exit code {code} ({number.name})"


def _known_cause(code: object) -> str:
    """Return what is known to cause an exit code, to follow other text; empty if nothing is."""
    return _CLASSIFICATION if _signal(code) is signal.SIGFPE else ""


def _signal(code: object) -> signal.Signals | None:
    """Return the signal that an exit code stands for."""
    try:
        return signal.Signals(code - 128) if isinstance(code, int) and code > 128 else None
    except ValueError:
        return None


def _starting(pod: Pod) -> Problem:
    if config_missing(pod):
        waiting = _waiting(pod.container(names.CONTAINER_LOADER)) or _waiting(
            pod.container(names.CONTAINER_SERVER)
        )
        return Problem(
            Reason.PROGRESSING,
            f"pod {pod.name}: {waiting.get('message', 'is waiting for its configuration')}",
            pod.name,
        )
    if "running" in (pod.container(names.CONTAINER_LOADER).get("state") or {}):
        return Problem(Reason.LOADING, f"pod {pod.name} is fetching its sources", pod.name)
    if pod.server_running:
        return Problem(Reason.LOADING, f"pod {pod.name}: Triton is loading the models", pod.name)
    return Problem(Reason.PROGRESSING, f"pod {pod.name} is starting", pod.name)


# Which problem represents the pipeline if pods have several: first those that only the user can
# fix.
_ORDER = (ReasonKind.STALLED, ReasonKind.TRANSIENT, ReasonKind.WAITING, ReasonKind.FINE)
_MINOR = (Reason.LOADING, Reason.PROGRESSING)


def most_severe(problems: Sequence[Problem]) -> Problem | None:
    """Return the problem that the pipeline's condition names."""
    if not problems:
        return None
    return min(
        problems,
        key=lambda item: (_ORDER.index(KIND_OF[item.reason]), item.reason in _MINOR, item.pod),
    )
