"""What the operator was started with, as far as it decides what is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triton_pipelines.api.names import PATH_ENGINES, PATH_MODELS

DEFAULT_SERVER_IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
DEFAULT_LOADER_IMAGE = "triton-pipelines/operator:0.1.0"
# Platform or backend → family of server images that carries it; all others are of the default
# family.
IMAGE_FAMILIES = {"vllm": "vllm", "tensorrtllm": "tensorrtllm"}
DEFAULT_FAMILY_IMAGES = {
    "vllm": "nvcr.io/nvidia/tritonserver:24.10-vllm-python-py3",
    "tensorrtllm": "nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3",
}
# Platforms whose steps the project's own runner can run.
SUBSTITUTABLE = frozenset({"onnxruntime_onnx"})


@dataclass(frozen=True, slots=True)
class Options:
    """Operator-wide settings of rendering; the command line's ``render`` takes the same.

    ``substitute_runner`` names platforms whose steps run on the python-backend runner as KIND_CPU
    instead (a server image without that backend); ``source_map`` holds ``PREFIX=TARGET`` pairs for
    air-gapped mirrors; ``family_images`` the default images of platforms that the common one does
    not carry (vllm, tensorrtllm). ``models_path`` and ``engines_path`` are where the server sees
    its repository and may keep TensorRT engines.
    """

    server_image: str = DEFAULT_SERVER_IMAGE
    loader_image: str = DEFAULT_LOADER_IMAGE
    image_pull_policy: str = "IfNotPresent"
    source_map: tuple[str, ...] = ()
    substitute_runner: frozenset[str] = field(default_factory=frozenset)
    custom_code_allowed: bool = True
    pod_template_allowed: bool = True
    operator_namespace: str = "triton-pipelines"
    family_images: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_FAMILY_IMAGES))
    models_path: str = PATH_MODELS
    engines_path: str = PATH_ENGINES
