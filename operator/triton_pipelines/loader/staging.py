"""From a readable source to complete files in a staging folder: one file, a tokenizer, a model's versions or a folder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadFinding,
    LoadReason,
    PlanFetch,
    ResolvedSource,
)
from triton_pipelines.loader import tokenizer_files
from triton_pipelines.loader.download import (
    Downloaded,
    Downloader,
    Job,
    free_bytes,
    sha256_of,
    write_atomically,
)
from triton_pipelines.loader.errors import LoadError, NoSpaceError, SourceError
from triton_pipelines.loader.listing import Entry, Record, digest
from triton_pipelines.loader.onnx_file import read_onnx
from triton_pipelines.loader.progress import GroupProgress
from triton_pipelines.loader.repository import below
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.selection import FIRST, ignored_finding, select
from triton_pipelines.loader.sources import Opened, join

PARALLEL: Final = 4
"""Files of a source that are fetched at once. More would share the same network."""


@dataclass(frozen=True)
class Staged:
    """Files that lie complete in the staging folder: target (relative to the repository) to staged file and its digest.

    ``versions`` are those of a model; ``notes`` inform.
    """

    files: Mapping[str, tuple[Path, str]]
    sha256: str
    revision: str | None
    resumed: bool
    versions: tuple[int, ...] = ()
    notes: tuple[LoadFinding, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Where and for whom files are staged: the item, its source and the commit it is at; ``what`` starts every log line."""

    item: PlanFetch
    opened: Opened
    folder: Path
    what: str
    commit: str | None
    resolved: ResolvedSource | None
    scope: str


