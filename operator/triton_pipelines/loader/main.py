"""``tritonpipe load``: read the plan, fetch, write, check, report."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

from triton_pipelines.api.loadplan import (
    INFORMATIVE,
    LoadReason,
    LoadReport,
)
from triton_pipelines.api.loadreport import EXIT_PERMANENT
from triton_pipelines.loader.environment import drop_ignored
from triton_pipelines.loader.errors import LoaderError, NoSpaceError
from triton_pipelines.loader.files import free_bytes, write_atomically
from triton_pipelines.loader.inputs import read_plan
from triton_pipelines.loader.options import LoadOptions, parse_options
from triton_pipelines.loader.revision_loader import RevisionLoader
from triton_pipelines.redaction import RedactingFormatter, Redactor

EXIT_OK: Final = 0
EXIT_USER: Final = EXIT_PERMANENT
"""A finding that only the user can fix."""
EXIT_RETRY: Final = 3
"""A finding that another start of the container may fix."""


def run_process(arguments: Sequence[str]) -> int:
    """Run as the process of the init container; return the exit code.

    The arguments alone decide: see :mod:`triton_pipelines.loader.environment`.
    """
    exit_on_sigterm()
    if ignored := drop_ignored():
        sys.stderr.write(f"ignored environment variables: {', '.join(ignored)}\n")
    return run(arguments)


def run(options: Sequence[str] | LoadOptions, out: TextIO | None = None) -> int:
    """Load and report; never raises.

    Returns:
        The exit code: 0, 2 (the user must fix something), or 3 (another start may help).
    """
    if not isinstance(options, LoadOptions):
        options = parse_options(options)
    redact = Redactor()
    log = _logger(redact, out or sys.stderr)
    report, code = load(options, redact, log)
    _write_report(report, options.termination, log)
    return code


def load(options: LoadOptions, redact: Redactor, log: logging.Logger) -> tuple[LoadReport, int]:
    """Carry out the plan; return the redacted report and the exit code."""
    revision = ""
    loading: RevisionLoader | None = None
    try:
        plan = read_plan(options.revision)
        revision = plan.revision
        loading = RevisionLoader(plan, options, redact, log)
        loading.run()
        errors = loading.errors
    except LoaderError as error:
        errors = [*(loading.errors if loading else ()), error]
    except Exception as error:
        log.exception("unexpected error")
        errors = [*(loading.errors if loading else ()), _unexpected(error, options)]
    findings = [*(error.finding() for error in errors), *(loading.notes if loading else ())]
    report = LoadReport(
        ok=not errors,
        revision=revision,
        sources=tuple(loading.sources) if loading else (),
        findings=tuple(
            item.model_copy(update={"message": redact(item.message)}) for item in findings
        ),
    )
    for item in report.findings:
        level = logging.INFO if item.reason in INFORMATIVE else logging.ERROR
        log.log(level, "%s %s: %s", item.reason.value, item.field or "", item.message)
    if not errors:
        log.info("revision %s is loaded", revision)
        return report, EXIT_OK
    return report, EXIT_RETRY if all(
        error.retryable or error.reason is LoadReason.INTERNAL_ERROR for error in errors
    ) else EXIT_USER


def _unexpected(error: Exception, options: LoadOptions) -> LoaderError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(None, free_bytes(options.root), error.filename or str(options.root))
    return LoaderError(LoadReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _write_report(report: LoadReport, path: Path | None, log: logging.Logger) -> None:
    if path is None:
        return
    data = report.to_json().encode()
    try:
        if path.exists():
            # The kubelet mounts this very file: it is written in place.
            path.write_bytes(data)
        else:
            write_atomically(path, data)
    except (OSError, LoaderError) as error:
        log.warning("the report cannot be written to %s: %s", path, error)


def _logger(redact: Redactor, out: TextIO) -> logging.Logger:
    """Return a logger of this run alone, which redacts every line it writes to ``out``.

    Libraries are kept quiet: httpx would log whole URLs.
    """
    log = logging.Logger("load", logging.INFO)
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(redact, "%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    for library in ("httpx", "httpcore", "huggingface_hub", "urllib3"):
        logging.getLogger(library).setLevel(logging.WARNING)
    return log


def exit_on_sigterm() -> None:
    """End at once on SIGTERM, which a Python process as process 1 of a container would ignore.

    Whatever is unfinished is resumed or repeated at the next start.
    """

    def stop(number: int, _: FrameType | None) -> None:
        os._exit(128 + number)

    handler: Callable[[int, FrameType | None], None] = stop
    signal.signal(signal.SIGTERM, handler)
