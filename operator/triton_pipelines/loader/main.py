"""``tritonpipe load``: read the plan, fetch, write, check, report."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
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
from triton_pipelines.loader.errors import LoaderError, NoSpaceError
from triton_pipelines.loader.fetching import FetchedSource, Fetcher
from triton_pipelines.loader.layout import Layout
from triton_pipelines.loader.model_checks import ModelInspection
from triton_pipelines.loader.python_packages import copy_package
from triton_pipelines.loader.repository import prepare, write_files
from triton_pipelines.loader.retry import Retrier, RetryPolicy
from triton_pipelines.loader.sources import Folders
from triton_pipelines.loader.staging import PARALLEL
from triton_pipelines.loader.uris import SourceMap
from triton_pipelines.redaction import RedactingFormatter, Redactor, redact_url

EXIT_OK: Final = 0
EXIT_USER: Final = 2
"""A finding that only the user can fix."""
EXIT_RETRY: Final = 3
"""A finding that another start of the container may fix."""
TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where the kubelet reads a container's last message.

It is Kubernetes' default ``terminationMessagePath``.
"""
STATE_FOLDER: Final = ".load"


@dataclass(frozen=True)
class LoadOptions:
    """Where everything is; the defaults are the pod's mounts."""

    revision: Path = Path(names.PATH_REVISION)
    """The revision's ConfigMap, with the plan."""
    live: Path = Path(names.PATH_LIVE)
    """The live ConfigMap."""
    root: Path = Path(names.PATH_ROOT)
    """The volume of the model repository."""
    credentials: Path = Path(names.PATH_CREDENTIALS)
    """Mounted Secrets, one folder per source."""
    ca: Path = Path(names.PATH_CA)
    """Mounted CA bundles, one folder per source."""
    configmaps: Path = Path(names.PATH_CONFIGMAPS)
    """Mounted ConfigMaps that are sources."""
    claims: Path = Path(names.PATH_CLAIMS)
    """Mounted claims that are sources."""
    termination: Path | None = TERMINATION_LOG
    """File of the report; ``None`` writes none."""
    source_map: SourceMap = field(default_factory=SourceMap)
    """Rules that rewrite source URIs."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often sources are tried."""
    cache: Path | None = None
    """Volume on which pods share fetched files; ``None`` for no cache."""
    cache_keep_free: float = 100 * KEEP_FREE
    """Percent of the cache volume that stays free."""
    folders: tuple[Path, ...] = ()
    """Folders to create if they are missing."""
    parallel: int = PARALLEL
    """Files of a source that are fetched at once."""

    @property
    def models(self) -> Path:
        """Return the model repository."""
        return self.root / Path(names.PATH_MODELS).name

    @property
    def site(self) -> Path:
        """Return the folder of Python packages."""
        return self.root / Path(names.PATH_SITE).name

    @property
    def state(self) -> Path:
        """Return the folder of unfinished downloads and of records of finished ones.

        It is on the volume of the repository, so that a rename is enough.
        """
        return self.root / STATE_FOLDER


def parse_options(argv: Sequence[str]) -> LoadOptions:
    """Return the options of a command line.

    ``TRITONPIPE_SOURCE_MAP`` adds rules to the source map; those of the command line win.
    """
    parser = _argument_parser(LoadOptions())
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


_PATHS: Final = (
    "revision",
    "live",
    "root",
    "credentials",
    "ca",
    "configmaps",
    "claims",
    "termination",
)
"""Options that are fields of :class:`LoadOptions` and paths."""


def _argument_parser(defaults: LoadOptions) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tritonpipe load",
        description="Fetch a pipeline revision's sources into its model repository.",
    )
    add = parser.add_argument
    for name in _PATHS:
        add(f"--{name}", type=Path, default=getattr(defaults, name), metavar="PATH")
    add("--cache", type=Path, metavar="PATH", help="volume on which pods share fetched files")
    add(
        "--cache-keep-free",
        type=_percent,
        default=defaults.cache_keep_free,
        metavar="PERCENT",
        help="share of the cache volume that stays free",
    )
    add(
        "--folder",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="folder to create if it is missing; repeatable",
    )
    add(
        "--parallel",
        type=_at_least_one,
        default=defaults.parallel,
        metavar="COUNT",
        help="files of a source fetched at once",
    )
    add(
        "--source-map",
        action="append",
        default=[],
        metavar="PREFIX=TARGET",
        help="rewrite source URIs; repeatable",
    )
    attempts = defaults.retry.attempts
    add("--retry-attempts", type=int, default=attempts, help="attempts in a row without progress")
    add("--retry-delay", type=float, default=defaults.retry.first_delay, metavar="SECONDS")
    return parser


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
    """Load and report; never raises.

    Returns:
        The exit code: 0, 2 (the user must fix something), or 3 (another start may help).
    """
    if not isinstance(options, LoadOptions):
        options = parse_options(options)
    redact = Redactor()
    log = _logger(redact, out or sys.stderr)
    report, code = load(options, redact, log)
    _write_report(report, options.termination, redact, log)
    return code


