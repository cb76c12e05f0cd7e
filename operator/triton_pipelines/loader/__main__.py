"""Run the loader without the rest of the command line: ``python -m triton_pipelines.loader``."""

from __future__ import annotations

import sys

from triton_pipelines.loader.main import run_process

if __name__ == "__main__":
    sys.exit(run_process(sys.argv[1:]))
