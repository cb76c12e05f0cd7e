"""Test that unpacking an image's layers stays in its folder and within its limits."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from tests.support.messages import Messages
from triton_pipelines.loader.errors import NoSpaceError, SourceError
from triton_pipelines.loader.sources import layers
from triton_pipelines.loader.sources.layers import scope_of, unpack


def layer(path: Path, *members: tuple[str, bytes, bytes | str], packed: bool = True) -> Path:
    """Write a layer of members: name, type, and content or link target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, str):
                info.linkname = content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(out.getvalue(), 1) if packed else out.getvalue())
    return path


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """The folder to unpack into, with a file of somebody else next to it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("kept")
    folder = tmp_path / "image"
    folder.mkdir()
    return folder


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("scope", ["", "m"])
@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("m/../../outside/new", tarfile.DIRTYPE, b""),
        ("m/../../outside/kept", tarfile.DIRTYPE, b""),
        ("m/../../outside/new", tarfile.REGTYPE, b"x"),
        ("m/../../outside/.wh.kept", tarfile.REGTYPE, b""),
        ("m/../../outside/.wh..wh..opq", tarfile.REGTYPE, b""),
        ("m/../../outside/new", tarfile.SYMTYPE, "/etc/passwd"),
        ("m/link", tarfile.SYMTYPE, "../../outside"),
        ("m/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("m/link", tarfile.LNKTYPE, "../../outside/kept"),
        ("m/link", tarfile.LNKTYPE, "m/missing"),
        ("m/link", tarfile.LNKTYPE, "m/link"),
        ("m", tarfile.LNKTYPE, "m/file"),
        ("m/file/link", tarfile.LNKTYPE, "m/file"),
        ("m/device", tarfile.CHRTYPE, ""),
        ("m/device", tarfile.BLKTYPE, ""),
        ("m/pipe", tarfile.FIFOTYPE, ""),
        ("m/" + "n" * 256, tarfile.REGTYPE, b"x"),
        ("m/" + "n" * 256, tarfile.DIRTYPE, b""),
        ("m/" + "n/" * 600 + "n", tarfile.DIRTYPE, b""),
        ("m/a\\b", tarfile.DIRTYPE, b""),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_members_that_are_no_plain_files_or_folders_are_rejected(
    tmp_path: Path, into: Path, scope: str, name: str, kind: bytes, content: bytes | str
) -> None:
    before = everything(tmp_path / "outside")
    packed = layer(
        tmp_path / "layer",
        ("m", tarfile.DIRTYPE, b""),
        ("m/file", tarfile.REGTYPE, b"w"),
        (name, kind, content),
    )
    with pytest.raises(SourceError):
        unpack(packed, scope, into)
    assert everything(tmp_path / "outside") == before
    assert (tmp_path / "outside/kept").read_text() == "kept"
    assert set(everything(into)) <= {"m", "m/file"}


def test_a_hard_link_to_an_unpacked_file_is_a_copy(tmp_path: Path, into: Path) -> None:
    packed = layer(
        tmp_path / "layer",
        ("./m/file", tarfile.REGTYPE, b"w"),
        ("./m/1/link", tarfile.LNKTYPE, "./m/file"),
    )
    unpack(packed, "m", into)
    assert everything(into) == ["m", "m/1", "m/1/link", "m/file"]
    assert (into / "m/1/link").read_bytes() == b"w"
    assert (into / "m/1/link").stat().st_nlink == 1


def test_copies_of_hard_links_count_toward_the_limit(
    tmp_path: Path, into: Path, messages: Messages
) -> None:
    packed = layer(
        tmp_path / "layer",
        ("m/file", tarfile.REGTYPE, os.urandom(1000) + bytes(30 << 20)),
        *((f"m/link{number}", tarfile.LNKTYPE, "m/file") for number in range(5)),
    )
    with messages.raises(SourceError):
        unpack(packed, "m", into)
    assert sum(path.stat().st_size for path in into.rglob("*") if path.is_file()) < 128 << 20


def test_absolute_names_are_below_the_root_of_the_image(tmp_path: Path, into: Path) -> None:
    packed = layer(
        tmp_path / "layer", ("/m", tarfile.DIRTYPE, b""), ("/m/file", tarfile.REGTYPE, b"w")
    )
    unpack(packed, "m", into)
    assert everything(into) == ["m", "m/file"]


def test_a_symlinked_parent_is_not_followed(tmp_path: Path, into: Path, messages: Messages) -> None:
    """Unpacking makes no links; one that is there anyway must not be written through."""
    (into / "m").symlink_to(tmp_path / "outside")
    packed = layer(tmp_path / "layer", ("m/new", tarfile.REGTYPE, b"w"))
    with messages.raises(SourceError):
        unpack(packed, "m", into)
    assert everything(tmp_path / "outside") == ["kept"]


def test_a_folder_replaces_a_file_of_a_lower_layer(tmp_path: Path, into: Path) -> None:
    unpack(layer(tmp_path / "1", ("m/x", tarfile.REGTYPE, b"file")), "m", into)
    unpack(layer(tmp_path / "2", ("m/x/y", tarfile.REGTYPE, b"w")), "m", into)
    assert everything(into) == ["m", "m/x", "m/x/y"]


def test_links_and_devices_outside_of_the_scope_do_not_matter(tmp_path: Path, into: Path) -> None:
    packed = layer(
        tmp_path / "layer",
        ("bin/sh", tarfile.SYMTYPE, "/bin/busybox"),
        ("bin/hard", tarfile.LNKTYPE, "bin/sh"),
        ("dev/null", tarfile.CHRTYPE, ""),
        ("m/file", tarfile.REGTYPE, b"w"),
    )
    unpack(packed, "m", into)
    assert everything(into) == ["m", "m/file"]


def zeros(path: Path, mebibytes: int, name: str = "m/zeros") -> Path:
    """Write a layer of one file of zeros, which packs to a thousandth of its size."""
    with gzip.open(path, "wb", 9) as file, tarfile.open(fileobj=file, mode="w|") as archive:
        info = tarfile.TarInfo(name)
        info.size = mebibytes << 20
        with Path("/dev/zero").open("rb") as source:
            archive.addfile(info, source)
    return path


@pytest.mark.parametrize("name", ["m/zeros", "other/zeros"])
def test_a_layer_that_unpacks_to_far_more_than_it_holds_is_rejected(
    tmp_path: Path, into: Path, name: str, messages: Messages
) -> None:
    packed = zeros(tmp_path / "layer", 200, name)
    assert packed.stat().st_size < 1 << 20
    with messages.raises(SourceError):
        unpack(packed, "m", into)
    with messages.raises(SourceError):
        scope_of([packed], "m/model.bin")
    assert sum(path.stat().st_size for path in into.rglob("*") if path.is_file()) < 70 << 20


def test_a_small_layer_may_be_packed_well(tmp_path: Path, into: Path) -> None:
    unpack(zeros(tmp_path / "layer", 32), "m", into)
    assert (into / "m/zeros").stat().st_size == 32 << 20


def test_a_sparse_file_is_rejected(tmp_path: Path, into: Path) -> None:
    """A kilobyte of a sparse member can describe a file of any size."""
    info = tarfile.TarInfo("m/sparse")
    info.size = 512
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,512",
        "GNU.sparse.size": str(1 << 40),
        "GNU.sparse.name": "m/sparse",
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(bytes(512)))
    (tmp_path / "layer").write_bytes(out.getvalue())
    with pytest.raises(SourceError, match="sparse"):
        unpack(tmp_path / "layer", "m", into)


def test_a_huge_header_is_rejected_before_it_is_in_memory(tmp_path: Path, into: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("m/file")
        info.pax_headers = {"comment": "x" * (8 << 20)}
        archive.addfile(info, io.BytesIO(b""))
    (tmp_path / "layer").write_bytes(out.getvalue())
    with pytest.raises(SourceError, match="header"):
        unpack(tmp_path / "layer", "m", into)


def test_the_number_of_members_is_bounded(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(layers, "MAX_MEMBERS", 10)
    packed = layer(
        tmp_path / "layer", *((f"other/{number}", tarfile.REGTYPE, b"") for number in range(11))
    )
    with messages.raises(SourceError):
        unpack(packed, "m", into)


def test_a_file_that_does_not_fit_on_the_volume_is_not_started(
    tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "free_bytes", lambda _: 100)
    packed = layer(tmp_path / "layer", ("m/file", tarfile.REGTYPE, os.urandom(101)))
    with pytest.raises(NoSpaceError):
        unpack(packed, "m", into)
    assert not (into / "m/file").exists()


def test_broken_headers_are_errors_of_the_source(tmp_path: Path, into: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(3000):
            info = tarfile.TarInfo(f"pax{number}")
            info.type = tarfile.XGLTYPE
            info.size = 0
            archive.addfile(info)
    (tmp_path / "layer").write_bytes(out.getvalue())
    with pytest.raises(SourceError):
        unpack(tmp_path / "layer", "m", into)


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **fields: bytes) -> bytes:
    """Return one header block; ``fields`` are bytes for offsets of the block, as ``at345``."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for offset, data in fields.items():
        start = int(offset.removeprefix("at"))
        block[start : start + len(data)] = data
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [1 << 60, 1 << 20, -1, -(1 << 40)])
@pytest.mark.parametrize("name", ["m/file", "other/file"])
def test_a_member_that_ends_before_its_size_is_an_error(
    tmp_path: Path, into: Path, name: str, size: int, messages: Messages
) -> None:
    (tmp_path / "layer").write_bytes(header(name, size=size) + bytes(1024))
    with messages.raises(SourceError):
        unpack(tmp_path / "layer", "m", into)
    with messages.raises(SourceError):
        scope_of([tmp_path / "layer"], "m/model.bin")


