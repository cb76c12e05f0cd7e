"""Test which files of a source are selected and where they go.

Covered are listings, version folders and collisions; all decisions are pure.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadPlan,
    LoadReason,
    PlanFetch,
    PlanFile,
    PlanVersions,
)
from triton_pipelines.loader.errors import LoaderError, SourceError
from triton_pipelines.loader.layout import Layout
from triton_pipelines.loader.listing import (
    MAX_FILES,
    ListedFile,
    ListingRecord,
    SourceListing,
    digest,
    files_by_version,
    folder,
)
from triton_pipelines.loader.selection import ignored_finding, select


def model(**rest: object) -> PlanFetch:
    return PlanFetch(
        **{
            "step": "model",
            "uri": "s3://b/k",
            "target": "bert",
            "kind": FetchKind.MODEL,
            "file": "model.onnx",
            **rest,
        }
    )  # type: ignore[arg-type]


def held(*names: str) -> SourceListing:
    return folder(ListedFile(name) for name in names)


def taken(item: PlanFetch, listing: SourceListing, before: tuple[int, ...] = ()) -> dict[str, str]:
    return {path: entry.name for path, entry in select(item, listing, before).files.items()}


VERSIONS = held(
    "1/model.onnx",
    "2/model.onnx",
    "2/data/w.bin",
    "10/model.onnx",
    "10/config.pbtxt",
    "config.pbtxt",
    "labels.txt",
)


@pytest.mark.parametrize(
    ("item", "listing", "files"),
    [
        (
            model(),
            SourceListing((ListedFile("net.onnx"),), single=True),
            {"1/model.onnx": "net.onnx"},
        ),
        (
            model(file=None, whole=True),
            SourceListing((ListedFile("net.pt"),), single=True),
            {"1/net.pt": "net.pt"},
        ),
        (
            model(pinned=1),
            SourceListing((ListedFile("net.onnx"),), single=True),
            {"1/model.onnx": "net.onnx"},
        ),
        (model(), held("model.onnx", "README.md", "other.onnx"), {"1/model.onnx": "model.onnx"}),
        (
            model(source_file="onnx/net.onnx"),
            held("onnx/net.onnx", "x"),
            {"1/model.onnx": "onnx/net.onnx"},
        ),
        (
            model(whole=True),
            held("model.onnx", "a/b.txt"),
            {"1/model.onnx": "model.onnx", "1/a/b.txt": "a/b.txt"},
        ),
        (
            model(whole=True, source_file="net.onnx"),
            held("net.onnx", "b"),
            {"1/model.onnx": "net.onnx", "1/b": "b"},
        ),
        (
            model(file="model.json", whole=True),
            held("model.json", "config.pbtxt"),
            {"1/model.json": "model.json"},
        ),
        (model(), VERSIONS, {"10/model.onnx": "10/model.onnx"}),
        (
            model(versions=PlanVersions(latest=2)),
            VERSIONS,
            {n: n for n in ("2/model.onnx", "2/data/w.bin", "10/model.onnx")},
        ),
        (
            model(versions=PlanVersions(specific=(1,)), pinned=2),
            VERSIONS,
            {n: n for n in ("1/model.onnx", "2/model.onnx", "2/data/w.bin")},
        ),
        (
            model(versions=PlanVersions(all=True)),
            held("3/model.onnx"),
            {"3/model.onnx": "3/model.onnx"},
        ),
        # Folders of digits beside the model are just folders; with a leading zero they are never
        # versions.
        (model(), held("model.onnx", "512/x"), {"1/model.onnx": "model.onnx"}),
        (
            model(),
            held("model.onnx", "01/model.onnx", "0/model.onnx"),
            {"1/model.onnx": "model.onnx"},
        ),
        (model(), held("model.onnx", "2/model.onnx"), {"2/model.onnx": "2/model.onnx"}),
        (model(), SourceListing(None), {"1/model.onnx": "model.onnx"}),
        (model(source_file="net.onnx"), held("7/net.onnx"), {"7/model.onnx": "7/net.onnx"}),
        (model(kind=FetchKind.FOLDER, file=None), held("a", "b/c"), {"a": "a", "b/c": "b/c"}),
        (
            model(kind=FetchKind.FOLDER, file=None),
            SourceListing((ListedFile("a.txt"),), single=True),
            {"a.txt": "a.txt"},
        ),
        (
            model(kind=FetchKind.FOLDER, file=None),
            held("1/config.pbtxt", "config.pbtxt"),
            {"1/config.pbtxt": "1/config.pbtxt"},
        ),
    ],
)
def test_what_is_taken(item: PlanFetch, listing: SourceListing, files: dict[str, str]) -> None:
    assert taken(item, listing) == files


def test_the_versions_of_the_first_load_stay_when_newer_ones_are_published(
    messages: Messages,
) -> None:
    assert taken(model(), VERSIONS, (2,)) == {n: n for n in ("2/model.onnx", "2/data/w.bin")}
    with messages.raises(LoaderError) as raised:
        select(model(), VERSIONS, (2, 3))
    assert raised.value.reason is LoadReason.SOURCE_CHANGED


@pytest.mark.parametrize(
    ("item", "listing", "reason"),
    [
        (model(versions=PlanVersions(all=True)), held("model.onnx"), LoadReason.MODEL_MISMATCH),
        (
            model(versions=PlanVersions(latest=2)),
            SourceListing((ListedFile("m"),), single=True),
            LoadReason.MODEL_MISMATCH,
        ),
        (
            model(versions=PlanVersions(specific=(1, 3))),
            SourceListing(None),
            LoadReason.MODEL_MISMATCH,
        ),
        (model(pinned=4), held("model.onnx", "x/y"), LoadReason.MODEL_MISMATCH),
        (model(pinned=4), VERSIONS, LoadReason.MODEL_MISMATCH),
        (model(versions=PlanVersions(specific=(3, 1))), VERSIONS, LoadReason.MODEL_MISMATCH),
        (model(), held("2/model.pt", "1/model.onnx"), LoadReason.SOURCE_UNAVAILABLE),
        (model(), held("b.onnx", "c/d"), LoadReason.SOURCE_UNAVAILABLE),
        (model(), held(*(f"f{n}" for n in range(9))), LoadReason.SOURCE_UNAVAILABLE),
        (
            model(whole=True, source_file="net.onnx"),
            held("net.onnx", "model.onnx"),
            LoadReason.MODEL_MISMATCH,
        ),
    ],
)
def test_what_does_not_fit_says_what_lies_there(
    item: PlanFetch, listing: SourceListing, reason: LoadReason, messages: Messages
) -> None:
    with messages.raises(LoaderError) as raised:
        select(item, listing)
    assert raised.value.reason is reason


@pytest.mark.parametrize("item", [model(whole=True), model(kind=FetchKind.FOLDER, file=None)])
def test_a_web_folder_cannot_be_taken_whole(item: PlanFetch, messages: Messages) -> None:
    with messages.raises(SourceError):
        select(item, SourceListing(None))


def test_configurations_of_the_source_are_left_out_and_said() -> None:
    chosen = select(model(), VERSIONS)
    assert chosen.versions == (10,)
    assert "10/config.pbtxt" in chosen.ignored
    finding = ignored_finding(model(), chosen.ignored)
    assert (finding.reason, finding.field) == (LoadReason.FILES_IGNORED, "spec.model.source")
    assert "config.pbtxt" in finding.message
    only = select(model(whole=True), held("model.onnx", "config.pbtxt", "configs/b.pbtxt"))
    assert only.ignored == ("config.pbtxt", "configs/b.pbtxt")
    assert list(only.files) == ["1/model.onnx"]


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a/../b", "a//b", "./a", "a\\b", "a\0", "", "a/", "x" * 1025]
)
def test_names_with_unsafe_paths_are_rejected(name: str) -> None:
    with pytest.raises(SourceError):
        held("good", name)


def test_a_folder_is_bounded_and_consistent(messages: Messages) -> None:
    with pytest.raises(SourceError, match=str(MAX_FILES)):
        folder(ListedFile(f"{n}") for n in range(MAX_FILES + 1))
    assert len(folder(ListedFile(f"{n}") for n in range(MAX_FILES)).names) == MAX_FILES
    with messages.raises(SourceError):
        held("a", "a/b")
    with messages.raises(SourceError):
        held("__pycache__/x.pyc", ".git/config")


def test_the_digest_of_a_listing_changes_with_name_size_and_identity() -> None:
    base = [ListedFile("a", 1, "x"), ListedFile("b", 2, "y")]
    others = [
        [ListedFile("a", 1, "x")],
        [ListedFile("c", 1, "x"), base[1]],
        [ListedFile("a", 2, "x"), base[1]],
        [ListedFile("a", 1, "z"), base[1]],
    ]
    digests = {digest(entries) for entries in (base, *others)}
    assert len(digests) == 5
    assert digest(reversed(base)) == digest(base)
    assert digest([ListedFile("a", 1), base[1]]) is None


@given(st.sets(st.integers(1, 10**17), max_size=5), st.one_of(st.none(), st.just("f" * 64)))
def test_a_record_survives_its_text(versions: set[int], listing: str | None) -> None:
    record = ListingRecord(tuple(sorted(versions)), listing)
    if versions or listing:
        assert ListingRecord.parse(str(record)) == record


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "a" * 40,
        '"etag"',
        "sha256:" + "0" * 64,
        "versions=",
        "versions=1;listing=0",
        "listing=" + "g" * 64,
    ],
)
def test_what_is_no_record(text: str | None) -> None:
    assert ListingRecord.parse(text) is None


def test_version_folders_are_those_that_triton_reads() -> None:
    assert list(
        files_by_version(held("1/a", "02/a", "0/a", "3x/a", "x/3/a", "12/b/c", "4").entries or ())
    ) == [1, 12]


# --- who writes what


def layout(
    *fetch: PlanFetch, files: tuple[str, ...] = ("bert/config.pbtxt", "bert/1/model.py")
) -> Layout:
    return Layout(
        LoadPlan(
            pipeline="p",
            namespace="n",
            revision="r",
            files=tuple(PlanFile(key="k", path=path) for path in files),
            fetch=fetch,
        )
    )


def test_what_the_plan_puts_into_version_1_belongs_to_every_version() -> None:
    item, extra = (
        model(),
        model(kind=FetchKind.FOLDER, file=None, slot="extra", target="bert/1/data"),
    )
    made = layout(item, extra)
    assert made.of_plan()["bert/1/model.py"] == ("bert/1/model.py",)
    made.found(item, (2, 10))
    assert made.of_plan() == {
        "bert/config.pbtxt": ("bert/config.pbtxt",),
        "bert/1/model.py": ("bert/2/model.py", "bert/10/model.py"),
    }
    assert made.place(extra, "bert/1/data/x", "w") == ("bert/2/data/x", "bert/10/data/x")
    assert made.place(item, "bert/2/model.onnx", "w") == ("bert/2/model.onnx",)


@pytest.mark.parametrize("path", ["bert/1/model.py", "bert/2/model.py", "bert/config.pbtxt"])
def test_a_source_never_overwrites_what_the_operator_writes(path: str, messages: Messages) -> None:
    item = model()
    made = layout(item)
    made.found(item, (2,))
    with messages.raises(LoaderError) as raised:
        made.place(item, path, "spec.model.source s3://b/k")
    assert "spec.model.source" in raised.value.message
    messages.check(raised.value.message)


def test_two_sources_never_write_one_file(messages: Messages) -> None:
    item, extra = (
        model(),
        model(
            kind=FetchKind.FOLDER,
            file=None,
            slot="extra",
            target="bert/1",
            field="spec.model.files[0].source",
        ),
    )
    made = layout(item, extra, files=())
    made.place(item, "bert/1/data", "spec.model.source s3://b/k")
    for path in ("bert/1/data", "bert/1/data/x"):
        with messages.raises(LoaderError, match=r"spec\.model\.source"):
            made.place(extra, path, "spec.model.files[0].source s3://b/k")
