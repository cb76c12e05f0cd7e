"""The init container: fetch sources, write the model repository, check it and report."""

from triton_pipelines.loader.main import exit_on_sigterm, load, run
from triton_pipelines.loader.options import LoadOptions

__all__ = ["LoadOptions", "exit_on_sigterm", "load", "run"]
