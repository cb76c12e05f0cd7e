"""Which backend and platform Triton takes a model for: what it fills in by itself before it validates, with auto-complete off, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .server import ServerFacts

ENSEMBLE: Final = "ensemble"
TENSORRT_PLATFORM: Final = "tensorrt_plan"
PYTHON_FILE: Final = "model.py"

# Backend → the platforms that Triton accepts beside it. Any other backend takes any platform but these.
PLATFORMS: Final = {
    "tensorflow": ("tensorflow_graphdef", "tensorflow_savedmodel"),
    "tensorrt": (TENSORRT_PLATFORM,),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
}
# Default file name → the backend (and for TensorFlow and PyTorch AOTI the platform) that Triton infers from it, in its order.
_FILES: Final = (
    ("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    ("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    ("model.plan", "tensorrt", TENSORRT_PLATFORM),
    ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    ("model.xml", "openvino", ""),
    ("model.pt", "pytorch", "pytorch_libtorch"),
    ("model.pt2", "pytorch", "torch_aoti"),
    (PYTHON_FILE, "python", ""),
)
_BACKEND_OF_PLATFORM: Final = {platform: backend for backend, platforms in PLATFORMS.items() for platform in platforms} | {"libtorch": "pytorch"}
_AOTI_SINCE: Final = (26, 3)
_AOTI: Final = frozenset({"torch_aoti", "libtorch"})


@dataclass(frozen=True, slots=True)
class Identity:
    """What a model is for Triton.

    Attributes:
        backend: backend name, "" where none is given and none can be inferred.
        platform: platform name, often "".
    """

    backend: str
    platform: str

    @property
    def tensorrt(self) -> bool:
        """Whether the fields that only TensorRT models may have are allowed."""
        return self.platform == TENSORRT_PLATFORM


def identity(name: str, config: Any, facts: ServerFacts) -> Identity:
    """The backend and platform of a model after Triton's completion.

    Args:
        name: the model's folder.
        config: its ModelConfig.
        facts: the server; where the model's files are unknown nothing is inferred from them.
    """
    backend, platform, filename = config.backend, config.platform, config.default_model_filename
    aoti = facts.release >= _AOTI_SINCE
    if platform and not backend:
        known = _BACKEND_OF_PLATFORM.get(platform, "")
        backend = known if aoti or platform not in _AOTI else ""
    if not backend:
        backend, inferred = _by_file(filename, aoti) if filename else ("", "") if platform else _by_folder(name, facts, aoti)
        platform = platform or inferred
    if not platform:
        platform = _platform(backend, filename, name, facts)
    if not backend and not platform and not filename and "." in name:
        # A custom backend: model folder "model.identity" for backend "identity".
        backend = name.split(".", 1)[1]
    return Identity(backend, platform)


def _platform(backend: str, filename: str, name: str, facts: ServerFacts) -> str:
    if backend == "tensorflow":
        found = _by_file(filename) if filename else _by_folder(name, facts)
        return found[1] if found[0] == "tensorflow" else ""
    return {"tensorrt": TENSORRT_PLATFORM, "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}.get(backend, "")


def _by_file(filename: str, aoti: bool = True) -> tuple[str, str]:
    return next(((backend, platform) for file, backend, platform in _FILES if file == filename and (aoti or platform not in _AOTI)), ("", ""))


def _by_folder(name: str, facts: ServerFacts, aoti: bool = True) -> tuple[str, str]:
    """From the files of the version folder that comes first as a text."""
    files = facts.files.get(name, {})
    folders = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    if not folders:
        return "", ""
    entries = {path.split("/")[1] for path in files if path.startswith(f"{folders[0]}/")}
    return next((found for file, *_ in _FILES if file in entries and (found := _by_file(file, aoti))[0]), ("", ""))
