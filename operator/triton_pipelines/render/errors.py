"""Errors of rendering."""


class RenderError(Exception):
    """What was rendered is not what Triton takes: a defect of the renderer, never of the resource."""