def sparse_header(name: str, size: int, *, extended: bytes = b"\0") -> bytes:
    """Return the header of a GNU sparse member that holds nothing and claims ``size`` bytes."""
    return header(
        name,
        tarfile.GNUTYPE_SPARSE,
        at482=extended,
        at483=tarfile.itn(size, 12, tarfile.GNU_FORMAT),
    )


def test_a_sparse_member_does_not_lift_the_limit_of_the_next_header(
    tmp_path: Path, into: Path
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("other/file")
        info.pax_headers = {"comment": "x" * (60 << 20)}
        archive.addfile(info)
    (tmp_path / "layer").write_bytes(sparse_header("other/sparse", 1 << 30) + out.getvalue())
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="header"):
            unpack(tmp_path / "layer", "m", into)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_members_of_unknown_types_outside_of_the_scope_do_not_matter(
    tmp_path: Path, into: Path
) -> None:
    packed = layer(
        tmp_path / "layer",
        ("other/unknown", b"Z", bytes(3 << 20)),
        ("m/file", tarfile.REGTYPE, b"w"),
    )
    unpack(packed, "m", into)
    assert everything(into) == ["m", "m/file"]


def test_a_sparse_header_that_ends_early_is_an_error_of_the_source(
    tmp_path: Path, into: Path, messages: Messages
) -> None:
    (tmp_path / "layer").write_bytes(sparse_header("other/sparse", 512, extended=b"\1"))
    with messages.raises(SourceError):
        unpack(tmp_path / "layer", "m", into)


def test_a_removal_below_a_file_is_an_error_of_the_source(
    tmp_path: Path, into: Path, messages: Messages
) -> None:
    packed = layer(
        tmp_path / "layer",
        ("m/file", tarfile.REGTYPE, b"w"),
        ("m/file/.wh.x", tarfile.REGTYPE, b""),
    )
    with messages.raises(SourceError):
        unpack(packed, "m", into)
