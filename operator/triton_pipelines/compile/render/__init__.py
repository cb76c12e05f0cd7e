"""Pure: from the graph to the model repository and the Kubernetes objects."""

from .errors import RefusedError, RenderError
from .render import Revision, render, review

__all__ = ["RefusedError", "RenderError", "Revision", "render", "review"]
