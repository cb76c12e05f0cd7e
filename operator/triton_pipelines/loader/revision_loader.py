"""Carry out the plan of a revision: fetch its sources, write its files, check them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadFinding,
    LoadPlan,
    PlanFetch,
    ReportSource,
    ResolvedSource,
)
from triton_pipelines.loader.cache import FileCache
from triton_pipelines.loader.errors import LoaderError, LoadStoppedError, NoSpaceError
from triton_pipelines.loader.fetching import FetchedSource, Fetcher
from triton_pipelines.loader.inputs import read_counts, read_resolved
from triton_pipelines.loader.layout import Layout
from triton_pipelines.loader.model_checks import ModelInspection
from triton_pipelines.loader.native_library import copy_library
from triton_pipelines.loader.options import LoadOptions
from triton_pipelines.loader.repository import below, prepare, write_files
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.sources import Folders
from triton_pipelines.redaction import Redactor, redact_url


class RevisionLoader:
    """One run; it gathers errors, notes and sources, so that the report has what was reached."""

    def __init__(
        self, plan: LoadPlan, options: LoadOptions, redact: Redactor, log: logging.Logger
    ) -> None:
        self.errors: list[LoaderError] = []
        self.notes: list[LoadFinding] = []
        self.sources: list[ReportSource] = []
        self._plan, self._options, self._redact, self._log = plan, options, redact, log
        self._failed = threading.Event()

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
        for library in plan.libraries:
            try:
                copy_library(below(options.models, library.path), library)
            except LoaderError as error:
                self.errors.append(error)
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
            Folders(
                options.credentials,
                options.ca,
                options.configmaps,
                options.claims,
                options.images,
            ),
            options.source_map,
            Retrier(self._log, options.retry),
            self._redact,
            self._log,
            cache=cache,
            parallel=options.parallel,
            load_failed=self._failed,
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
            self._failed.set()
            return None
        except LoadStoppedError as stopped:
            self._log.info("%s %s: %s", item.spec_field, redact_url(item.uri), stopped)
            return None
        layout.found(item, done.versions)
        return done
