"""Record a session of ``tritonpipe`` as an animated picture: ``python -m hack.terminal``.

The commands run for real, in a folder with the files of the sample model. The picture shows their
output, each line when it was printed; longer waits are cut to ``LONGEST_WAIT``. It is not checked
by ``hack.verify``, because durations differ between runs.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from e2e.local import native
from e2e.models import tree

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "terminal.svg"
FOLDER: Final = Path(tempfile.gettempdir()) / "sentiment"
FILES: Final = (
    "s3/models/sentiment/model.onnx",
    "hub/sentence-transformers/all-MiniLM-L6-v2/tokenizer.json",
)
WIDTH: Final = 100
TYPED_SECONDS: Final = 1.0
LONGEST_WAIT: Final = 1.5
END_SECONDS: Final = 5.0
SERVE: Final = "tritonpipe serve sentiment.yaml --source-map pvc://replace-me/=file://$PWD/"
SESSION: Final = (
    "tritonpipe init --onnx model.onnx --tokenizer tokenizer.json --name sentiment"
    " --labels good,bad,unclear --output-file sentiment.yaml",
    "tritonpipe init --onnx model.onnx --tokenizer tokenizer.json --name sentiment"
    " --labels negative,positive --output-file sentiment.yaml",
    SERVE,
    'tritonpipe infer sentiment.yaml "Best concert of my life."'
    ' "The queue was endless and the food cold."',
)
"""The commands; the third one keeps running until the last has ended."""
READY: Final = "metrics "
"""The last thing that `serve` prints once it serves."""


@dataclass(frozen=True)
class Line:
    """A line of the terminal."""

    text: str
    """The line, with escape sequences for colors."""
    wait: float
    """Seconds since the previous line."""


@contextmanager
def started(command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; end it when the context ends."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=FOLDER,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": str(WIDTH),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)


def output(process: subprocess.Popen[str], until: str | None) -> Iterator[Line]:
    """Yield what a process prints until it ends, or up to the line that contains ``until``.

    Raises:
        RuntimeError: the process ended without printing ``until``.
    """
    assert process.stdout is not None
    last = time.monotonic()
    for line in process.stdout:
        now = time.monotonic()
        yield Line(line.rstrip("\n"), min(now - last, LONGEST_WAIT))
        last = now
        if until and until in line:
            return
    process.wait()
    if until:
        raise RuntimeError(f"{process.args!r} ended early")


def record() -> list[Line]:
    """Run the session; return the lines of the terminal."""
    native.install()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    lines: list[Line] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, FOLDER, ignore_errors=True)
        for name in FILES:
            shutil.copyfile(tree.build() / name, FOLDER / Path(name).name)
        for command in SESSION:
            until, suffix = (READY, " &") if command == SERVE else (None, "")
            prompt = f"\x1b[1;32m$\x1b[0m \x1b[1m{command}{suffix}\x1b[0m"
            process = stack.enter_context(started(command))
            lines += [Line(prompt, TYPED_SECONDS), *output(process, until), Line("", 0.0)]
    return lines


def picture(lines: list[Line]) -> str:
    """Return the SVG: the whole session, each line visible from its time on."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    shown, now = [], 0.0
    for line in lines:
        now += line.wait
        text = Text.from_ansi(line.text)
        shown += [now] * max(1, len(text.wrap(console, WIDTH)))
        console.print(text)
    svg = console.export_svg(title="tritonpipe", unique_id="terminal")
    # Viewers use their own monospace font instead of one from another host.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    length = now + END_SECONDS
    rules = [
        f'text[clip-path="url(#terminal-line-{number})"]'
        f"{{animation: line-{number} {length:.1f}s step-end infinite}}"
        f" @keyframes line-{number} {{from {{opacity: 0}} {100 * at / length:.2f}% {{opacity: 1}}}}"
        for number, at in enumerate(shown)
    ]
    style = "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}\n"
    return re.sub(r"(\s*</style>)", lambda match: f"\n{style}{match[1]}", svg, count=1)


if __name__ == "__main__":
    PICTURE.write_text(picture(record()), encoding="utf-8")
    print(f"written: {PICTURE.relative_to(ROOT)}")
