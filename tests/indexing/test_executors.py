"""Whoever reads the shards, and whoever dies meanwhile: the sidecars are those of one process that read them all."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dask
import pytest
from click.testing import CliRunner
from distributed import Client, KilledWorker, LocalCluster

import equitar
from equitar.cli.app import main
from equitar.errors import ShardError, StorageError, WorkerError
from equitar.indexing.executors import DaskExecutor, outcomes
from equitar.indexing.label_job import label_job_of, read_spooled, spool
from equitar.indexing.source_job import SourceReport
from equitar.sources import Source
from helpers.labelled_shards import shard

# Kills its process at a label "kill", as often as a file beside the shards says: each killing counts it down.
KILLER = """
import os, pathlib, signal

def labels(sample):
    name = sample["cls"].decode()
    times = pathlib.Path(__file__).with_name("times")
    if name == "kill" and (left := int(times.read_text())):
        times.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return [name]
"""
SHARDS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give shards, of which one may kill who reads it, and a module that does so."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(SHARDS):
        shard(folder / f"x-{number:02}.tar", ["kill" if number == 5 else f"c{number % 5}", "dog"])
    (folder / "killer_of_mine.py").write_text(KILLER)
    (folder / "times").write_text("0")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def source_of(folder: Path, sidecars: Path) -> Source:
    return Source("s", f"{folder}/x-*.tar", root=str(folder), sidecars=str(sidecars))


def written(folder: Path) -> dict[str, bytes]:
    """Return all files but those that a process was writing when it was killed."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".partial"}


def index(folder: Path, sidecars: Path, **more: Any) -> SourceReport:
    source = source_of(folder, sidecars)
    return equitar.index(source, labels="killer_of_mine:labels", progress=False, **more).sources[0]


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    sidecars = tmp_path_factory.mktemp("expected")
    assert index(folder, sidecars, jobs=1).written == SHARDS
    return written(sidecars)


# ---- executors of concurrent.futures --------------------------------------------------------------------------------------


