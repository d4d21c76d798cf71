"""Failing servers: every fault is injected, and what is read is compared with what is served."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from equitar.errors import ShardError, ShardMismatchError, StaleSidecarError, StorageError
from equitar.indexing.index import index
from equitar.sources import Retries, Source
from equitar.storage.files import exists
from equitar.storage.remote import RemoteRanges
from helpers.fault_server import FAULTS, Site, serving

QUICK = Retries(patience=0.5, first_wait=0.005, longest_wait=0.02, stall=0.25, recheck=0.0)
RAW = random.Random(0).randbytes(200_000)
PATH = "/a/x.tar"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(files={PATH: RAW}, etags={PATH: "one"}, stall=0.6)) as server:
        yield server


def ranges_of(site: Site, *, size: int | None = len(RAW), query: str = "", retries: Retries = QUICK) -> RemoteRanges:
    def wrong(size_of_shard: int) -> Exception:
        return StaleSidecarError(f"{size_of_shard} bytes")

    return RemoteRanges(f"{site.url}{PATH}{query}", options=None, retries=retries, size=size, wrong_size=wrong)


def test_an_honest_server_is_asked_once_for_a_range(site: Site) -> None:
    ranges = ranges_of(site)
    assert ranges.read(1000, 5000) == RAW[1000:6000]
    assert site.requests[PATH] == 1
    assert site.sent[PATH] == 5000


@pytest.mark.parametrize("fault", FAULTS)
def test_no_byte_is_lost_or_doubled_by_a_fault_that_passes(site: Site, fault: str) -> None:
    site.chooser = lambda path, number: fault if number in (0, 1, 3) else None
    ranges = ranges_of(site)
    assert ranges.read(100, 60_000) == RAW[100:60_100]
    assert ranges.read(150_000, 50_000) == RAW[150_000:]
    assert site.injected[fault] == 3
    ranges.close()


@pytest.mark.parametrize(
    "fault", sorted(set(FAULTS) - {"other part", "short with length", "short without length", "reset", "stall"})
)
def test_a_fault_that_stays_is_an_error_with_range_tries_and_cause(site: Site, fault: str) -> None:
    site.chooser = lambda path, number: fault
    with pytest.raises(
        StorageError,
        match=r"a/x\.tar did not give bytes 100-199 in \d+ tries and \d+\.\d s; the last failed with[^;]*$",
    ):
        ranges_of(site).read(100, 100)
    assert site.requests[PATH] > 4 or fault == "nothing"  # which the HTTP client itself tries twice


def test_a_short_answer_is_resumed_from_where_it_stopped(site: Site) -> None:
    site.chooser = lambda path, number: "short with length" if number == 0 else None
    assert ranges_of(site).read(0, 100_000) == RAW[:100_000]
    assert site.sent[PATH] == 100_000


def test_a_stall_ends_at_the_limit_in_all(site: Site) -> None:
    site.chooser = lambda path, number: "stall"
    retries = Retries(patience=0.5, first_wait=0.005, longest_wait=0.01, stall=0.1)
    with pytest.raises(StorageError, match="TimeoutError"):
        ranges_of(site, retries=retries).read(0, 150_000)
    site.over.set()


def test_a_page_in_place_of_a_range_is_shown(site: Site) -> None:
    site.chooser = lambda path, number: "page"
    with pytest.raises(StorageError, match=r"status 200 with text/html that begins b'<!DOCTYPE html>"):
        ranges_of(site).read(0, 10)


@pytest.mark.parametrize("etag", ["two", "one"])
def test_a_file_that_is_replaced_while_it_is_read_is_an_error(site: Site, etag: str) -> None:
    ranges = ranges_of(site)
    assert ranges.read(0, 10) == RAW[:10]
    site.files[PATH], site.etags[PATH] = (RAW[::-1] if etag == "two" else RAW[:-1]), etag
    match = "was changed while it was read" if etag == "two" else "199999 bytes"
    with pytest.raises(ShardMismatchError if etag == "two" else StaleSidecarError, match=match):
        ranges.read(10, 10)


def test_a_file_of_another_size_is_found_with_the_first_range(site: Site) -> None:
    with pytest.raises(StaleSidecarError, match="200000 bytes"):
        ranges_of(site, size=300_000).read(0, 10)
    with pytest.raises(StaleSidecarError, match="200000 bytes"):
        ranges_of(site, size=300_000).read(250_000, 10)


def test_a_missing_file_is_not_asked_for_again(site: Site) -> None:
    del site.files[PATH]
    with pytest.raises(FileNotFoundError, match=r"a/x\.tar is missing"):
        ranges_of(site).read(0, 10)


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Serve nothing but a status; yield the URL of a shard."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815  (as http.server calls it)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x.tar"
        server.shutdown()


def size_at(url: str) -> int:
    return RemoteRanges(url, options=None, retries=replace(QUICK, stall=30.0), size=None, wrong_size=ValueError).size()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_fails_to_tell_a_size_is_asked_again_and_its_file_is_not_called_missing(status: int) -> None:
    with answering(status) as url, pytest.raises(StorageError, match=rf"its size in \d+ tries .*{status}"):
        size_at(url)


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_denies_is_not_asked_again_and_its_file_is_not_called_missing(status: int) -> None:
    with (
        answering(status) as url,
        pytest.raises(StorageError, match=rf"in 1 tries .*status {status}; check `storage_op"),
    ):
        size_at(url)


@pytest.mark.parametrize("status", [404, 410])
def test_only_what_a_server_says_is_missing_is(status: int) -> None:
    with answering(status) as url:
        with pytest.raises(FileNotFoundError, match=r"x\.tar is missing"):
            size_at(url)
        assert not exists(url, None)


def test_a_server_that_is_not_there_has_no_missing_shards(tmp_path: Path) -> None:
    with answering(200) as url:
        pass
    gone = Source("s", url, sidecars=str(tmp_path), retries=QUICK)
    with pytest.raises(StorageError, match=r"x\.tar did not give its size in \d+ tries"):
        size_at(url)
    with pytest.raises(ShardError, match=r"x\.tar did not give .* in \d+ tries"):
        index(gone, missing_shards="skip", jobs=1, progress=False)


def test_a_server_without_ranges_is_copied_once(site: Site) -> None:
    site.has_ranges = False
    ranges = ranges_of(site)
    assert [ranges.read(start, 7) for start in (5, 100_000, 3)] == [RAW[start : start + 7] for start in (5, 100_000, 3)]
    assert site.requests[PATH] == 2  # one to learn it, one for the copy
    ranges.close()


def test_nothing_secret_is_shown(site: Site) -> None:
    site.chooser = lambda path, number: "status 503"
    with pytest.raises(StorageError) as raised:
        ranges_of(site, query="?X-Signature=hush").read(0, 10)
    error: BaseException | None = raised.value
    while error is not None:
        assert error is raised.value or error.__suppress_context__ or "hush" not in str(error)
        assert "hush" not in str(raised.value)
        error = error.__cause__


def test_closing_ends_a_read_that_waits(site: Site) -> None:
    import threading
    import time

    site.chooser, site.stall = (lambda path, number: "stall"), 5.0
    ranges = ranges_of(site, retries=Retries(stall=30.0))
    caught: list[Any] = []

    def read() -> None:
        try:
            ranges.read(0, 1000)
        except Exception as error:  # noqa: BLE001
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.2)
    ranges.close()
    thread.join(2)
    assert not thread.is_alive()
    assert caught
