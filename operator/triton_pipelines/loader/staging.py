"""Download what a plan item takes of its source into a staging folder."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadReason,
    PlanFetch,
)
from triton_pipelines.loader import tokenizer_files
from triton_pipelines.loader.download import Downloader
from triton_pipelines.loader.errors import LoaderError, SourceError
from triton_pipelines.loader.files import sha256_of, write_atomically
from triton_pipelines.loader.group_download import PARALLEL, GroupDownloader, StagingRequest
from triton_pipelines.loader.listing import ListedFile, ListingRecord, SourceListing, digest
from triton_pipelines.loader.onnx_file import read_onnx
from triton_pipelines.loader.partial_file import DownloadedFile
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.selection import FIRST, Selection, ignored_finding, select
from triton_pipelines.loader.sources import OpenedSource, join
from triton_pipelines.loader.staged_files import StagedFiles, staged


class Stager:
    """Stage plan items; ``parallel`` files of one item at once."""

    def __init__(
        self,
        downloader: Downloader,
        retrier: Retrier,
        log: logging.Logger,
        parallel: int = PARALLEL,
    ) -> None:
        self._group = GroupDownloader(downloader, log, parallel)
        self._retrier, self._log = retrier, log

    def files(self, stage: StagingRequest) -> StagedFiles:
        """Stage everything that the item takes.

        Raises:
            SourceError: the source cannot be read.
            LoaderError: the source does not have what the plan asks for.
        """
        self._unpack(stage)
        match stage.item.kind:
            case FetchKind.TOKENIZER:
                return self._tokenizer(stage)
            case FetchKind.FILE:
                found = self._file(stage)
            case _:
                found = self._tree(stage)
        _copy_linked(found.files)
        return found

    def _unpack(self, stage: StagingRequest) -> None:
        """Fetch and unpack the archives of a registry's image; other sources have none."""
        from triton_pipelines.loader.sources.oci import OciSource

        source = stage.source.source
        if not isinstance(source, OciSource) or not source.packed:
            return
        folder = stage.folder / "layers"
        entries = {
            layer.digest: ListedFile(layer.digest, layer.size, layer.digest)
            for layer in source.packed
        }
        got = self._group.fetch_all(
            stage, [(name, name, folder / name.partition(":")[2]) for name in entries], entries
        )
        self._log.info("%s: unpacking %d layers", stage.what, len(got))
        place = stage.source.place if stage.source.place is not None else (stage.item.path or "")
        source.unpack([got[layer.digest].path for layer in source.packed], place)
        for done in got.values():
            # Space counts more here than a second download after a restart.
            done.path.unlink(missing_ok=True)

    def _tree(self, stage: StagingRequest) -> StagedFiles:
        """Stage a model's versions or a folder."""
        item, place = stage.item, stage.source.place
        assert place is not None
        listing = self._retrier.run(stage.what, lambda: stage.source.source.list(place))
        selection, listing_digest = self._select(stage, listing)
        requests = [
            (
                entry.name,
                place if listing.single else join(place, entry.name),
                self._group.path_of(stage, entry.name),
            )
            for entry in selection.files.values()
        ]
        downloads = self._group.fetch_all(
            stage, requests, {entry.name: entry for entry in selection.files.values()}
        )
        files = {
            f"{item.target}/{path}": (downloads[entry.name].path, downloads[entry.name].sha256)
            for path, entry in selection.files.items()
        }
        # Side files are next to the model: in its folder, or next to the file that a URI names.
        parent = PurePosixPath(place).parent if listing.single else PurePosixPath(place)
        for path in selection.onnx:
            main = selection.files[path]
            folder = PurePosixPath("") if listing.single else PurePosixPath(main.name).parent
            target = PurePosixPath(f"{item.target}/{path}").parent
            model = downloads[main.name].path
            for name, done in self._model_side_files(stage, model, parent, folder).items():
                files[str(target / name)] = (done.path, done.sha256)
                downloads[str(folder / name)] = done
        notes = (ignored_finding(item, selection.ignored),) if selection.ignored else ()
        is_single = listing.single or listing_digest is None
        revision = next(iter(downloads.values())).revision if is_single else None
        record = (
            str(ListingRecord(selection.versions, listing_digest))
            if not listing.single and (selection.versions or listing_digest)
            else None
        )
        found = staged(files, downloads, stage.commit or record or revision)
        return replace(found, versions=selection.versions or (FIRST,), notes=notes)

    def _select(
        self, stage: StagingRequest, listing: SourceListing
    ) -> tuple[Selection, str | None]:
        """Return what to take of a listing, and the digest of that part of the listing."""
        first_load = (
            ListingRecord.parse(stage.resolved.revision) if stage.resolved is not None else None
        )
        try:
            selection = select(stage.item, listing, first_load.versions if first_load else ())
        except LoaderError as error:
            error.message = f"{stage.what}: {error.message}"
            raise
        listing_digest = digest(selection.files.values())
        if first_load is not None and first_load.listing not in (None, listing_digest):
            self._log.info(
                "%s: the listing differs from that of this revision's first load; "
                "the content is compared",
                stage.what,
            )
        return selection, listing_digest

    def _model_side_files(
        self, stage: StagingRequest, model: Path, parent: PurePosixPath, folder: PurePosixPath
    ) -> dict[str, DownloadedFile]:
        """Fetch the external data of an ONNX file; by the name that the model has for it.

        Args:
            stage: what is staged.
            model: the fetched ONNX file.
            parent: the place in the source that file names are relative to.
            folder: the model's folder below ``parent``.
        """
        keys = {str(folder / name): name for name in _side_files(stage.item, model, stage.what)}
        place = "" if str(parent) == "." else str(parent)
        requests = [(key, join(place, key), self._group.path_of(stage, key)) for key in keys]
        return {keys[key]: done for key, done in self._group.fetch_all(stage, requests, {}).items()}

    def _file(self, stage: StagingRequest) -> StagedFiles:
        """Stage a single file with its side files."""
        item, file = stage.item, self._named(stage)
        assert file is not None
        main = self._group.fetch_one(stage, file)
        got, files = {PurePosixPath(file).name: main}, {item.target: (main.path, main.sha256)}
        if item.target.endswith(".onnx"):
            folder = PurePosixPath(file).parent
            for name in _side_files(item, main.path, stage.what):
                side = self._group.fetch_one(stage, str(folder / name))
                got[name] = side
                files[str(PurePosixPath(item.target).parent / name)] = (side.path, side.sha256)
        return staged(files, got, stage.commit or main.revision)

    def _named(self, stage: StagingRequest) -> str | None:
        """Return the requested file; for an artifact with a single file, that one."""
        file = stage.source.file
        if stage.source.location.scheme == "oci" and stage.item.path is None and file is not None:
            names = stage.source.source.list("").names
            if file not in names and len(names) == 1:
                return names[0]
        return file

    def _tokenizer(self, stage: StagingRequest) -> StagedFiles:
        """Stage tokenizer.json, or what it can be built from."""
        file, folder = stage.source.file, PurePosixPath()
        if file is not None and _is_directory(stage.source, file):
            folder, file = PurePosixPath(file), None
        if file is not None and PurePosixPath(file).name != tokenizer_files.VOCABULARY:
            return self._tokenizer_file(stage, file)
        if file is not None:
            return self._built_tokenizer(stage, PurePosixPath(file).parent)
        try:
            return self._tokenizer_file(stage, str(folder / tokenizer_files.TOKENIZER_JSON))
        except SourceError as error:
            if not error.missing:
                raise
        return self._built_tokenizer(stage, folder)

    def _tokenizer_file(self, stage: StagingRequest, file: str) -> StagedFiles:
        """Stage a tokenizer.json."""
        main = self._group.fetch_one(stage, file)
        return staged(
            {stage.item.target: (main.path, main.sha256)},
            {PurePosixPath(file).name: main},
            stage.commit or main.revision,
        )

    def _built_tokenizer(self, stage: StagingRequest, folder: PurePosixPath) -> StagedFiles:
        """Build tokenizer.json from the vocabulary and settings in ``folder``."""
        item, parts = stage.item, self._tokenizer_parts(stage, folder)
        try:
            text = tokenizer_files.convert({name: part.path for name, part in parts.items()})
        except ValueError as error:
            raise tokenizer_files.invalid(
                f"{stage.what}: {error}. Save the tokenizer as tokenizer.json (with "
                "save_pretrained of its fast class), and use that file.",
                item.step,
                item.spec_field,
            ) from error
        built = stage.folder / "built" / tokenizer_files.TOKENIZER_JSON
        write_atomically(built, text.encode())
        self._log.info("%s: built tokenizer.json from %s", stage.what, ", ".join(parts))
        return staged(
            {item.target: (built, sha256_of(built))},
            parts,
            stage.commit or parts[tokenizer_files.VOCABULARY].revision,
        )

    def _tokenizer_parts(
        self, stage: StagingRequest, folder: PurePosixPath
    ) -> dict[str, DownloadedFile]:
        """Fetch the files that tokenizer.json is built from; special tokens may be missing."""
        parts: dict[str, DownloadedFile] = {}
        for name in (
            tokenizer_files.VOCABULARY,
            tokenizer_files.CONFIGURATION,
            tokenizer_files.SPECIAL_TOKENS,
        ):
            try:
                parts[name] = self._group.fetch_one(stage, str(folder / name))
            except SourceError as error:
                if not error.missing:
                    raise
                if name != tokenizer_files.SPECIAL_TOKENS:
                    raise SourceError(
                        f"has neither {tokenizer_files.TOKENIZER_JSON} nor "
                        f"{tokenizer_files.VOCABULARY} with its {tokenizer_files.CONFIGURATION} "
                        f"({error})",
                        missing=True,
                    ) from error
        return parts


