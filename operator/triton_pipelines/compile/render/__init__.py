"""Render the model repository and the Kubernetes objects of a graph. Pure."""

from .errors import RenderError
from .render import Revision, render, review

__all__ = ["RenderError", "Revision", "render", "review"]
