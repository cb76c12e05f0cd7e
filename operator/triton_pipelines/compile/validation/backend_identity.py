"""Determine the backend and platform that Triton derives for a model.

What it fills in by itself before it validates, with auto-complete off, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .server_facts import Release, ServerFacts

ENSEMBLE: Final = "ensemble"
TENSORRT_PLATFORM: Final = "tensorrt_plan"
PYTHON_FILE: Final = "model.py"

_AOTI: Final = "torch_aoti"
AOTI_SINCE: Final[Release] = (26, 3)
# Backend → the platforms that Triton accepts with it. Any other backend accepts any platform except
# these.
_PLATFORMS: Final = {
    "tensorflow": ("tensorflow_graphdef", "tensorflow_savedmodel"),
    "tensorrt": (TENSORRT_PLATFORM,),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", _AOTI),
}
# Backend, its default file, its platform: what Triton tries in turn for a model that names no
# backend.
_KNOWN: Final = (
    ("tensorflow", "model.savedmodel", "tensorflow_savedmodel"),
    ("tensorflow", "model.graphdef", "tensorflow_graphdef"),
    ("tensorrt", "model.plan", TENSORRT_PLATFORM),
    ("onnxruntime", "model.onnx", "onnxruntime_onnx"),
    ("openvino", "model.xml", ""),
    ("pytorch", "model.pt", "pytorch_libtorch"),
    ("pytorch", "model.pt2", _AOTI),
    ("python", PYTHON_FILE, ""),
)
_DEFAULT_PLATFORM: Final = {
    "tensorrt": TENSORRT_PLATFORM,
    "onnxruntime": "onnxruntime_onnx",
    "pytorch": "pytorch_libtorch",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Backend and platform of a model."""

    backend: str
    """Name of the backend; "" if none is given and none can be inferred."""
    platform: str
    """Name of the platform, often ""."""

    @property
    def tensorrt(self) -> bool:
        """Return whether the fields that only TensorRT models may have are allowed."""
        return self.platform == TENSORRT_PLATFORM


def platforms(backend: str, facts: ServerFacts) -> tuple[str, ...]:
    """Return the platforms that Triton accepts with a backend; empty if it accepts any."""
    return tuple(
        name for name in _PLATFORMS.get(backend, ()) if name != _AOTI or facts.release >= AOTI_SINCE
    )


def identity(name: str, config: Any, facts: ServerFacts) -> Identity:
    """Return the backend and platform of a model after Triton's completion.

    Args:
        name: the model's folder.
        config: its ModelConfig.
        facts: the server; where the model's files are unknown nothing is inferred from them.
    """
    backend, platform, filename = config.backend, config.platform, config.default_model_filename
    if not backend:
        backend, platform = _inferred(name, config, facts)
    if not platform:
        platform = (
            _tensorflow_platform(name, config, facts)
            if backend == "tensorflow"
            else _DEFAULT_PLATFORM.get(backend, "")
        )
    if not backend and not platform and not filename and "." in name:
        # A custom backend: model folder "model.identity" for backend "identity".
        backend = name.split(".", 1)[1]
    return Identity(backend, platform)


def _inferred(name: str, config: Any, facts: ServerFacts) -> tuple[str, str]:
    """Return backend and platform of a model that names no backend.

    By its platform, its file's name, or the files of its folder.
    """
    platform, filename = config.platform, config.default_model_filename
    present = frozenset[str]() if platform or filename else _entries(name, facts)
    for backend, file, own in _KNOWN:
        if own == _AOTI and facts.release < AOTI_SINCE:
            continue
        by_file = filename == file and not (platform and backend == "tensorflow")
        alias = platform == "libtorch" and backend == "pytorch" and facts.release >= AOTI_SINCE
        if by_file or file in present or alias or (platform and platform == own):
            return backend, platform or own
    return "", platform


def _tensorflow_platform(name: str, config: Any, facts: ServerFacts) -> str:
    """Return TensorFlow's platform, which only the file name shows."""
    present = (
        {config.default_model_filename} if config.default_model_filename else _entries(name, facts)
    )
    return next(
        (own for backend, file, own in _KNOWN if backend == "tensorflow" and file in present), ""
    )


def _entries(name: str, facts: ServerFacts) -> frozenset[str]:
    """Return the entries of the version folder whose name sorts first as text."""
    files = facts.files.get(name, {})
    folders = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    return frozenset(
        path.split("/")[1] for path in files if folders and path.startswith(f"{folders[0]}/")
    )
