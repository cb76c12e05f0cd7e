"""``tritonpipe load``: reads the plan, fetches, writes, checks, reports."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

from pydantic import ValidationError

from triton_pipelines.api import names
from triton_pipelines.api.loadplan import (
    INFORMATIVE,
    FetchKind,
    LiveCounts,
    LoadFinding,
    LoadPlan,
    LoadReason,
    LoadReport,
    PlanFetch,
    ReportSource,
    ResolvedSource,
    ResolvedSources,
)
from triton_pipelines.loader.cache import KEEP_FREE, FileCache
from triton_pipelines.loader.download import free_bytes, write_atomically
from triton_pipelines.loader.errors import LoadError, NoSpaceError
from triton_pipelines.loader.fetching import Fetched, Fetcher
from triton_pipelines.loader.layout import Layout
from triton_pipelines.loader.model_checks import Inspection
from triton_pipelines.loader.python_packages import copy_package
from triton_pipelines.loader.repository import prepare, write_files
from triton_pipelines.loader.retry import Retrier, RetryPolicy
from triton_pipelines.loader.sources import Folders
from triton_pipelines.loader.staging import PARALLEL
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.redaction import RedactingFormatter, Redactor, redact_url

EXIT_OK: Final = 0
EXIT_USER: Final = 2
"""A finding that only the user can mend."""
EXIT_RETRY: Final = 3
"""A finding that another start of the container may mend."""
TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where the kubelet reads a container's last words (Kubernetes' default ``terminationMessagePath``)."""
STATE_FOLDER: Final = ".load"


@dataclass(frozen=True)
class LoadOptions:
    """Where everything lies; the defaults are the pod's mounts. ``termination`` None writes no report file."""

    revision: Path = Path(names.PATH_REVISION)
    live: Path = Path(names.PATH_LIVE)
    root: Path = Path(names.PATH_ROOT)
    credentials: Path = Path(names.PATH_CREDENTIALS)
    ca: Path = Path(names.PATH_CA)
    configmaps: Path = Path(names.PATH_CONFIGMAPS)
    claims: Path = Path(names.PATH_CLAIMS)
    termination: Path | None = TERMINATION_LOG
    source_map: SourceMap = field(default_factory=SourceMap)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    cache: Path | None = None
    cache_keep_free: float = 100 * KEEP_FREE
    folders: tuple[Path, ...] = ()
    parallel: int = PARALLEL

    @property
    def models(self) -> Path:
        """The model repository."""
        return self.root / Path(names.PATH_MODELS).name

    @property
    def site(self) -> Path:
        """The folder of Python packages."""
        return self.root / Path(names.PATH_SITE).name

    @property
    def state(self) -> Path:
        """Unfinished downloads and records of finished ones, on the volume of the repository so that a rename is enough."""
        return self.root / STATE_FOLDER


def parse_options(argv: Sequence[str]) -> LoadOptions:
    """Options from a command line; ``TRITONPIPE_SOURCE_MAP`` adds rules, those of the command line win."""
    parser = argparse.ArgumentParser(
        prog="tritonpipe load",
        description="Fetch a pipeline revision's sources into its model repository.",
    )
    defaults = LoadOptions()
    for name in (
        "revision",
        "live",
        "root",
        "credentials",
        "ca",
        "configmaps",
        "claims",
        "termination",
    ):
        parser.add_argument(f"--{name}", type=Path, default=getattr(defaults, name), metavar="PATH")
    parser.add_argument(
        "--cache",
        type=Path,
        default=None,
        metavar="PATH",
        help="a volume on which pods share fetched files",
    )
    parser.add_argument(
        "--cache-keep-free",
        type=_percent,
        default=defaults.cache_keep_free,
        metavar="PERCENT",
        help="share of the cache volume that stays free",
    )
    parser.add_argument(
        "--folder",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="made where it is missing; repeatable",
    )
    parser.add_argument(
        "--parallel",
        type=_at_least_one,
        default=defaults.parallel,
        metavar="COUNT",
        help="files of a source fetched at once",
    )
    parser.add_argument(
        "--source-map",
        action="append",
        default=[],
        metavar="PREFIX=TARGET",
        help="rewrite source URIs; repeatable",
    )
    parser.add_argument(
        "--retry-attempts",
        type=int,
        default=defaults.retry.attempts,
        help="tries in a row without progress",
    )
    parser.add_argument(
        "--retry-delay", type=float, default=defaults.retry.first_delay, metavar="SECONDS"
    )
    values = vars(parser.parse_args(argv))
    rules = [*os.environ.get(names.ENV_SOURCE_MAP, "").split(","), *values.pop("source_map")]
    retry = RetryPolicy(
        attempts=values.pop("retry_attempts"), first_delay=values.pop("retry_delay")
    )
    try:
        folders = tuple(values.pop("folder"))
        return LoadOptions(
            **values, folders=folders, source_map=SourceMap.parse(rules), retry=retry
        )
    except ValueError as error:
        parser.error(str(error))


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 90:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 90")
    return value


