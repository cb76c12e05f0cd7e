"""Render the model repository and the Kubernetes objects of a graph. Pure."""

from .errors import RefusedError, RenderError
from .render import Revision, render, review

__all__ = ["RefusedError", "RenderError", "Revision", "render", "review"]
