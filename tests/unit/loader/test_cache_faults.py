"""Test the model cache against bad volumes, poisoned entries and waits without an end."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from triton_pipelines.loader import cache as cache_module
from triton_pipelines.loader.cache import CachedFile, FileCache, cache_key
from triton_pipelines.loader.file_lease import LeaseTimes

FAST = LeaseTimes(beat=0.01, dead_after=0.2, poll=0.005, patience=5.0)
DATA = b"weights" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()
KEY = cache_key("k")


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "volume", logging.Logger("cache"), keep_free=0.0, times=FAST)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def blobs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "volume/v1/files").glob("*/*"))


def poison(cache: FileCache, tmp_path: Path, data: bytes = b"another model") -> str:
    """Let the index name another file, as anyone who can write to the volume can do."""
    other = tmp_path / "other"
    other.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    cache.put(cache_key("other"), other, digest)
    index = tmp_path / f"volume/v1/index/{KEY[:2]}/{KEY}.json"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text(json.dumps({"sha256": digest, "size": len(data)}))
    return digest


# --- what the index says is compared with what the source announced


def test_a_poisoned_index_serves_no_other_content(
    cache: FileCache, source: Path, tmp_path: Path
) -> None:
    cache.put(KEY, source, DIGEST)
    poison(cache, tmp_path)

    def is_expected(file: CachedFile) -> bool:
        return file.sha256 == DIGEST

    assert cache.take(KEY, tmp_path / "target", is_expected) is None
    assert not (tmp_path / "target").exists()
    # The entry is gone; the good copy and the other pipeline's file are not.
    assert len(blobs(tmp_path)) == 2
    cache.put(KEY, source, DIGEST)
    assert cache.take(KEY, tmp_path / "target", is_expected) == CachedFile(DIGEST, len(DATA))


def test_the_size_is_that_of_the_copy(cache: FileCache, source: Path, tmp_path: Path) -> None:
    cache.put(KEY, source, DIGEST)
    index = next((tmp_path / "volume/v1/index").glob("*/*"))
    index.write_text(json.dumps({"sha256": DIGEST, "size": 1 << 60}))
    assert cache.take(KEY, tmp_path / "target") == CachedFile(DIGEST, len(DATA))


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_not_read(
    cache: FileCache, source: Path, tmp_path: Path, kind: str
) -> None:
    """Opening a pipe would wait for ever; a link could lead anywhere in the container."""
    cache.put(KEY, source, DIGEST)
    (blob,) = blobs(tmp_path)
    blob.unlink()
    if kind == "pipe":
        os.mkfifo(blob)
    else:
        blob.symlink_to(source)
    taken: list[object] = []
    thread = threading.Thread(
        target=lambda: taken.append(cache.take(KEY, tmp_path / "target")), daemon=True
    )
    thread.start()
    thread.join(5)
    assert taken == [None]
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", ["pipe", "large", "deep"])
@pytest.mark.parametrize("place", ["index", "locks"])
def test_a_harmful_entry_of_index_or_lease_delays_no_load(
    cache: FileCache, source: Path, tmp_path: Path, kind: str, place: str
) -> None:
    """Everyone who can write to the volume can replace these files at any time."""
    cache.put(KEY, source, DIGEST)
    results: list[object] = []

    def load() -> None:
        lease = cache.lease(KEY)
        assert lease is not None
        with lease:
            replace_by_harmful(next((tmp_path / "volume/v1" / place).rglob(f"{KEY}*")), kind)
            results.append(cache.take(KEY, tmp_path / "target"))

    thread = threading.Thread(target=load, daemon=True)
    tracemalloc.start()
    thread.start()
    thread.join(5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not thread.is_alive()
    assert results == [None if place == "index" else CachedFile(DIGEST, len(DATA))]
    assert peak < 8 * 1024**2


def replace_by_harmful(path: Path, kind: str) -> None:
    """Replace a file by one that blocks, fills the memory, or exhausts the stack of its reader."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(256 * 1024**2)
    else:
        path.write_text("[" * 4000)


# --- failing reads


class Reads:
    """``os.read`` of this process, of which some calls fail."""

    def __init__(self, failing: int) -> None:
        self.failing, self.real = failing, os.read

    def __call__(self, descriptor: int, size: int) -> bytes:
        if self.failing > 0:
            self.failing -= 1
            raise OSError(errno.EIO, "Input/output error")
        return self.real(descriptor, size)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    made = Reads(0)
    monkeypatch.setattr(cache_module.os, "read", made)
    monkeypatch.setattr(cache_module, "_clone", lambda *_: False)
    return made


def test_a_failed_read_keeps_the_good_copy(
    cache: FileCache, source: Path, tmp_path: Path, reads: Reads
) -> None:
    cache.put(KEY, source, DIGEST)
    reads.failing = 1
    assert cache.take(KEY, tmp_path / "target") is None
    assert not (tmp_path / "target").exists()
    assert cache.finding() is not None
    assert len(blobs(tmp_path)) == 1
    assert cache.take(KEY, tmp_path / "target") is not None


def test_a_copy_is_removed_only_if_it_is_broken_twice(
    cache: FileCache, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that reads garbage once must not take the file from all pods."""
    cache.put(KEY, source, DIGEST)
    real, garbage = os.read, [b"garbage"]
    monkeypatch.setattr(cache_module, "_clone", lambda *_: False)
    monkeypatch.setattr(
        cache_module.os, "read", lambda *args: garbage.pop() if garbage else real(*args)
    )
    taken = cache.take(KEY, tmp_path / "target")
    assert taken is None or taken.sha256 == DIGEST
    assert len(blobs(tmp_path)) == 1
    assert cache.take(KEY, tmp_path / "target") is not None


def test_a_failed_read_publishes_nothing(
    cache: FileCache, source: Path, tmp_path: Path, reads: Reads
) -> None:
    reads.failing = 1
    cache.put(KEY, source, DIGEST)
    assert blobs(tmp_path) == []
    assert list((tmp_path / "volume/v1/index").glob("*/*")) == []
    assert list((tmp_path / "volume/v1/tmp").iterdir()) == []
    assert cache.finding() is not None
    cache.put(KEY, source, DIGEST)
    assert cache.take(KEY, tmp_path / "target") is not None


def test_content_that_is_not_what_its_digest_says_is_not_published(
    cache: FileCache, source: Path, tmp_path: Path
) -> None:
    cache.put(KEY, source, hashlib.sha256(b"something else").hexdigest())
    assert blobs(tmp_path) == []


# --- waiting for another pod


def test_waiting_after_an_eviction_waits_for_the_file(
    cache: FileCache, source: Path, tmp_path: Path
) -> None:
    """The index outlives the evicted file; only both together mean that there is one."""
    cache.put(KEY, source, DIGEST)
    blobs(tmp_path)[0].unlink()
    lease = cache.lease(KEY)
    assert lease is not None
    waited = threading.Event()

    def other() -> None:
        cache.wait(KEY)
        waited.set()

    with lease:
        thread = threading.Thread(target=other)
        thread.start()
        assert not waited.wait(0.3)
        cache.put(KEY, source, DIGEST)
        assert waited.wait(5)
    thread.join(5)


def test_waiting_ends_when_the_load_has_failed(cache: FileCache) -> None:
    lease = cache.lease(KEY)
    assert lease is not None
    failed = threading.Event()
    began = time.monotonic()
    with lease:
        threading.Timer(0.2, failed.set).start()
        cache.wait(KEY, failed.is_set)
    assert time.monotonic() - began < 2