def _at_least_one(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 64:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 64")
    return value


def run(options: Sequence[str] | LoadOptions, out: TextIO | None = None) -> int:
    """Load and report; the exit code: 0, 2 (the user must mend something), 3 (another start may help). Never raises."""
    if not isinstance(options, LoadOptions):
        options = parse_options(options)
    redact = Redactor()
    log = _logger(redact, out or sys.stderr)
    report, code = load(options, redact, log)
    _write_report(report, options.termination, redact, log)
    return code


def load(options: LoadOptions, redact: Redactor, log: logging.Logger) -> tuple[LoadReport, int]:
    """Do what the plan says; the report, redacted, and the exit code."""
    revision = ""
    loading: _Load | None = None
    try:
        plan = read_plan(options.revision)
        revision = plan.revision
        loading = _Load(plan, options, redact, log)
        loading.run()
        errors = loading.errors
    except LoadError as error:
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


class _Load:
    """One run; errors, notes and sources gather here so that the report holds what was reached."""

    def __init__(
        self, plan: LoadPlan, options: LoadOptions, redact: Redactor, log: logging.Logger
    ) -> None:
        self.errors: list[LoadError] = []
        self.notes: list[LoadFinding] = []
        self.sources: list[ReportSource] = []
        self._plan, self._options, self._redact, self._log = plan, options, redact, log

    def run(self) -> None:
        plan, options = self._plan, self._options
        self._log.info(
            "pipeline %s/%s, revision %s: %d sources",
            plan.namespace,
            plan.pipeline,
            plan.revision,
            len(plan.fetch),
        )
        resolved = read_resolved(options.live, plan.revision)
        counts = read_counts(options.live, self._log)
        folders = Folders(options.credentials, options.ca, options.configmaps, options.claims)
        cache = (
            FileCache(options.cache, self._log, keep_free=options.cache_keep_free / 100)
            if options.cache is not None
            else None
        )
        fetcher = Fetcher(
            options.models,
            options.state,
            folders,
            options.source_map,
            Retrier(self._log, options.retry),
            self._redact,
            self._log,
            cache=cache,
            parallel=options.parallel,
        )
        ready = {item.key: fetcher.reusable(item, resolved.get(item.key)) for item in plan.fetch}
        kept = [path for done in ready.values() if done for path in done.files]
        prepare(options.models, kept, options.state / "started")
        for folder in options.folders:
            self._make(folder)
        layout = Layout(plan)
        fetched: dict[str, Fetched] = {}
        # Models first: where other files go hangs on the versions that their sources have.
        try:
            for item in sorted(plan.fetch, key=lambda item: item.kind is not FetchKind.MODEL):
                if (
                    done := self._fetch(
                        fetcher, item, resolved.get(item.key), ready[item.key], layout
                    )
                ) is not None:
                    fetched[item.key] = done
        finally:
            if cache is not None and (finding := cache.finding()) is not None:
                self.notes.append(finding)
            for item in plan.fetch:
                if item.key in fetched:
                    self.sources.append(fetched[item.key].source)
                    self.notes.extend(fetched[item.key].findings)
        for change in write_files(plan, options.revision, options.models, counts, layout.of_plan()):
            self._log.info("count set: %s", change)
        for package in plan.site:
            options.site.mkdir(parents=True, exist_ok=True)
            copy_package(package, options.site)
        written = {
            str(path.relative_to(options.models)): done.source.uri
            for done in fetched.values()
            for path in done.files
        }
        Inspection(plan, options.models, written, self.errors, self.notes, self._log).run()

    def _make(self, folder: Path) -> None:
        """A folder of a shared volume that Triton writes to. Where it cannot be made the volume is out of order, which shows in its use."""
        try:
            folder.mkdir(mode=0o2775, parents=True, exist_ok=True)
        except OSError as error:
            self._log.warning("%s cannot be made: %s", folder, error.strerror)

    def _fetch(
        self,
        fetcher: Fetcher,
        item: PlanFetch,
        resolved: ResolvedSource | None,
        ready: Fetched | None,
        layout: Layout,
    ) -> Fetched | None:
        try:
            if ready is None:
                done = fetcher.fetch(item, resolved, layout)
            else:
                done = ready
                layout.note(
                    item, [str(path.relative_to(self._options.models)) for path in done.files]
                )
                self._log.info(
                    "%s %s: complete since an earlier attempt",
                    item.spec_field,
                    redact_url(item.uri),
                )
        except NoSpaceError:
            raise
        except LoadError as error:
            self.errors.append(error)
            return None
        layout.found(item, done.versions)
        return done


def read_plan(folder: Path) -> LoadPlan:
    """The revision's plan. Raises :class:`LoadError` (InternalError) that names the first field in error."""
    path = folder / names.KEY_PLAN
    try:
        return LoadPlan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise LoadError(
            LoadReason.INTERNAL_ERROR, f"{path} cannot be read: {error.strerror}"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise LoadError(
            LoadReason.INTERNAL_ERROR,
            f"{path}: {where}: {first['msg']} (operator and loader of different versions?)",
        ) from error


def read_counts(folder: Path, log: logging.Logger) -> dict[str, int]:
    """Desired counts by step; none when absent. Broken ones are logged and left out: a pod starts with initial counts then."""
    path = folder / names.KEY_COUNTS
    try:
        return LiveCounts.model_validate_json(path.read_bytes()).root
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        log.warning(
            "%s is not usable, initial counts are used: %s", path, str(error).partition("\n")[0]
        )
        return {}


def read_resolved(folder: Path, revision: str) -> dict[str, ResolvedSource]:
    """What each step's source resolved to at the first load of ``revision``; broken content is an error, since pods could differ."""
    path = folder / names.KEY_RESOLVED
    try:
        return ResolvedSources.model_validate_json(path.read_bytes()).root.get(revision, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise LoadError(
            LoadReason.INTERNAL_ERROR, f"{path} is not usable: {str(error).partition(chr(10))[0]}"
        ) from error


def _unexpected(error: Exception, options: LoadOptions) -> LoadError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(None, free_bytes(options.root), error.filename or str(options.root))
    return LoadError(LoadReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _write_report(
    report: LoadReport, path: Path | None, redact: Redactor, log: logging.Logger
) -> None:
    if path is None:
        return
    data = report.to_json().encode()
    try:
        if path.exists():
            # The kubelet mounts this very file: it is written in place.
            path.write_bytes(data)
        else:
            write_atomically(path, data)
    except (OSError, LoadError) as error:
        log.warning("the report cannot be written to %s: %s", path, error)


def _logger(redact: Redactor, out: TextIO) -> logging.Logger:
    """A logger of this run alone: lines on ``out``, each redacted. Libraries log nothing: httpx would print whole URLs."""
    log = logging.Logger("load", logging.INFO)
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(redact, "%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    for library in ("httpx", "httpcore", "huggingface_hub", "urllib3"):
        logging.getLogger(library).setLevel(logging.WARNING)
    return log


def exit_on_sigterm() -> None:
    """As process 1 of a container a Python process ignores SIGTERM; end at once, what is half done is resumed or redone."""

    def stop(number: int, _: FrameType | None) -> None:
        os._exit(128 + number)

    handler: Callable[[int, FrameType | None], None] = stop
    signal.signal(signal.SIGTERM, handler)
