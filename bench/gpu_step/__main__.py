"""Step time of BERT-like encoders on a GPU, for every way to batch texts of different lengths.

    python -m bench.gpu_step OUT_FOLDER [--minutes N] [--blocks MODEL:PRECISION,...] [--rehearse]
    python -m bench.gpu_step --report FILE [--plot NAME]

It measures ONNX Runtime's CUDA execution provider (and PyTorch, where installed) with random
weights in the shapes of all-MiniLM-L6-v2 and BERT-base, and writes ``OUT_FOLDER/gpu-step.json``.
All times include what a Triton step does per execution: preparing the inputs in host memory, the
copies to and from the GPU, and waiting for the answer. The package needs numpy, onnx and
onnxruntime only; PyTorch is optional.

Every block (a model at a precision) runs in a process of its own: a CUDA error cannot be cleared
within a process. A graph that ends its process is left out when the block runs again.
``--rehearse`` runs tiny shapes on the CPU, where graphs with CUDA-only operators report that no
kernel exists.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.gpu_step.processes import BLOCKS, REHEARSED, child, run_all
from bench.gpu_step.report import plot, report


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", nargs="?", type=Path, help="folder for the results")
    parser.add_argument("--minutes", type=float, default=6.0, help="bound of the whole run")
    parser.add_argument("--blocks", help=f"of {','.join(BLOCKS)}; default: all, in this order")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--report", type=Path, help="print the Markdown tables of a results file")
    parser.add_argument("--plot", help="with --report: name of the plot to write")
    parser.add_argument("--block", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--without", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        results = json.loads(options.report.read_text(encoding="utf-8"))
        print("\n".join(report(results)))
        if options.plot:
            plot(options.plot, results)
        return
    if not options.out:
        parser.error("OUT_FOLDER is missing")
    if options.block:
        without = [form for form in options.without.split(",") if form]
        child(options.block, options.out, options.seconds, without, options.rehearse)
        return
    default = REHEARSED if options.rehearse else BLOCKS
    blocks = options.blocks.split(",") if options.blocks else default
    run_all(options.out, options.minutes, blocks, options.rehearse)


if __name__ == "__main__":
    main()
