"""Cache: a copy is made once, complete, and by one process. Threads stand for processes: a lock belongs to an open file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from equitar.errors import StorageError
from equitar.sources import Cache
from equitar.storage.cache import cache_name, cached
from equitar.storage.ranges import LocalRanges

URL = "http://host/a/x.tar"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "cache"), 1000)


def read(
    cache: Cache,
    url: str,
    fill: Callable[[BinaryIO], object],
    *,
    size: int = 100,
    stopped: threading.Event | None = None,
) -> bytes:
    ranges = opened(cache, url, fill, size=size, stopped=stopped or threading.Event())
    try:
        return ranges.read(0, ranges.size())
    finally:
        ranges.close()


def opened(
    cache: Cache, url: str, fill: Callable[[BinaryIO], object], *, size: int, stopped: threading.Event
) -> LocalRanges:
    def filling(file: BinaryIO) -> None:
        fill(file)

    return cached(cache, url, "1", filling, size=size, stopped=stopped)


def test_many_who_want_a_copy_at_once_download_it_once(cache: Cache) -> None:
    fills: list[int] = []

    def fill(file: BinaryIO) -> None:
        fills.append(1)
        time.sleep(0.05)
        file.write(b"x" * 100)

    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(lambda _: read(cache, URL, fill), range(8)))
    assert copies == [b"x" * 100] * 8
    assert len(fills) == 1


def test_a_copy_that_fails_leaves_nothing(cache: Cache) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise StorageError("no more")

    with pytest.raises(StorageError):
        read(cache, URL, fill)
    assert [path.name for path in Path(cache.directory).iterdir() if not path.name.startswith("lock-")] == []
    assert read(cache, URL, lambda file: file.write(b"whole")) == b"whole"


def test_what_a_dead_process_left_is_written_over_or_removed(cache: Cache) -> None:
    folder = Path(cache.directory)
    folder.mkdir()
    own = folder / f"{cache_name(URL, '1')}.partial"
    other = folder / "0123-y.tar.partial"
    for path in (own, other):
        path.write_bytes(b"dead")
    os.utime(other, (0, 0))
    assert read(cache, URL, lambda file: file.write(b"alive")) == b"alive"
    assert not other.exists()
    assert not own.exists()


def test_what_was_used_longest_ago_goes_first(cache: Cache) -> None:
    for name in "abc":
        read(cache, f"http://host/{name}.tar", lambda file: file.write(b"x" * 400), size=400)
        for number, path in enumerate(sorted(Path(cache.directory).glob("*.tar"), key=lambda file: file.name[-5:])):
            os.utime(path, (number, number))
        if name == "b":  # used again: now b is the oldest
            read(cache, "http://host/a.tar", lambda file: pytest.fail("it is there"), size=400)
    left = {path.name[-5:] for path in Path(cache.directory).glob("*.tar")}
    assert left == {"a.tar", "c.tar"}


def test_a_copy_in_use_can_be_read_when_it_is_removed(cache: Cache) -> None:
    ranges = opened(cache, URL, lambda file: file.write(b"x" * 900), size=900, stopped=threading.Event())
    read(cache, "http://host/other.tar", lambda file: file.write(b"y" * 900), size=900)
    assert not list(Path(cache.directory).glob("*-x.tar"))
    assert ranges.read(899, 1) == b"x"
    ranges.close()


def test_who_waits_for_a_lock_can_be_stopped(cache: Cache) -> None:
    stopped, begun, go_on = threading.Event(), threading.Event(), threading.Event()

    def fill(file: BinaryIO) -> None:
        begun.set()
        go_on.wait(5)

    holder = threading.Thread(target=read, args=(cache, URL, fill))
    holder.start()
    begun.wait(5)
    threading.Timer(0.05, stopped.set).start()
    with pytest.raises(StorageError, match="reading was stopped"):
        read(cache, URL, fill, stopped=stopped)
    go_on.set()
    holder.join()


@pytest.mark.parametrize(
    ("url", "other", "is_same"),
    [
        ("http://h/A/000.tar", "http://h/B/000.tar", False),
        ("http://h/000.tar", "https://h/000.tar", False),
        ("http://h/000.tar?sig=1", "http://h/000.tar?sig=2", True),
        ("http://me:a@h/000.tar", "http://me:b@h/000.tar", True),
        ("pipe:cat A/000.tar", "pipe:cat B/000.tar", False),
    ],
)
def test_the_whole_url_names_a_copy(url: str, other: str, is_same: bool) -> None:
    assert (cache_name(url, "1") == cache_name(other, "1")) is is_same
    assert cache_name(url, "1") != cache_name(url, "2")
    assert cache_name(url, "1").endswith("-000.tar")
