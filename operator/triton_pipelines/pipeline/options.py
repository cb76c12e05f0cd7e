"""What the operator was started with, as far as it decides what is rendered."""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_SERVER_IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
DEFAULT_LOADER_IMAGE = "triton-pipelines/operator:0.1.0"


@dataclass(frozen=True, slots=True)
class Options:
    """Operator-wide settings of rendering; the command line's ``render`` takes the same.

    ``substitute_runner`` names platforms whose steps run on the python-backend runner as KIND_CPU instead (a server image without
    that backend); ``source_map`` holds ``PREFIX=TARGET`` pairs for air-gapped mirrors.
    """

    server_image: str = DEFAULT_SERVER_IMAGE
    loader_image: str = DEFAULT_LOADER_IMAGE
    image_pull_policy: str = "IfNotPresent"
    source_map: tuple[str, ...] = ()
    substitute_runner: frozenset[str] = field(default_factory=frozenset)
    custom_code_allowed: bool = True
    operator_namespace: str = "triton-pipelines"
