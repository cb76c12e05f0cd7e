"""Pure: the resource as a checked graph of steps and tensors."""

from .build import build
from .checks import check, lint
from .graph import Graph
from .options import Options

__all__ = ["Graph", "Options", "build", "check", "lint"]
