"""The init container.

Fetches a pipeline revision's sources, writes its model repository, checks it and reports.
"""

from triton_pipelines.loader.main import LoadOptions, exit_on_sigterm, load, run

__all__ = ["LoadOptions", "exit_on_sigterm", "load", "run"]
