"""Pure: from the graph to the model repository and the Kubernetes objects."""

from .errors import RenderError
from .render import Revision, render

__all__ = ["RenderError", "Revision", "render"]
