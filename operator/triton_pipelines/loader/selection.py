"""Decide which files of a source a model or folder takes, and where they go. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from triton_pipelines.api.loadplan import FetchKind, LoadFinding, LoadReason, PlanFetch
from triton_pipelines.api.wording import listed
from triton_pipelines.loader.errors import LoaderError, SourceError
from triton_pipelines.loader.listing import ListedFile, SourceListing, files_by_version, list_some

CONFIG: Final = "config.pbtxt"
_CONFIGS: Final = "configs"
"""Triton's folder of further model configurations, next to config.pbtxt."""
_NEWEST: Final = 10
"""Maximum versions that a message names."""
FIRST: Final = 1
"""Version of a model whose source has no version folders."""


@dataclass(frozen=True)
class Selection:
    """The files that are taken of a source."""

    files: Mapping[str, ListedFile]
    """Path below the item's target → file of the source."""
    versions: tuple[int, ...] = ()
    """Versions, for a source with version folders."""
    ignored: tuple[str, ...] = ()
    """Files of the source that are not taken."""
    onnx: tuple[str, ...] = ()
    """Paths in ``files`` of models that may have side files, which are taken too."""


def select(item: PlanFetch, listing: SourceListing, held: Collection[int] = ()) -> Selection:
    """Return what ``item`` takes of ``listing``.

    Args:
        item: a plan item of kind model or folder.
        listing: the files of its source.
        held: versions that this pipeline revision was first loaded from.

    Raises:
        LoaderError: the source does not have what the resource asks for (ModelMismatch,
            SourceUnavailable, SourceChanged); says what was found.
    """
    if item.kind is FetchKind.FOLDER:
        return _folder(listing)
    if listing.single:
        return _single(item, listing)
    entries = listing.entries
    if entries is None:
        return _unlisted(item)
    found = files_by_version(entries)
    if found and not _plain(item, listing.names, found):
        return _versions(item, found, listing.names, held)
    _only_first(
        item,
        "a directory without numbered version directories (it contains "
        f"{list_some(_tops(listing.names))})",
    )
    return (
        _whole(item, entries)
        if item.whole
        else _main(item, listing.names, {entry.name: entry for entry in entries})
    )


def _plain(
    item: PlanFetch, names: Collection[str], found: Mapping[int, tuple[ListedFile, ...]]
) -> bool:
    """Return whether numbered folders are not versions.

    That is so where the main file is next to them and in none of them.
    """
    main = item.source_file or item.file
    return (
        main is not None
        and main in names
        and not any(entry.name == main for entries in found.values() for entry in entries)
    )


def _folder(listing: SourceListing) -> Selection:
    if listing.entries is None:
        raise SourceError(
            "directories on a web server cannot be listed; use the URI of one file, or move "
            "the directory to a bucket, registry or hub"
        )
    ignored = (
        tuple(
            sorted(
                name for name in listing.names if name == CONFIG or name.startswith(f"{_CONFIGS}/")
            )
        )
        if not listing.single
        else ()
    )
    return Selection(
        {entry.name: entry for entry in listing.entries if entry.name not in ignored},
        ignored=ignored,
    )


def _single(item: PlanFetch, listing: SourceListing) -> Selection:
    assert listing.entries is not None
    (entry,) = listing.entries
    _only_first(item, f"the single file {entry.name}")
    return _first({item.file or entry.name: entry})


def _unlisted(item: PlanFetch) -> Selection:
    if item.whole:
        raise SourceError(
            "directories on a web server cannot be listed; use the URI of one file, or move "
            "the directory to a bucket, registry or hub"
        )
    _only_first(item, "a directory on a web server, which cannot be listed")
    main = str(item.source_file or item.file)
    return _first({str(item.file): ListedFile(main)})


def _main(item: PlanFetch, names: Collection[str], entries: Mapping[str, ListedFile]) -> Selection:
    main = str(item.source_file or item.file)
    return _first({str(item.file): entries[_required(item, main, names, "")]})


def _whole(item: PlanFetch, entries: Collection[ListedFile]) -> Selection:
    files, ignored = _version(item, entries, "")
    return Selection({f"{FIRST}/{name}": entry for name, entry in files.items()}, ignored=ignored)


def _first(files: Mapping[str, ListedFile]) -> Selection:
    made = {f"{FIRST}/{name}": entry for name, entry in files.items()}
    return Selection(made, onnx=tuple(name for name in made if name.endswith(".onnx")))


def _versions(
    item: PlanFetch,
    found: Mapping[int, tuple[ListedFile, ...]],
    names: Collection[str],
    held: Collection[int],
) -> Selection:
    desired = _desired_versions(item, found, held)
    files: dict[str, ListedFile] = {}
    ignored = [
        name
        for name in names
        if not (name.partition("/")[0].isdigit() and int(name.partition("/")[0]) in found)
    ]
    for version in desired:
        taken, left = _version(item, found[version], f"{version}/")
        files |= {
            f"{version}/{name}": ListedFile(f"{version}/{entry.name}", entry.size, entry.identity)
            for name, entry in taken.items()
        }
        ignored += [f"{version}/{name}" for name in left]
    return Selection(files, desired, tuple(sorted(ignored)))


