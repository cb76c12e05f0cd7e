"""Run the loader without the rest of the command line: ``python -m triton_pipelines.loader``."""

from __future__ import annotations

import sys

from triton_pipelines.loader.main import exit_on_sigterm, run

if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(run(sys.argv[1:]))
