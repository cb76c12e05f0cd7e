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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

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


def run(command: str, *, until: str | None = None) -> Iterator[Line | subprocess.Popen[str]]:
    """Yield a command and its output; the running process at the end if ``until`` was printed.

    Raises:
        RuntimeError: the process ended without printing ``until``.
    """
    suffix = " &" if until else ""
    yield Line(f"\x1b[1;32m$\x1b[0m \x1b[1m{command}{suffix}\x1b[0m", TYPED_SECONDS)
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
    assert process.stdout is not None
    last = time.monotonic()
    for line in process.stdout:
        now = time.monotonic()
        yield Line(line.rstrip("\n"), min(now - last, LONGEST_WAIT))
        last = now
        if until and until in line:
            yield process
            return
    process.wait()
    if until:
        raise RuntimeError(f"{command} ended early")


def record() -> list[Line]:
    """Run the session; return the lines of the terminal."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name in FILES:
        shutil.copyfile(tree.build() / name, FOLDER / Path(name).name)
    lines: list[Line] = []
    serving: list[subprocess.Popen[str]] = []
    try:
        for command in SESSION:
            for item in run(command, until=READY if command == SERVE else None):
                lines.append(item) if isinstance(item, Line) else serving.append(item)
            lines.append(Line("", 0.0))
    finally:
        for process in serving:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
        shutil.rmtree(FOLDER, ignore_errors=True)
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
