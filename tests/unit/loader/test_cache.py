"""Test the files that pods share.

They are verified on use, safe for concurrent use and bounded, and never prevent a load.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import INFORMATIVE, LoadReason
from triton_pipelines.loader import cache as cache_module
from triton_pipelines.loader.cache import IN_USE_SECONDS, FileCache, cache_key
from triton_pipelines.loader.file_lease import LeaseTimes, try_lease, wait_for

FAST = LeaseTimes(beat=0.01, dead_after=0.2, poll=0.005, patience=5.0)
OLD = IN_USE_SECONDS + 100


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(out: io.StringIO) -> logging.Logger:
    made = logging.Logger("cache", logging.INFO)
    made.addHandler(logging.StreamHandler(out))
    return made


@pytest.fixture
def made(tmp_path: Path, log: logging.Logger) -> FileCache:
    return FileCache(tmp_path / "volume", log, keep_free=0.0, times=FAST)


def kept(cache: FileCache, tmp_path: Path, data: bytes, name: str = "key") -> str:
    source = tmp_path / f"source-{name}"
    source.write_bytes(data)
    cache.put(cache_key(name), source, hashlib.sha256(data).hexdigest())
    return cache_key(name)


def test_a_file_comes_back_by_its_key(made: FileCache, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    key = kept(made, tmp_path, data)
    found = made.take(key, tmp_path / "target")
    assert found is not None
    assert (found.sha256, found.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (tmp_path / "target").read_bytes() == data
    assert made.take(cache_key("another"), tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
    assert made.finding() is None
    assert list((tmp_path / "volume/v1/tmp").iterdir()) == []


def test_keys_differ_by_every_part() -> None:
    assert (
        len(
            {
                cache_key("a", "b"),
                cache_key("ab"),
                cache_key("a", None, "b"),
                cache_key("b", "a"),
                cache_key("a,b"),
            }
        )
        == 5
    )


def test_equal_content_lies_there_once(made: FileCache, tmp_path: Path) -> None:
    for name in ("one", "two"):
        kept(made, tmp_path, b"weights", name)
    assert len(list((tmp_path / "volume/v1/files").glob("*/*"))) == 1
    assert len(list((tmp_path / "volume/v1/index").glob("*/*"))) == 2


def test_a_broken_copy_is_never_used(made: FileCache, tmp_path: Path, out: io.StringIO) -> None:
    key = kept(made, tmp_path, b"weights")
    blob = next((tmp_path / "volume/v1/files").glob("*/*"))
    blob.write_bytes(b"weightz")
    assert made.take(key, tmp_path / "target") is None
    assert not (tmp_path / "target").exists()
    assert not blob.exists()
    assert "broken copy" in out.getvalue()
    kept(made, tmp_path, b"weights")
    assert made.take(key, tmp_path / "target") is not None


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{}", '{"sha256": "../../etc/passwd", "size": 1}', '{"sha256": 1, "size": "x"}'],
)
def test_a_broken_index_is_a_miss(made: FileCache, tmp_path: Path, note: str) -> None:
    key = kept(made, tmp_path, b"weights")
    next((tmp_path / "volume/v1/index").glob("*/*")).write_text(note)
    assert made.take(key, tmp_path / "target") is None


def test_a_file_removed_by_another_pod_is_a_miss(made: FileCache, tmp_path: Path) -> None:
    key = kept(made, tmp_path, b"weights")
    shutil.rmtree(tmp_path / "volume/v1/files")
    assert made.take(key, tmp_path / "target") is None
    assert made.finding() is None


def test_a_volume_that_cannot_be_written_costs_only_a_note(
    tmp_path: Path, log: logging.Logger, messages: Messages
) -> None:
    (tmp_path / "volume").write_text("a file where the mount should be")
    cache = FileCache(tmp_path / "volume", log, times=FAST)
    key = kept(cache, tmp_path, b"weights")
    assert cache.take(key, tmp_path / "target") is None
    with cache.lease(key) or pytest.fail("a lease that cannot be kept is given to everyone"):
        pass
    finding = cache.finding()
    assert finding is not None
    assert finding.reason is LoadReason.CACHE_UNUSED
    assert finding.reason in INFORMATIVE
    messages.check(finding.message)


class Volume:
    """A volume of ``blocks`` blocks of one byte, filled by what lies in ``root``."""

    def __init__(self, root: Path, blocks: int) -> None:
        self.root, self.blocks = root, blocks

    def __call__(self, _: object) -> os.statvfs_result:
        used = sum(path.stat().st_size for path in self.root.glob("v1/files/*/*"))
        return os.statvfs_result(
            (1, 1, self.blocks, self.blocks - used, self.blocks - used, 0, 0, 0, 0, 255)
        )


@pytest.fixture
def small(
    tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FileCache]:
    monkeypatch.setattr(cache_module.os, "statvfs", Volume(tmp_path / "volume", 1000))
    return FileCache(tmp_path / "volume", log, keep_free=0.1, times=FAST)


def age(tmp_path: Path, data: bytes, seconds: float) -> Path:
    blob = next((tmp_path / "volume/v1/files").glob(f"*/{hashlib.sha256(data).hexdigest()}"))
    then = blob.stat().st_mtime - seconds
    os.utime(blob, (then, then))
    return blob


def test_the_least_recently_used_goes_first_and_what_is_used_stays(
    small: FileCache, tmp_path: Path
) -> None:
    parts = {name: name.encode() * 300 for name in "abc"}
    keys = {name: kept(small, tmp_path, data, name) for name, data in parts.items()}
    for name, seconds in (("a", OLD + 2), ("b", OLD + 3), ("c", OLD + 1)):
        age(tmp_path, parts[name], seconds)
    assert small.take(keys["b"], tmp_path / "used") is not None
    kept(small, tmp_path, b"d" * 300, "d")
    there = {name for name in "abc" if small.take(keys[name], tmp_path / "target") is not None}
    assert there == {"b", "c"}
    assert small.take(cache_key("d"), tmp_path / "target") is not None


def test_what_was_used_lately_is_never_evicted(
    small: FileCache, tmp_path: Path, messages: Messages
) -> None:
    keys = [kept(small, tmp_path, name.encode() * 300, name) for name in "abc"]
    kept(small, tmp_path, b"d" * 300, "d")
    assert all(small.take(key, tmp_path / "target") is not None for key in keys)
    assert small.take(cache_key("d"), tmp_path / "target") is None
    finding = small.finding()
    assert finding is not None
    assert "300" in finding.message
    messages.check(finding.message)


def test_a_reader_keeps_its_file_when_another_pod_evicts_it(
    small: FileCache, tmp_path: Path
) -> None:
    data = b"a" * 600
    kept(small, tmp_path, data, "a")
    blob = age(tmp_path, data, OLD)
    with blob.open("rb") as reader:
        kept(small, tmp_path, b"b" * 600, "b")
        assert not blob.exists()
        assert reader.read() == data


def test_unfinished_files_of_pods_that_are_gone_are_removed(
    made: FileCache, tmp_path: Path
) -> None:
    kept(made, tmp_path, b"x", "x")
    left, young = tmp_path / "volume/v1/tmp/left", tmp_path / "volume/v1/tmp/young"
    for path in (left, young):
        path.write_bytes(b"half")
    then = left.stat().st_mtime - cache_module.ABANDONED_SECONDS - 1
    os.utime(left, (then, then))
    kept(made, tmp_path, b"y", "y")
    assert (left.exists(), young.exists()) == (False, True)


def test_many_pods_at_once_never_see_a_part(tmp_path: Path, log: logging.Logger) -> None:
    data = os.urandom(2_000_000)
    digest, key = hashlib.sha256(data).hexdigest(), cache_key("k")
    (tmp_path / "source").write_bytes(data)

    def pod(number: int) -> str | None:
        cache = FileCache(tmp_path / "volume", log, keep_free=0.0, times=FAST)
        if number % 2:
            cache.put(key, tmp_path / "source", digest)
        found = cache.take(key, tmp_path / f"target-{number}")
        return found.sha256 if found else None

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(pod, range(24))) <= {digest, None}
    assert pod(0) == digest


# --- who fetches


def test_one_fetches_and_the_others_wait_for_it(made: FileCache, tmp_path: Path) -> None:
    key = cache_key("k")
    lease = made.lease(key)
    assert lease is not None
    waited = threading.Event()

    def other() -> None:
        made.wait(key)
        waited.set()

    with lease:
        assert made.lease(key) is None
        thread = threading.Thread(target=other)
        thread.start()
        # Longer than a dead owner is waited for: signs of life keep the lease.
        assert not waited.wait(3 * FAST.dead_after)
        kept(made, tmp_path, b"weights", "k")
        assert waited.wait(5)
    thread.join(5)
    again = made.lease(key)
    assert again is not None
    with again:
        pass


def test_a_dead_owner_of_a_lock_delays_no_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    owner = try_lease(path, FAST)
    assert owner is not None
    # Never entered: nobody touches the file, as after the owner's end.
    now = iter(x / 10 for x in range(100))
    wait_for(
        path, LeaseTimes(dead_after=0.5, sleep=lambda _: None), lambda: False, lambda: next(now)
    )
    assert not path.exists()
    assert next(now) < 2.0
    # The owner comes back to life: it gives back nothing that is not its own.
    successor = try_lease(path, FAST)
    assert successor is not None
    with owner:
        pass
    assert path.exists()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("somebody")
    stamps = iter(range(10**9, 10**12, 10**9))
    now = iter(range(1000))

    def alive(_: float) -> None:
        os.utime(path, ns=(next(stamps),) * 2)

    wait_for(
        path,
        LeaseTimes(dead_after=5, patience=50, sleep=alive),
        lambda: False,
        lambda: float(next(now)),
    )
    assert path.exists()
    assert 50 <= next(now) < 200


def test_the_index_holds_no_address(made: FileCache, tmp_path: Path) -> None:
    kept(made, tmp_path, b"weights")
    note = json.loads(next((tmp_path / "volume/v1/index").glob("*/*")).read_text())
    assert set(note) == {"sha256", "size"}


@pytest.mark.parametrize("wrong", [b"", b"weights and more"])
def test_a_file_of_a_wrong_size_is_replaced(made: FileCache, tmp_path: Path, wrong: bytes) -> None:
    kept(made, tmp_path, b"weights")
    next((tmp_path / "volume/v1/files").glob("*/*")).write_bytes(wrong)
    key = kept(made, tmp_path, b"weights", "other")
    assert made.take(key, tmp_path / "target") is not None


@pytest.mark.parametrize("linked", ["", "files", "files/{sha256}", "index", "index/{key}", "tmp"])
def test_a_folder_that_is_a_link_is_not_written_to(
    made: FileCache, tmp_path: Path, linked: str
) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    folder = tmp_path / "volume/v1" / linked.format(sha256=digest[:2], key=cache_key("key")[:2])
    folder.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    kept(made, tmp_path, b"weights")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    finding = made.finding()
    assert finding is not None
    assert "symbolic link" in finding.message


def test_files_behind_a_linked_folder_are_not_evicted(small: FileCache, tmp_path: Path) -> None:
    kept(small, tmp_path, b"a" * 4096, "first")
    (tmp_path / "elsewhere").mkdir()
    theirs = tmp_path / "elsewhere/model.bin"
    theirs.write_bytes(b"x" * 4096)
    os.utime(theirs, (0, 0))
    (tmp_path / "volume/v1/files/zz").symlink_to(tmp_path / "elsewhere")
    for number in range(12):
        kept(small, tmp_path, bytes([number]) * 4096, str(number))
    assert theirs.exists()
