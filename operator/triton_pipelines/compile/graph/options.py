"""Options of the operator that affect what is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from triton_pipelines.api.names import PATH_ENGINES, PATH_MODELS

DEFAULT_SERVER_IMAGE = "nvcr.io/nvidia/tritonserver:26.07-py3"
DEFAULT_KEY_SECRET = "triton-pipelines-operator-key"  # noqa: S105 - a name
DEFAULT_LOADER_IMAGE = "triton-pipelines/operator:0.1.0"
# Platform or backend → family of server images that carries it; all others are of the default
# family.
IMAGE_FAMILIES = {"vllm": "vllm", "tensorrtllm": "tensorrtllm"}
DEFAULT_FAMILY_IMAGES = {
    "vllm": "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3",
    "tensorrtllm": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
}
# Platforms whose steps the project's own runner can run.
SUBSTITUTABLE = frozenset({"onnxruntime_onnx"})
# Labels and annotations that do not select pods, and affect no other pods. Kueue looks up the
# queue in the namespace of the pod.
SAFE_POD_METADATA: Final = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "kueue.x-k8s.io/queue-name",
    "kubectl.kubernetes.io/*",
    "prometheus.io/*",
)

EVERYONE: Final = "*"
"""In place of a namespace: any client, also outside the cluster."""


class PodTemplateMode(StrEnum):
    """What resources may set in their pods."""

    ALLOW = "allow"
    """Everything that the operator does not own."""
    RESTRICTED = "restricted"
    """Nothing that gives access to the node, to other identities or to other Services."""
    FORBID = "forbid"
    """No ``server.podTemplate``; the other fields are restricted."""


@dataclass(frozen=True, slots=True)
class Options:
    """Operator-wide settings of rendering, which ``tritonpipe render`` also accepts."""

    server_image: str = DEFAULT_SERVER_IMAGE
    """Default image of Triton."""
    loader_image: str = DEFAULT_LOADER_IMAGE
    """Image of the init container and of the tuning Job."""
    image_pull_policy: str = "IfNotPresent"
    """Default pull policy of both containers."""
    source_map: tuple[str, ...] = ()
    """``PREFIX=TARGET`` pairs for air-gapped mirrors."""
    substitute_runner: frozenset[str] = field(default_factory=frozenset)
    """Platforms whose steps run on the python-backend runner as KIND_CPU.

    For a server image without their backend.
    """
    custom_code_allowed: bool = True
    """Whether resources may contain custom code."""
    pod_template: PodTemplateMode = PodTemplateMode.RESTRICTED
    """What resources may set in their pods."""
    service_accounts: tuple[str, ...] = ()
    """Service accounts that pods may use besides ``default``, unless all may be used (Allow)."""
    inference_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may send inference requests to a pipeline that names no peers, besides
    its own; :data:`EVERYONE` for any client."""
    metrics_namespaces: tuple[str, ...] = ()
    """The same for reading metrics."""
    default_account: str = ""
    """Service account of its namespace in whose name the objects of a pipeline are written, unless
    its spec names one; empty: the operator's own account."""
    impersonated_accounts: tuple[str, ...] | None = None
    """All accounts in whose name the operator may write; ``None`` if that is not known, as on the
    command line."""
    pod_metadata: tuple[str, ...] = ()
    """Keys of labels and annotations that a restricted ``server.podTemplate`` may set besides
    :data:`SAFE_POD_METADATA`; ``*`` stands for any text."""
    operator_key_secret: str = DEFAULT_KEY_SECRET
    """Name of the Secret with the operator key, in the operator's namespace."""
    operator_namespace: str = "triton-pipelines"
    """Namespace of the operator."""
    family_images: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_FAMILY_IMAGES))
    """Default images of platforms that the common image lacks (vllm, tensorrtllm)."""
    models_path: str = PATH_MODELS
    """Folder of the model repository as the server sees it."""
    engines_path: str = PATH_ENGINES
    """Folder in which the server may store TensorRT engines."""