def load(options: LoadOptions, redact: Redactor, log: logging.Logger) -> tuple[LoadReport, int]:
    """Carry out the plan; return the redacted report and the exit code."""
    revision = ""
    loading: _Load | None = None
    try:
        plan = read_plan(options.revision)
        revision = plan.revision
        loading = _Load(plan, options, redact, log)
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


class _Load:
    """One run; it gathers errors, notes and sources, so that the report has what was reached."""

    def __init__(
        self, plan: LoadPlan, options: LoadOptions, redact: Redactor, log: logging.Logger
    ) -> None:
        self.errors: list[LoaderError] = []
        self.notes: list[LoadFinding] = []
        self.sources: list[ReportSource] = []
        self._plan, self._options, self._redact, self._log = plan, options, redact, log

    def run(self) -> None:
        """Fetch, write and check everything; errors are gathered in :attr:`errors`."""
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
        layout = Layout(plan)
        fetched = self._fetch_all(resolved, layout)
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
        ModelInspection(plan, options.models, written, self.errors, self.notes, self._log).run()

    def _fetch_all(
        self, resolved: Mapping[str, ResolvedSource], layout: Layout
    ) -> dict[str, FetchedSource]:
        """Fetch every source; return what succeeded, by the key of the plan's item."""
        plan, options = self._plan, self._options
        cache = (
            FileCache(options.cache, self._log, keep_free=options.cache_keep_free / 100)
            if options.cache is not None
            else None
        )
        fetcher = Fetcher(
            options.models,
            options.state,
            Folders(options.credentials, options.ca, options.configmaps, options.claims),
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
        fetched: dict[str, FetchedSource] = {}
        # Models first: the places of other files depend on the versions that the models have.
        models_first = sorted(plan.fetch, key=lambda item: item.kind is not FetchKind.MODEL)
        try:
            for item in models_first:
                done = self._fetch(fetcher, item, resolved.get(item.key), ready[item.key], layout)
                if done is not None:
                    fetched[item.key] = done
        finally:
            finding = cache.finding() if cache is not None else None
            if finding is not None:
                self.notes.append(finding)
            for item in plan.fetch:
                if item.key in fetched:
                    self.sources.append(fetched[item.key].source)
                    self.notes.extend(fetched[item.key].findings)
        return fetched

    def _make(self, folder: Path) -> None:
        """Create a folder of a shared volume that Triton writes to.

        If that fails the volume is broken, which shows when the folder is used.
        """
        try:
            folder.mkdir(mode=0o2775, parents=True, exist_ok=True)
        except OSError as error:
            self._log.warning("%s cannot be made: %s", folder, error.strerror)

    def _fetch(
        self,
        fetcher: Fetcher,
        item: PlanFetch,
        resolved: ResolvedSource | None,
        ready: FetchedSource | None,
        layout: Layout,
    ) -> FetchedSource | None:
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
        except LoaderError as error:
            self.errors.append(error)
            return None
        layout.found(item, done.versions)
        return done


def read_plan(folder: Path) -> LoadPlan:
    """Return the revision's plan.

    Raises:
        LoaderError: the plan is not readable or not valid; names the first field in error.
    """
    path = folder / names.KEY_PLAN
    try:
        return LoadPlan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR, f"{path} cannot be read: {error.strerror}"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            f"{path}: {where}: {first['msg']} (operator and loader of different versions?)",
        ) from error


def read_counts(folder: Path, log: logging.Logger) -> dict[str, int]:
    """Return the desired instance counts by step; none if absent.

    Invalid ones are logged and ignored: the pod then starts with initial counts.
    """
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
    """Return what each step's source was at the first load of ``revision``.

    Raises:
        LoaderError: the content is not valid; to ignore it could make pods differ.
    """
    path = folder / names.KEY_RESOLVED
    try:
        return ResolvedSources.model_validate_json(path.read_bytes()).root.get(revision, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise LoaderError(
            LoadReason.INTERNAL_ERROR, f"{path} is not usable: {str(error).partition(chr(10))[0]}"
        ) from error


def _unexpected(error: Exception, options: LoadOptions) -> LoaderError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(None, free_bytes(options.root), error.filename or str(options.root))
    return LoaderError(LoadReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


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
