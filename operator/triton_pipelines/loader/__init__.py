"""The init container: fetch sources, write the model repository, check it and report."""

from triton_pipelines.loader.main import LoadOptions, exit_on_sigterm, load, run

__all__ = ["LoadOptions", "exit_on_sigterm", "load", "run"]
