"""Whoever reads the shards, and whoever dies meanwhile: the sidecars are those of one process that read them all."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import dask
import pytest
from click.testing import CliRunner
from test_indexing import shard

import equitar
from distributed import Client, KilledWorker, LocalCluster
from equitar.cli import main
from equitar.errors import ShardError, StorageError, WorkerError
from equitar.executors import outcomes
from equitar.label_recipe import spool, spooled
from equitar.sources import Source

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


def index(folder: Path, sidecars: Path, **more: Any) -> equitar.indexing.SourceReport:
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
        done = [item for item, found in outcomes(str, range(5000), jobs=jobs, executor=executor) if found == str(item)]
    assert sorted(done) == list(range(5000))
    assert executor.most <= 4 * jobs


def test_what_is_under_way_is_cancelled_when_nobody_wants_it_any_more() -> None:
    with Counting() as executor:
        found = outcomes(str, range(5000), jobs=5, executor=executor)
        next(found)
        cast("Any", found).close()
        assert executor.submitted <= 5 * 4 + 1


class Broken(Executor):
    def submit(self, task: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
        raise BrokenExecutor("it is over")


def test_a_broken_executor_is_an_error_that_says_what_it_did(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match=r"the executor broke while it did .*x-00\.tar, .* and 19 more; make a new one"
    ):
        index(folder, tmp_path, executor=Broken())


def test_a_relative_path_is_sent_as_an_absolute_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, bytes]
) -> None:
    monkeypatch.chdir(folder)
    source = Source("s", "x-*.tar", sidecars=os.path.relpath(tmp_path / "side"))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, os.chdir, (tmp_path,)) as elsewhere:
        equitar.index(source, labels="killer_of_mine:labels", executor=elsewhere, progress=False)
    assert written(tmp_path / "side") == expected


def test_a_recipe_that_is_elsewhere_or_another_is_not_used(tmp_path: Path) -> None:
    from equitar.label_recipe import recipe_of

    recipe = recipe_of("cls", None, None, missing="error", force=False, regroup=False)
    where = spool(recipe, str(tmp_path), None)
    assert spooled(where) == recipe
    Path(where.url).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    spooled.cache_clear()
    with pytest.raises(StorageError, match="is not the recipe that this run wrote"):
        spooled(where)
    Path(where.url).unlink()
    with pytest.raises(StorageError, match="other machines must reach the folder of the sidecars"):
        spooled(where)


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
    class Dying(ThreadPoolExecutor):
        def submit(self, task: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
            raise BrokenExecutor("killed")

    monkeypatch.setattr("equitar.executors.ProcessPoolExecutor", lambda num_jobs, mp_context: Dying(1))
    with pytest.raises(
        WorkerError, match=r"killed again and again, at last while they did .*; is there too little memory"
    ):
        list(outcomes(str, range(1000), jobs=2, executor=None))


# ---- dask -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    path = os.environ.get("PYTHONPATH", "")
    with (
        dask.config.set(
            {
                "distributed.nanny.environ": {"PYTHONPATH": f"{folder}{os.pathsep}{path}"},
                "distributed.admin.log-format": "%(message)s",
            }
        ),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
    ):
        yield cluster


def test_a_cluster_that_loses_a_worker_writes_what_one_process_writes(
    folder: Path, tmp_path: Path, expected: dict[str, bytes], cluster: LocalCluster
) -> None:
    (folder / "times").write_text("1")
    with Client(cluster) as client:  # type: ignore[no-untyped-call]
        index(folder, tmp_path / "side", executor=client.get_executor())
    assert (folder / "times").read_text() == "0"
    assert written(tmp_path / "side") == expected


class Killing(ThreadPoolExecutor):
    """Says of one shard what dask says when workers die of it."""

    def submit(self, task: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
        if not str(words[1]).endswith("x-05.tar"):
            return super().submit(task, *words, **named)
        killed: Future[Any] = Future()
        killed.set_exception(KilledWorker("task", cast("Any", None), 3))
        return killed


def test_a_shard_that_kills_every_worker_is_named(folder: Path, tmp_path: Path) -> None:
    words = r"1 error in 24 shards: .*x-05\.tar: the process that read it was killed"
    with Killing(2) as executor, pytest.raises(ShardError, match=words):
        index(folder, tmp_path / "side", executor=executor)


def test_the_command_line_reads_on_a_cluster(
    folder: Path, tmp_path: Path, expected: dict[str, bytes], cluster: LocalCluster
) -> None:
    words = [f"s={folder}/x-*.tar", "--root", str(folder), "--sidecars", str(tmp_path / "side"), "--quiet"]
    labels = ["--labels", "killer_of_mine:labels"]
    result = CliRunner().invoke(main, ["index", *words, *labels, "--scheduler", cluster.scheduler_address])
    assert result.exit_code == 0, result.output
    assert written(tmp_path / "side") == expected


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = CliRunner().invoke(main, ["index", f"s={folder}/x-*.tar", "--scheduler", "tcp://localhost:1"])
    assert (result.exit_code, "pip install 'equitar[dask]'" in result.output) == (1, True)
