"""Read the log of a tritonserver that failed to start."""

from __future__ import annotations

import re
from typing import Final

_PORT_TAKEN: Final = re.compile(
    r"[Aa]ddress (already )?in use|failed to start (HTTP|GRPC|Metrics) service|Unable to bind"
)
_ERROR_LINE: Final = re.compile(
    r"^(?:E\d{4} [\d:.]+ \d+ (?:[\w.]+:\d+\] )?|\[libprotobuf ERROR \S+\] |\S*tritonserver: )(.*)$"
)
_UNCAUGHT: Final = re.compile(
    r"^terminate called after throwing an instance of '(?P<type>[^']*)'\n\s*what\(\):(?P<what>.*)$",
    re.MULTILINE,
)
"""What the C++ runtime prints before it aborts the process."""
_HARMLESS: Final = re.compile(r"CUDA|Cuda|cuda|pinned memory|NVML|DCGM|unable to create stream")
"""Error lines that every machine without a GPU logs and that explain nothing."""
_LINES: Final = 3


def is_port_taken(log: str) -> bool:
    """Return whether the server ended because another program has one of its ports.

    tritonserver has no exit code for it. The wording is that of Triton 2.51.0 for its HTTP, gRPC
    and metrics services, and that of the system ("Address already in use").
    """
    return _PORT_TAKEN.search(log) is not None


def failure_reason(log: str) -> str:
    """Return the server's own error lines, for messages; else the end of its log.

    Some reasons are only in the log. An exception that ended the server comes last. Error lines
    are those of Triton's log format (2.51.0), those
    of protobuf on a config that it cannot parse, and those of getopt on an unknown flag.
    """
    matches = (_ERROR_LINE.match(line) for line in log.splitlines())
    errors = [match[1].strip('"') for match in matches if match and not _HARMLESS.search(match[0])]
    # The first error is the cause of the others.
    first = list(dict.fromkeys(errors))[:_LINES]
    uncaught = _UNCAUGHT.search(log)
    if uncaught is not None:
        first.append(f"uncaught {uncaught['type']}: {uncaught['what'].strip()}")
    return (
        " | ".join(first) or " | ".join(log.strip().splitlines()[-_LINES:]) or "it logged nothing"
    )
