"""Does the client of an index stay small, however many shards there are? Time, memory, and what is under way at most.

Shards are real and tiny, one sample each, so that what is measured is what a shard costs apart from its bytes. Each line is a
process of its own, which hands the shards to an executor that counts. Memory is the growth of the client's peak over what it
needs for importing. What stays is the summary of each shard, a kilobyte or so; what is under way must not grow.

    processes   a pool of two processes
    dask        a LocalCluster of two worker processes; its scheduler's tasks are counted too

    python benchmarks/bench_many.py [--shards 2000 20000] [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import io
import multiprocessing
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equitar
from equitar.indexing.executors import DaskExecutor
from measure import Book, cases_apart, in_own_process, parser_of, peak, print_figures

JOBS = 2


class Counted(Executor):
    """Hands tasks on, and notes how many are under way at most."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._lock = executor, threading.Lock()
        self.now = self.most = 0

    def submit(self, task: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
        """Hand a task on."""
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        future = self._executor.submit(task, *words, **named)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any]) -> None:
        with self._lock:
            self.now -= 1


def write_shards(folder: Path, num_shards: int) -> None:
    """Write shards of one sample each."""
    folder.mkdir()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in (("0.jpg", b"a small image"), ("0.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    for number in range(num_shards):
        (folder / f"x-{number:06d}.tar").write_bytes(raw.getvalue())


@contextmanager
def executor_of(who: str) -> Iterator[tuple[Executor, Callable[[], int]]]:
    """Give an executor, and what counts the tasks that its scheduler knows."""
    if who == "processes":
        with ProcessPoolExecutor(JOBS, multiprocessing.get_context("spawn")) as pool:
            yield pool, lambda: 0
        return
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=JOBS, threads_per_worker=1, dashboard_address=":0") as cluster,  # type: ignore[no-untyped-call]
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        yield DaskExecutor(client), lambda: len(cluster.scheduler.tasks)


def measured(who: str, folder: str, num_shards: int, at_once: int) -> dict[str, float]:
    """Index a folder and return what it took."""
    tasks = 0
    with executor_of(who) as (executor, count), tempfile.TemporaryDirectory() as sidecars:
        executor.submit(len, "").result()
        over = threading.Event()

        def watch() -> None:
            nonlocal tasks
            while not over.wait(0.02):
                tasks = max(tasks, count())

        watcher = threading.Thread(target=watch)
        watcher.start()
        before, begin, counted = peak(), time.perf_counter(), Counted(executor)
        source = equitar.Source("s", f"{folder}/*.tar", sidecars=sidecars)
        report = equitar.index(source, labels="cls", jobs=at_once, executor=counted, progress=False)
        seconds, after = time.perf_counter() - begin, peak()
        over.set()
        watcher.join()
    assert report.sources[0].written == num_shards
    return {
        "seconds": seconds,
        "shards/s": num_shards / seconds,
        "client MB": after - before,
        "under way": counted.most,
        "scheduler's tasks": tasks,
    }


def main() -> None:
    """Measure as the command line says, print a table, and write `bench_many.csv`."""
    parser = parser_of("Measure the client of an index of many shards.")
    parser.add_argument("--shards", type=int, nargs="+", default=[2000, 20000], help="how many shards, each in turn")
    parser.add_argument("--at-once", type=int, default=64, help="shards that the executor is told to read at once")
    chosen, book, table = cases_apart(parser, measured), Book(), {}
    shards, whos = ([20, 40], ["processes"]) if chosen.tiny else (chosen.shards, ["processes", "dask"])
    with tempfile.TemporaryDirectory() as scratch:
        for num_shards in shards:
            folder = Path(scratch) / str(num_shards)
            write_shards(folder, num_shards)
            for who in whos:
                figures = in_own_process(__file__, who, str(folder), num_shards, chosen.at_once)
                table[f"{num_shards:,} shards, {who}"] = figures
                book.note_all(f"{num_shards:,} shards", who, figures)
    print_figures("The client of an index", table)
    book.write(chosen.out / "bench_many.csv")


if __name__ == "__main__":
    main()