class Counting(ThreadPoolExecutor):
    """Counts what is under way, and may lose what it was given first."""

    def __init__(self, *, lost: int = 0) -> None:
        super().__init__(3)
        self.under_way: set[Future[Any]] = set()
        self.most = self.submitted = 0
        self._lost = lost

    def submit(self, task: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
        self.submitted += 1
        if self._lost:
            self._lost -= 1
            lost: Future[Any] = Future()
            lost.cancel()
            return lost
        future = super().submit(task, *words, **named)
        self.under_way.add(future)
        self.most = max(self.most, len(self.under_way))
        future.add_done_callback(self.under_way.discard)
        return future


def test_any_executor_writes_what_one_process_writes_and_lives_on(
    folder: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    with Counting() as executor:
        assert index(folder, tmp_path / "side", executor=executor).written == SHARDS
        assert executor.submit(len, "abc").result() == 3
    assert written(tmp_path / "side") == expected  # and no recipe lies there


def test_work_that_is_done_is_not_done_again(folder: Path, tmp_path: Path) -> None:
    with Counting() as executor:
        index(folder, tmp_path / "side", executor=executor)
        (tmp_path / "side" / "x-07.presence.npz").unlink()
        report = index(folder, tmp_path / "side", executor=executor)
    assert (report.written, report.skipped) == (1, SHARDS - 1)


def test_what_an_executor_loses_it_is_asked_for_again(folder: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    with Counting(lost=2) as executor:
        index(folder, tmp_path / "side", executor=executor)
    assert written(tmp_path / "side") == expected


@pytest.mark.parametrize("jobs", [1, 5])
def test_few_items_are_under_way_however_many_there_are(jobs: int) -> None:
    with Counting() as executor:
        done = [
            item for item, outcome in outcomes(str, range(5000), jobs=jobs, executor=executor) if outcome == str(item)
        ]
    assert sorted(done) == list(range(5000))
    assert executor.most <= 4 * jobs


def test_what_is_under_way_is_cancelled_when_nobody_wants_it_any_more() -> None:
    with Counting() as executor:
        pending = outcomes(str, range(5000), jobs=5, executor=executor)
        next(pending)
        cast("Any", pending).close()
        assert executor.submitted <= 5 * 4 + 1


class Broken(Executor):
    def submit(self, task: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
        raise BrokenExecutor("it is over")


def test_a_broken_executor_is_an_error_that_says_what_it_did(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match=r"the executor broke while it did .*x-00\.tar, .*: it is over; make a new one"
    ):
        index(folder, tmp_path, executor=Broken())


def test_a_pool_of_the_users_that_breaks_is_an_error_and_a_new_one_goes_on(
    folder: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    (folder / "times").write_text("1")
    spawn = multiprocessing.get_context("spawn")
    message = r"the executor broke while it did .*x-05\.tar.*terminated abruptly"
    with ProcessPoolExecutor(1, spawn) as pool, pytest.raises(WorkerError, match=message):
        index(folder, tmp_path / "side", executor=pool)
    assert (folder / "times").read_text() == "0"  # nobody made a pool anew
    with ProcessPoolExecutor(1, spawn) as pool:
        report = index(folder, tmp_path / "side", executor=pool)
    assert report.skipped > 0
    assert report.written + report.skipped == SHARDS
    assert written(tmp_path / "side") == expected


def test_what_is_no_executor_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"must be an executor of concurrent\.futures or a client of dask; got str"):
        index(folder, tmp_path / "side", executor="tcp://head:8786")


def test_a_relative_path_is_sent_as_an_absolute_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, bytes]
) -> None:
    monkeypatch.chdir(folder)
    source = Source("s", "x-*.tar", sidecars=os.path.relpath(tmp_path / "side"))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, os.chdir, (tmp_path,)) as elsewhere:
        equitar.index(source, labels="killer_of_mine:labels", executor=elsewhere, progress=False)
    assert written(tmp_path / "side") == expected


def test_a_label_job_that_is_missing_or_changed_is_not_used(tmp_path: Path) -> None:
    job = label_job_of("cls", None, None, options=None, missing="error", crowd=True, force=False, regroup=False)
    where = spool(job, str(tmp_path), None)
    assert read_spooled(where) == job
    Path(where.url).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    read_spooled.cache_clear()
    with pytest.raises(StorageError, match="is not the file that this run wrote"):
        read_spooled(where)
    Path(where.url).unlink()
    with pytest.raises(StorageError, match="other machines must reach the folder of the sidecars"):
        read_spooled(where)


# ---- processes that are killed --------------------------------------------------------------------------------------------


def test_processes_that_are_killed_once_lose_nothing(folder: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    (folder / "times").write_text("1")
    index(folder, tmp_path / "side", jobs=2)
    assert (folder / "times").read_text() == "0"
    assert written(tmp_path / "side") == expected


def test_a_shard_that_kills_who_reads_it_is_named_and_all_others_are_done(
    folder: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    (folder / "times").write_text("99")
    with pytest.raises(ShardError, match=r"1 error in 24 shards: .*x-05\.tar: the process that read it was killed"):
        index(folder, tmp_path / "side", jobs=2)
    (folder / "times").write_text("0")
    sidecars = {name for name in expected if "presence" in name and "x-05" not in name}
    assert set(written(tmp_path / "side")) == sidecars


def test_where_every_process_is_killed_there_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equitar.indexing.executors._LOST_IN_A_ROW", 3)
    killed = r"[345] processes in a row ended without a result, the last while they read .*; is there too little memory"
    with pytest.raises(WorkerError, match=killed):
        list(outcomes(os._exit, range(1000), jobs=2, executor=None))


# ---- dask -----------------------------------------------------------------------------------------------------------------


class Fetched:
    """A future of dask, of which is told what fetching its result gives, and what its state is afterwards."""

    def __init__(self, outcome: Any, status: str, error: BaseException | None = None) -> None:
        self._outcome, self.status, self._error = outcome, status, error

    async def result(self) -> Any:
        if self._outcome is None:
            await asyncio.Event().wait()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    async def exception(self) -> BaseException | None:
        return self._error

    def release(self) -> None:
        pass


class Scripted:
    """A client of dask whose futures come as told."""

    def __init__(self, loop: asyncio.AbstractEventLoop, futures: list[Fetched]) -> None:
        self.loop = self
        self.asyncio_loop, self.futures = loop, futures
        self.status, self.scheduler = "running", self
        self.address = "tcp://head:8786"
        self.identity: Callable[[], Any] = asyncio.Event().wait

    def submit(self, task: Callable[..., Any], *words: Any, pure: bool) -> Fetched:
        assert not pure
        return self.futures.pop(0)

    def scheduler_info(self) -> dict[str, Any]:
        return {"workers": {"tcp://one:1": {}}}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Give a loop that runs in a thread, as that of a client does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def came(loop: asyncio.AbstractEventLoop, *futures: Fetched) -> list[Any]:
    """Return what comes of one item whose attempts come as told."""
    client = Scripted(loop, list(futures))
    return [outcome for _, outcome in outcomes(str, ["a"], jobs=1, executor=DaskExecutor(cast("Any", client)))]


KILLED = KilledWorker("task", cast("Any", SimpleNamespace(address="tcp://one:1")), 3)
LOST = {
    "its worker died as often as dask allows": Fetched(KILLED, "error", KILLED),
    "its result was lost on the way, and making it again failed": Fetched(OSError("closed"), "error", KILLED),
    "its result was lost, and is being made again": Fetched(OSError("closed"), "pending"),
    "it was cancelled": Fetched(CancelledError("restart"), "cancelled"),
    "its fetching was cancelled": Fetched(asyncio.CancelledError(), "finished"),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_what_dask_lost_is_done_again(loop: asyncio.AbstractEventLoop, lost: Fetched) -> None:
    assert came(loop, lost, Fetched("done", "finished")) == ["done"]


@pytest.mark.parametrize("status", ["finished", "lost", "pending", "error"])
def test_a_result_that_came_counts_whatever_became_of_its_worker(loop: asyncio.AbstractEventLoop, status: str) -> None:
    assert came(loop, Fetched("done", status)) == ["done"]


def test_what_a_task_raises_is_told_and_not_tried_again(loop: asyncio.AbstractEventLoop) -> None:
    missing = FileNotFoundError("no such shard")
    assert came(loop, Fetched(missing, "error", missing)) == [missing]


def test_what_dask_loses_alone_too_is_told_with_the_reason(loop: asyncio.AbstractEventLoop) -> None:
    [error] = came(loop, *[Fetched(KILLED, "error", KILLED)] * 3)
    assert re.search("lost again and again, at last .*: Attempted to run task .* on 4 different workers", str(error))


def test_a_future_that_nobody_answers_ends_with_its_client(loop: asyncio.AbstractEventLoop) -> None:
    client = Scripted(loop, [Fetched(None, "pending")])
    future = DaskExecutor(cast("Any", client)).submit(str, "a")
    with pytest.raises(TimeoutError):
        future.result(timeout=0.1)
    client.status = "closing"
    with pytest.raises(BrokenExecutor, match="scheduler tcp://head:8786 is gone"):
        future.result(timeout=5)


async def slowly() -> None:
    await asyncio.sleep(0.3)


async def without_connection() -> None:
    raise OSError("closed")


@pytest.mark.parametrize("identity", [slowly, without_connection])
def test_a_scheduler_that_answers_late_or_is_connected_anew_is_waited_for(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, identity: Callable[[], Any]
) -> None:
    for name, seconds in (("_LOOK_AGAIN", 0.05), ("_ASK_AGAIN", 0.1), ("_SILENT", 0.5)):
        monkeypatch.setattr(f"equitar.indexing.executors.{name}", seconds)
    client = Scripted(loop, [Fetched(None, "pending")])
    client.identity = identity
    future = DaskExecutor(cast("Any", client)).submit(str, "a")
    with pytest.raises(TimeoutError):
        future.result(timeout=1)
    client.identity = asyncio.Event().wait
    with pytest.raises(BrokenExecutor, match=r"scheduler tcp://head:8786 has not answered for 0 s"):
        future.result(timeout=5)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    path = os.environ.get("PYTHONPATH", "")
    with (
        dask.config.set(
            {
                "distributed.nanny.environ": {"PYTHONPATH": f"{folder}{os.pathsep}{path}"},
                "distributed.admin.log-format": "%(message)s",
                "distributed.comm.timeouts.connect": "3s",  # so long a result is waited for whose worker died
            }
        ),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
    ):
        yield cluster


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("allowed", [0, 3])
def test_a_cluster_that_loses_a_worker_writes_what_one_process_writes(
    folder: Path, tmp_path: Path, expected: dict[str, bytes], cluster: LocalCluster, allowed: int
) -> None:
    (folder / "times").write_text("1")
    scheduler: Any = cluster.scheduler
    scheduler.allowed_failures = allowed
    with Client(cluster) as client:  # type: ignore[no-untyped-call]
        index(folder, tmp_path / "side", executor=client)
        wait_until(lambda: not scheduler.tasks)  # no result stays on a worker, though the client is still there
    assert (folder / "times").read_text() == "0"
    assert written(tmp_path / "side") == expected


def leaves(number: int) -> int:
    return sys.exit("enough") if number == 3 else number


def test_a_task_that_ends_its_process_is_an_error_of_its_own(cluster: LocalCluster) -> None:
    with Client(cluster) as client:  # type: ignore[no-untyped-call]
        outcome_of = dict(outcomes(leaves, range(6), jobs=2, executor=client))
    assert "SystemExit('enough')" in str(outcome_of.pop(3))
    assert outcome_of == {number: number for number in (0, 1, 2, 4, 5)}


def test_a_shard_that_kills_every_worker_is_named(folder: Path, tmp_path: Path, cluster: LocalCluster) -> None:
    (folder / "times").write_text("99")
    scheduler: Any = cluster.scheduler
    scheduler.allowed_failures = 0
    words = r"1 error in 24 shards: .*x-05\.tar: its worker was lost again and again"
    with Client(cluster) as client, pytest.raises(ShardError, match=words):  # type: ignore[no-untyped-call]
        index(folder, tmp_path / "side", executor=client)
    (folder / "times").write_text("0")
    assert len([name for name in written(tmp_path / "side") if "presence" in name]) == SHARDS - 1


def test_the_command_line_reads_on_a_cluster(
    folder: Path, tmp_path: Path, expected: dict[str, bytes], cluster: LocalCluster
) -> None:
    words = [f"s={folder}/x-*.tar", "--root", str(folder), "--sidecars", str(tmp_path / "side"), "--quiet"]
    labels = ["--labels", "killer_of_mine:labels"]
    result = CliRunner().invoke(main, ["index", *words, *labels, "--scheduler", cluster.scheduler_address])
    assert result.exit_code == 0, result.output
    assert written(tmp_path / "side") == expected


def test_the_executor_of_a_client_is_refused_because_its_futures_may_stay_open(
    folder: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    with Client(cluster) as client, pytest.raises(TypeError, match="give `executor=client`"):  # type: ignore[no-untyped-call]
        index(folder, tmp_path / "side", executor=client.get_executor())


def test_a_client_in_its_own_event_loop_is_refused_because_waiting_would_stop_it(
    folder: Path, tmp_path: Path, cluster: LocalCluster
) -> None:
    async def in_the_loop() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:  # type: ignore[no-untyped-call]
            index(folder, tmp_path / "side", executor=client)

    with pytest.raises(TypeError, match="outside of its event loop"):
        asyncio.run(in_the_loop())


@contextmanager
def scheduler_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a scheduler as a process of its own, and give its address."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.PIPE, text=True) as scheduler:
        assert scheduler.stderr is not None
        try:
            yield (
                scheduler,
                next(match[0] for line in scheduler.stderr if (match := re.search(r"tcp://127\S+", line))),
            )
        finally:
            scheduler.kill()


def test_a_scheduler_that_dies_is_an_error_in_one_line(folder: Path, tmp_path: Path) -> None:
    words = [f"s={folder}/x-*.tar", "--sidecars", str(tmp_path / "side"), "--quiet"]
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),  # so long it may come back
        scheduler_process() as (scheduler, address),
    ):

        def kill_when_asked() -> None:
            try:
                wait_until(lambda: any((tmp_path / "side").glob("*.recipe")))  # nobody reads shards, so the run goes on
                time.sleep(0.2)
            finally:
                scheduler.kill()

        killer = threading.Thread(target=kill_when_asked)
        killer.start()
        begin = time.monotonic()
        result = CliRunner().invoke(main, ["index", *words, "--scheduler", address])
        assert time.monotonic() - begin < 20
        killer.join()
    assert result.exit_code == 1
    message = (
        rf"Error: the executor broke while it did .*: dask's scheduler {address} is gone; .* rerun this to continue\n"
    )
    assert re.fullmatch(message, result.output), result.output


def test_a_scheduler_that_is_stopped_is_an_error_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equitar.indexing.executors._LOOK_AGAIN", 0.1)
    monkeypatch.setattr("equitar.indexing.executors._ASK_AGAIN", 0.2)
    monkeypatch.setattr("equitar.indexing.executors._SILENT", 1)
    words = [f"s={folder}/x-*.tar", "--sidecars", str(tmp_path / "side"), "--quiet"]
    with scheduler_process() as (scheduler, address):

        def stop_when_asked() -> None:
            wait_until(lambda: any((tmp_path / "side").glob("*.recipe")))  # nobody reads shards, so the run goes on
            time.sleep(1)  # it answers that long
            scheduler.send_signal(signal.SIGSTOP)

        stopper = threading.Thread(target=stop_when_asked)
        stopper.start()
        begin = time.monotonic()
        try:
            result = CliRunner().invoke(main, ["index", *words, "--scheduler", address])
        finally:
            scheduler.send_signal(signal.SIGCONT)
        took = time.monotonic() - begin
        stopper.join()
    assert result.exit_code == 1
    message = rf"Error: the executor broke while it did .*: dask's scheduler {address} has not answered for 1 s; .* rerun this to continue\n"
    assert re.fullmatch(message, result.output), result.output
    assert 2 < took < 10


def test_a_scheduler_without_workers_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equitar.indexing.executors._LOOK_AGAIN", 0.1)
    monkeypatch.setattr("equitar.indexing.executors._ALONE", 1)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as alone,  # type: ignore[no-untyped-call]
        Client(alone) as client,  # type: ignore[no-untyped-call]
        pytest.raises(
            WorkerError, match=r"while it did a, b: dask's scheduler tcp://\S+ has had no worker for 1 s; make"
        ),
    ):
        list(outcomes(str, ["a", "b"], jobs=1, executor=client))


def test_a_scheduler_that_is_not_there_is_named(folder: Path) -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "100ms"}):
        result = CliRunner().invoke(main, ["index", f"s={folder}/x-*.tar", "--scheduler", "tcp://127.0.0.1:1"])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "no dask scheduler answers at tcp://127.0.0.1:1" in result.output


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = CliRunner().invoke(main, ["index", f"s={folder}/x-*.tar", "--scheduler", "tcp://localhost:1"])
    assert (result.exit_code, "pip install 'equitar[dask]'" in result.output) == (1, True)
