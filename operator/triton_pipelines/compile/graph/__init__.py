"""Build and check the graph of steps and tensors of a resource. Pure."""

from .build import build
from .checks import check
from .graph import Graph
from .lint_warnings import lint
from .options import Options

__all__ = ["Graph", "Options", "build", "check", "lint"]
