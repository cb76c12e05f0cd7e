"""What runs inside Triton: one self-contained ``model.py`` per kind of step.

Each file is copied alone into a model's version folder, so it imports only the standard library, numpy, ``triton_python_backend_utils`` and the
one library its step is about. It runs on the Python of the Triton image: 3.10 in releases up to 24.10, 3.12 later.
"""

from __future__ import annotations

import importlib.resources
from typing import Final

STEPS: Final = ("tokenizer", "postprocess", "onnx_runner")


def source(step: str) -> str:
    """Text of the ``model.py`` of ``step`` (one of ``STEPS``)."""
    if step not in STEPS:
        raise ValueError(f"no runtime for '{step}': one of {', '.join(STEPS)}")
    return importlib.resources.files(__name__).joinpath(step, "model.py").read_text(encoding="utf-8")