def _desired_versions(
    item: PlanFetch, found: Mapping[int, object], held: Collection[int]
) -> tuple[int, ...]:
    newest = "" if len(found) <= _NEWEST else f" (the newest {_NEWEST} are shown)"
    there = f"the source has only {_named(sorted(found)[-_NEWEST:])}{newest}"
    if held:
        # Newer versions that were published since wait for the next revision of the pipeline.
        if gone := sorted(set(held) - set(found)):
            exist = "exists" if len(gone) == 1 else "exist"
            text = (
                f"{_named(gone)}, which this pipeline revision was first loaded with, no "
                f"longer {exist} in the source; {there}"
            )
            raise LoaderError(
                LoadReason.SOURCE_CHANGED,
                (
                    f"{text}. Restore {_named(gone)}, or change "
                    f"{'the version field' if item.pinned in gone else 'versionPolicy'} to request "
                    "only versions that exist."
                ),
            )
        return tuple(sorted(held))
    chosen = set(item.versions.select(found) if item.versions else (max(found),))
    requested = {
        *(item.versions.specific or () if item.versions else ()),
        *([item.pinned] if item.pinned else []),
    }
    if absent := sorted(requested - set(found)):
        raise LoaderError(
            LoadReason.MODEL_MISMATCH,
            f"the resource requests {_named(absent)}, but {there}; publish {_named(absent)}, or "
            f"change {'the version field' if item.pinned in absent else 'versionPolicy'}.",
        )
    return tuple(sorted(chosen | requested))


def _named(versions: Sequence[int]) -> str:
    """Return ``version 1``, or ``versions 1, 2 and 10``."""
    return f"version{'' if len(versions) == 1 else 's'} {listed([str(one) for one in versions])}"


def _version(
    item: PlanFetch, entries: Collection[ListedFile], where: str
) -> tuple[dict[str, ListedFile], tuple[str, ...]]:
    """Return a version folder's files by their new names, and those left out."""
    main, names = item.source_file or item.file, {entry.name for entry in entries}
    if main is not None:
        _required(item, main, names, where)
    left = tuple(
        sorted(
            name
            for name in names
            if name == CONFIG or (not where and name.startswith(f"{_CONFIGS}/"))
        )
    )
    files: dict[str, ListedFile] = {}
    for entry in entries:
        if entry.name in left:
            continue
        name = str(item.file) if entry.name == main else entry.name
        if name in files or (name != entry.name and name in names):
            raise LoaderError(
                LoadReason.MODEL_MISMATCH,
                f"the source contains both {where}{main} and {where}{name}, but {main} "
                f"would be renamed to {name}; remove one of the two files.",
            )
        files[name] = entry
    return files, left


def _required(item: PlanFetch, main: str, names: Collection[str], where: str) -> str:
    if main not in names:
        raise LoaderError(
            LoadReason.SOURCE_UNAVAILABLE,
            f"the source has no file {where}{main}; {where or 'the directory'} contains "
            f"{list_some(_tops(names))}. Set path or fileName in {item.spec_field} to the "
            "model's file.",
        )
    return main


def _only_first(item: PlanFetch, what: str) -> None:
    """Check that the resource asks for no more than version 1.

    A source without version folders is version 1 alone.
    """
    policy = item.versions
    if item.pinned not in (None, FIRST):
        requested, field = f"version {item.pinned}", "the version field"
    elif policy is None or policy.newest_only or policy.specific == (FIRST,):
        return
    else:
        requested = f"{_named(policy.specific)}" if policy.specific else "multiple versions"
        field = "versionPolicy"
    raise LoaderError(
        LoadReason.MODEL_MISMATCH,
        f"the resource requests {requested}, but the source has only version {FIRST}, "
        f"because it is {what}. Use a directory with one subdirectory per version (1, 2, "
        f"…), or remove {field}.",
    )


def _tops(names: Collection[str]) -> set[str]:
    """Return the first path components of ``names``, folders with their slash."""
    return {
        f"{first}/" if slash else first
        for first, slash, _ in (name.partition("/") for name in names)
    }


def ignored_finding(item: PlanFetch, ignored: Collection[str]) -> LoadFinding:
    """Return the note that files of the source are not taken."""
    configs = [name for name in ignored if PurePosixPath(name).name == CONFIG]
    why = (
        "the operator writes the configuration itself"
        if len(configs) == len(ignored)
        else "they are outside the version directories or are configurations"
    )
    message = (
        "not fetched from the source: "
        f"{list_some(_tops(ignored) if len(ignored) > len(configs) else ignored)} ({why})"
    )
    return LoadFinding(
        step=item.step, reason=LoadReason.FILES_IGNORED, field=item.spec_field, message=message
    )