class Stager:
    """Stages items; ``parallel`` files of one at once."""

    def __init__(
        self,
        downloader: Downloader,
        retrier: Retrier,
        log: logging.Logger,
        parallel: int = PARALLEL,
    ) -> None:
        self._downloader, self._retrier, self._log, self._parallel = (
            downloader,
            retrier,
            log,
            parallel,
        )

    def files(self, stage: Stage) -> Staged:
        """Everything that the item takes. Raises :class:`SourceError` and :class:`LoadError`."""
        self._unpack(stage)
        match stage.item.kind:
            case FetchKind.TOKENIZER:
                return self._tokenizer(stage)
            case FetchKind.FILE:
                return self._file(stage)
        return self._tree(stage)

    def _unpack(self, stage: Stage) -> None:
        """Fetch the archives of a registry's image and lay them out; other sources have none."""
        from triton_pipelines.loader.sources.oci import OciSource

        source = stage.opened.source
        if not isinstance(source, OciSource) or not source.packed:
            return
        folder = stage.folder / "layers"
        entries = {
            layer.digest: Entry(layer.digest, layer.size, layer.digest) for layer in source.packed
        }
        got = self._all(
            stage, [(name, name, folder / name.partition(":")[2]) for name in entries], entries
        )
        self._log.info("%s: unpacking %d layers", stage.what, len(got))
        place = stage.opened.place if stage.opened.place is not None else (stage.item.path or "")
        source.unpack([got[layer.digest].path for layer in source.packed], place)
        for done in got.values():
            # Space counts more here than a second download after a restart.
            done.path.unlink(missing_ok=True)

    def _tree(self, stage: Stage) -> Staged:
        item, place = stage.item, stage.opened.place
        assert place is not None
        listing = self._retrier.run(stage.what, lambda: stage.opened.source.list(place))
        before = Record.parse(stage.resolved.revision) if stage.resolved is not None else None
        try:
            chosen = select(item, listing, before.versions if before else ())
        except LoadError as error:
            error.message = f"{stage.what}: {error.message}"
            raise
        now = digest(chosen.files.values())
        if before is not None and before.listing not in (None, now):
            self._log.info(
                "%s: its listing is another than at this revision's first load; its content is compared",
                stage.what,
            )
        wanted = [
            (
                entry.name,
                place if listing.single else join(place, entry.name),
                self._at(stage, entry.name),
            )
            for entry in chosen.files.values()
        ]
        got = self._all(stage, wanted, {entry.name: entry for entry in chosen.files.values()})
        files = {
            f"{item.target}/{path}": (got[entry.name].path, got[entry.name].sha256)
            for path, entry in chosen.files.items()
        }
        # Of a folder's own file the data files lie beside it, of a URI's file beside that.
        parent = PurePosixPath(place).parent if listing.single else PurePosixPath(place)
        for path in chosen.onnx:
            main = chosen.files[path]
            beside = "" if listing.single else str(PurePosixPath(main.name).parent)
            names = {
                join("" if beside == "." else beside, name): name
                for name in _side_files(item, got[main.name].path, stage.what)
            }
            sides = self._all(
                stage,
                [
                    (
                        key,
                        join("" if str(parent) == "." else str(parent), key),
                        self._at(stage, key),
                    )
                    for key in names
                ],
                {},
            )
            files |= {
                str(PurePosixPath(f"{item.target}/{path}").parent / names[key]): (
                    done.path,
                    done.sha256,
                )
                for key, done in sides.items()
            }
            got |= sides
        notes = (ignored_finding(item, chosen.ignored),) if chosen.ignored else ()
        versions = chosen.versions or (FIRST,)
        revision = next(iter(got.values())).revision if listing.single or now is None else None
        record = (
            str(Record(chosen.versions, now))
            if not listing.single and (chosen.versions or now)
            else None
        )
        return replace(
            _staged(files, got, stage.commit or record or revision), versions=versions, notes=notes
        )

    def _file(self, stage: Stage) -> Staged:
        item, file = stage.item, self._named(stage)
        assert file is not None
        main = self._one(stage, file)
        got, files = {PurePosixPath(file).name: main}, {item.target: (main.path, main.sha256)}
        if item.target.endswith(".onnx"):
            folder = PurePosixPath(file).parent
            for name in _side_files(item, main.path, stage.what):
                side = self._one(stage, str(folder / name))
                got[name] = side
                files[str(PurePosixPath(item.target).parent / name)] = (side.path, side.sha256)
        return _staged(files, got, stage.commit or main.revision)

    def _named(self, stage: Stage) -> str | None:
        """The file that is wanted; an artifact that holds one file alone needs no name for it."""
        file = stage.opened.file
        if stage.opened.located.scheme == "oci" and stage.item.path is None and file is not None:
            names = stage.opened.source.list("").names
            if file not in names and len(names) == 1:
                return names[0]
        return file

    def _tokenizer(self, stage: Stage) -> Staged:
        item, file = stage.item, stage.opened.file
        if file is not None and PurePosixPath(file).name != tokenizer_files.VOCABULARY:
            main = self._one(stage, file)
            return _staged(
                {item.target: (main.path, main.sha256)},
                {PurePosixPath(file).name: main},
                stage.commit or main.revision,
            )
        folder = PurePosixPath(file).parent if file is not None else PurePosixPath()
        if file is None:
            try:
                main = self._one(stage, tokenizer_files.TOKENIZER_JSON)
                return _staged(
                    {item.target: (main.path, main.sha256)},
                    {tokenizer_files.TOKENIZER_JSON: main},
                    stage.commit or main.revision,
                )
            except SourceError as error:
                if not error.missing:
                    raise
        got: dict[str, Downloaded] = {}
        for name in (
            tokenizer_files.VOCABULARY,
            tokenizer_files.CONFIGURATION,
            tokenizer_files.SPECIAL_TOKENS,
        ):
            try:
                got[name] = self._one(stage, str(folder / name))
            except SourceError as error:
                if not error.missing:
                    raise
                if name != tokenizer_files.SPECIAL_TOKENS:
                    raise SourceError(
                        f"has neither {tokenizer_files.TOKENIZER_JSON} nor {tokenizer_files.VOCABULARY} with its {tokenizer_files.CONFIGURATION} ({error})",
                        missing=True,
                    ) from error
        try:
            text = tokenizer_files.convert({name: value.path for name, value in got.items()})
        except ValueError as error:
            advice = "Save the tokenizer as tokenizer.json (save_pretrained of its fast class) and use that."
            raise tokenizer_files.invalid(
                f"{stage.what}: {error}. {advice}", item.step, item.spec_field
            ) from error
        built = stage.folder / "built" / tokenizer_files.TOKENIZER_JSON
        write_atomically(built, text.encode())
        self._log.info("%s: built tokenizer.json from %s", stage.what, ", ".join(got))
        return _staged(
            {item.target: (built, sha256_of(built))},
            got,
            stage.commit or got[tokenizer_files.VOCABULARY].revision,
        )

    def _one(self, stage: Stage, name: str) -> Downloaded:
        what = f"{stage.what} {name}" if stage.opened.file != name else stage.what
        return self._downloader.fetch(
            Job(stage.opened.source, name, below(stage.folder, name), what, stage.scope)
        )

    def _at(self, stage: Stage, name: str) -> Path:
        """A folder of its own for each file: no two names can meet there, whatever a source calls them."""
        return (
            stage.folder
            / "files"
            / sha256(name.encode()).hexdigest()[:16]
            / PurePosixPath(name).name
        )

    def _all(
        self, stage: Stage, wanted: Sequence[tuple[str, str, Path]], entries: Mapping[str, Entry]
    ) -> dict[str, Downloaded]:
        """Fetch files (key, name in the source, staged path), several at once; by key. The first that fails ends the others."""
        from triton_pipelines.loader.sources.oci import OciSource

        source, found = stage.opened.source, dict[str, Downloaded]()
        jobs: list[tuple[str, Job]] = []
        sizes = [entries[key].size if key in entries else None for key, _, _ in wanted]
        total = (
            sum(size or 0 for size in sizes) if all(size is not None for size in sizes) else None
        )
        group = (
            GroupProgress(self._log, stage.what, len(wanted), total, self._downloader.clock)
            if len(wanted) > 1
            else None
        )
        for key, name, path in wanted:
            if isinstance(source, OciSource) and (lies := source.local(name)) is not None:
                found[key] = Downloaded(
                    lies, sha256_of(lies), lies.stat().st_size, stage.commit, resumed=False
                )
                if group is not None:
                    group.there(key, found[key].size)
                continue
            what = (
                stage.what
                if len(wanted) == 1 and name == stage.opened.place
                else f"{stage.what} {key}"
            )
            jobs.append(
                (key, Job(source, name, path, what, stage.scope, group.of(key) if group else None))
            )
        if total is not None and group is not None:
            self._room(stage, total - sum(done.size for done in found.values()))
        found |= self._together(jobs)
        if group is not None:
            group.finish()
        return {key: found[key] for key, _, _ in wanted}

    def _room(self, stage: Stage, needed: int) -> None:
        """Say that the volume is too small before the first byte, counting what an earlier attempt left there."""
        stage.folder.mkdir(parents=True, exist_ok=True)
        there = sum(
            path.stat().st_size for path in (stage.folder / "files").rglob("*") if path.is_file()
        )
        free = free_bytes(stage.folder)
        if needed - there > free:
            raise NoSpaceError(needed - there, free, stage.what)

    def _together(self, jobs: Sequence[tuple[str, Job]]) -> dict[str, Downloaded]:
        if len(jobs) == 1:
            return {jobs[0][0]: self._downloader.fetch(jobs[0][1])}
        stop = threading.Event()
        futures: dict[str, Future[Downloaded]] = {}
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="fetch") as pool:
            try:
                futures = {key: pool.submit(self._downloader.fetch, job, stop) for key, job in jobs}
                done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                failed = next(
                    (
                        error
                        for error in (future.exception() for future in done)
                        if error is not None
                    ),
                    None,
                )
                if failed is not None:
                    raise failed
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        return {key: future.result() for key, future in futures.items()}


def _side_files(item: PlanFetch, path: Path, what: str) -> tuple[str, ...]:
    try:
        return read_onnx(path).side_files
    except ValueError as error:
        raise LoadError(
            LoadReason.MODEL_MISMATCH,
            f"{what}: the file {error}",
            step=item.step,
            field=item.spec_field,
        ) from error


def _staged(
    files: Mapping[str, tuple[Path, str]], got: Mapping[str, Downloaded], revision: str | None
) -> Staged:
    sums = {name: value.sha256 for name, value in got.items()}
    return Staged(files, digest_of(sums), revision, any(value.resumed for value in got.values()))


def digest_of(files: Mapping[str, str]) -> str:
    """The digest of a source: its file's; of several files that of their ``sha256sum`` lines in the order of their names."""
    if len(files) == 1:
        return next(iter(files.values()))
    lines = "".join(f"{value}  {name}\n" for name, value in sorted(files.items()))
    return sha256(lines.encode()).hexdigest()