def _is_directory(source: OpenedSource, place: str) -> bool:
    """Return whether ``path`` is a directory of an image or artifact.

    The URI of any other source names the directory itself.
    """
    if source.location.scheme not in ("oci", "image"):
        return False
    return not source.source.list(place).single


def _copy_linked(files: Mapping[str, tuple[Path, str]]) -> None:
    """Replace links to files of an image by copies, where Triton cannot use a link.

    ONNX Runtime 1.24 rejects external data whose real path is outside the model's folder. The
    kubelet may mount an image without the right to execute, which loading a shared library needs.
    """
    for target, (path, _) in files.items():
        if not path.is_symlink():
            continue
        if ".so" in PurePosixPath(target).suffixes:
            _copy(path)
        elif target.endswith(".onnx"):
            try:
                names = read_onnx(path).side_files
            except ValueError:  # The check of the model reports it.
                continue
            sides = (files.get(str(PurePosixPath(target).parent / name)) for name in names)
            for linked in (path, *(side[0] for side in sides if side)) if names else ():
                _copy(linked)


def _copy(path: Path) -> None:
    """Replace a link by a copy of the file."""
    if path.is_symlink():
        temporary = path.with_name(f".{path.name}.tmp")
        shutil.copyfile(path, temporary)
        temporary.replace(path)


def _side_files(item: PlanFetch, path: Path, what: str) -> tuple[str, ...]:
    try:
        return read_onnx(path).side_files
    except ValueError as error:
        raise LoaderError(
            LoadReason.MODEL_MISMATCH,
            f"{what}: the file {error}",
            step=item.step,
            field=item.spec_field,
        ) from error
