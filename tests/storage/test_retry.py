"""Retries: patience is time, a busy server says how long to wait, and commands are run again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

import equitar
from equitar.errors import StorageError
from equitar.loading.builders import exact
from equitar.sources import Retries, Source
from equitar.storage import retry
from equitar.storage.remote import RemoteRanges
from equitar.storage.retry import AnswerError, Retry
from equitar.storage.streams import open_stream
from helpers.fault_server import Site, serving
from helpers.odd_tars import END, two_samples

TAR = two_samples() + END


class Clock(threading.Event):
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.waits = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1_700_000_000

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    return clock


def failing(clock: Clock, retries: Retries, error: Callable[[], Exception], *, times: int = 10_000) -> list[float]:
    """Ask for something that fails so many times; return the waits between."""
    left = [times]

    def ask() -> None:
        clock.now += 0.001
        left[0] -= 1
        if left[0] >= 0:
            raise error()

    Retry("x.tar", retries, None, clock).answer("its size", ask)
    return clock.waits


def test_a_store_that_fails_for_four_minutes_is_waited_for(clock: Clock) -> None:
    waits = failing(clock, Retries(), OSError, times=38)
    assert 200 < sum(waits) < 300
    assert max(waits) <= 8.0


def test_patience_ends_after_five_minutes_by_default(clock: Clock) -> None:
    with pytest.raises(StorageError, match=r"x\.tar did not give its size in \d+ tries and 300\.\d s; .* OSError"):
        failing(clock, Retries(), OSError)


def test_without_patience_there_is_one_try(clock: Clock) -> None:
    with pytest.raises(StorageError, match="in 1 tries"):
        failing(clock, Retries(patience=0.0), OSError)


@pytest.mark.parametrize("value", ["40", formatdate(1_700_001_000 + 40, usegmt=True)])
def test_a_busy_server_is_asked_again_when_it_says(clock: Clock, value: str) -> None:
    (wait,) = failing(clock, Retries(), lambda: AnswerError("status 429", value), times=1)
    assert 39 < wait <= 40


def test_a_server_that_asks_for_more_than_patience_is_not_waited_for(clock: Clock) -> None:
    with pytest.raises(
        StorageError, match=r"in 1 tries .*status 503; the server asks to wait 3600 s: raise `patience`"
    ):
        failing(clock, Retries(), lambda: AnswerError("status 503", "3600"))
    assert clock.waits == []


@pytest.mark.parametrize("value", ["soon", "", "-5", formatdate(0, usegmt=True)])
def test_a_time_that_makes_no_sense_is_ignored(clock: Clock, value: str) -> None:
    assert max(failing(clock, Retries(), lambda: AnswerError("status 503", value), times=3)) < 2


def test_a_long_failure_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    failing(clock, Retries(), lambda: OSError("no route"), times=12)
    (record,) = caplog.records
    assert "x.tar: OSError: no route; retrying for up to" in record.getMessage()


@pytest.mark.parametrize("status", [429, 503])
def test_a_range_waits_as_long_as_its_server_asks(status: int) -> None:
    raw = bytes(range(256)) * 8
    site = Site(files={"/x.tar": raw}, chooser=lambda _, number: f"status {status}" if number == 0 else None)
    site.retry_after = "1"
    with serving(site):
        quick = Retries(first_wait=0.001, longest_wait=0.002)
        ranges = RemoteRanges(f"{site.url}/x.tar", options=None, retries=quick, size=len(raw), wrong_size=ValueError)
        begin = time.monotonic()
        assert ranges.read(10, 100) == raw[10:110]
        assert time.monotonic() - begin >= 1
        assert site.requests["/x.tar"] == 2
        ranges.close()


QUICK = Retries(patience=20.0, first_wait=0.001, longest_wait=0.002)


def flaky(folder: Path, times: int) -> str:
    """Return a command that fails half way so many times, and then gives a tar."""
    (folder / "x.tar").write_bytes(TAR)
    count = f"echo >> {folder}/runs; n=$(wc -l < {folder}/runs)"
    return f"pipe:{count}; if [ $n -le {times} ]; then head -c 700 {folder}/x.tar; exit 7; fi; cat {folder}/x.tar"


def test_a_command_that_fails_is_run_again_and_its_partial_output_dropped(tmp_path: Path) -> None:
    with open_stream(flaky(tmp_path, 2), None, QUICK) as (file, size):
        assert (file.read(), size) == (TAR, len(TAR))


def test_commands_are_retried_by_the_index_and_by_readers(tmp_path: Path) -> None:
    source = Source("s", flaky(tmp_path, 1), sidecars=str(tmp_path), root=str(tmp_path), retries=QUICK)
    assert equitar.index(source, jobs=1, progress=False).sources[0].samples == 2
    (tmp_path / "runs").unlink()
    batches = exact([source], batch_size=2, rank=0, world_size=1)
    assert [batch["__key__"] for batch in batches] == [["a", "b"]]
    assert len((tmp_path / "runs").read_text()) == 2


def test_a_command_that_keeps_failing_is_an_error_with_its_tries_and_last_words(tmp_path: Path) -> None:
    url = "pipe:echo gone >&2; head -c 5 /dev/zero; exit 3"
    match = (
        r"did not give its output in \d+ tries and .* it ended with exit status 3 after 5 bytes and the message 'gone'"
    )
    with pytest.raises(StorageError, match=match), open_stream(url, None, Retries(patience=0.1, first_wait=0.02)):
        pass


@pytest.mark.parametrize(("command", "status"), [("no-such-command-here", 127), ("/dev/null", 126)])
def test_a_command_that_does_not_exist_is_not_run_again(command: str, status: int) -> None:
    with pytest.raises(StorageError, match=f"exit status {status}"), open_stream(f"pipe:{command}", None, Retries()):
        pass
