"""The table of ONNX Runtime versions covers every supported Triton release, and each is locked."""

from __future__ import annotations

from tests.support.serverort import LOCKS, RELEASES, VERSIONS
from triton_pipelines.compile.graph.options import DEFAULT_SERVER_IMAGE
from triton_pipelines.compile.graph.server_checks import FLOOR_VERSION
from triton_pipelines.compile.graph.server_settings import server_version


def test_no_release_is_missing_from_the_oldest_to_the_default() -> None:
    newest = server_version(None, DEFAULT_SERVER_IMAGE)
    assert newest is not None
    (first_year, first_month), (last_year, last_month) = FLOOR_VERSION, newest
    months = range(first_year * 12 + first_month - 1, last_year * 12 + last_month)
    supported = [f"{month // 12}.{month % 12 + 1:02}" for month in months]
    assert [release for release in supported if release not in RELEASES] == []
    assert list(RELEASES) == sorted(RELEASES)


def test_every_version_is_locked_by_hash() -> None:
    assert sorted(file.stem for file in LOCKS.glob("*.txt")) == sorted(VERSIONS)
    for version in VERSIONS:
        lock = (LOCKS / f"{version}.txt").read_text(encoding="utf-8")
        assert lock.startswith(f"onnxruntime=={version} "), version
        assert "--hash=sha256:" in lock, version
