"""Where tasks run: in this process, in processes of our own, or in any executor, with a bounded number in flight.

What is lost with a worker is done again. An item whose process was killed is tried once more while nothing else runs; if it
kills that process too, it is named and left out. An executor of the caller's is asked again a few times; one that is broken
gets no more tasks, and a new one is not ours to make.

`DaskExecutor` makes an executor of the workers of dask: whatever happens to a worker or to the scheduler, each future ends.
Dask's own `Client.get_executor()` does not promise that. Where a result is lost with its worker while it is fetched, and the
task fails when it is repeated, its future stays open for ever; at the wrong moment of a repetition, it ends in a `TypeError`.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from equitar.errors import WorkerError
from equitar.text import listed

if TYPE_CHECKING:
    import distributed
    from distributed import Client

_LOOK_AGAIN = 1.0  # seconds after which an open future checks whether the scheduler is alive
_ASK_AGAIN = 10.0  # seconds between requests to the scheduler for a sign of life
_SILENT = 120.0  # seconds that its answer may take; a few, if it is busy with many tasks
_ALONE = (
    600.0  # seconds that a scheduler may have no worker: queues of clusters, and nannies that restart one, take a while
)
Result = TypeVar("Result")


class LostError(RuntimeError):
    """A worker was lost, with its task or its result."""


class DaskExecutor(Executor):
    """Runs tasks on the workers of a dask scheduler, and returns results as they come: none stays on a worker."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._where = (
            f"dask's scheduler {client.scheduler.address}" if client.scheduler else "the scheduler of a closed client"
        )
        self._gone = f"{self._where} is gone"
        self._had_workers = self._asked_at = time.monotonic()
        self._asked: asyncio.Future[None] | None = None
        self._is_silent = False

    def submit(self, task: Callable[..., Result], /, *words: Any, **named: Any) -> Future[Result]:
        """Hand a task out.

        Its future ends in what the task returns or raises, in a `LostError`, or in a `BrokenExecutor` when the scheduler is gone.
        """
        from distributed.client import ClosedClientError  # noqa: PLC0415  (an extra, and slow to import)

        try:
            # Not pure: dask gives equal calls the same answer, which may be an old failure.
            future = self._client.submit(_attempt, task, *words, pure=False, **named)
        except ClosedClientError as error:
            raise BrokenExecutor(self._gone) from error
        return asyncio.run_coroutine_threadsafe(self._outcome(future), cast("Any", self._client.loop).asyncio_loop)

    async def _outcome(self, future: distributed.Future[Result]) -> Result:
        """Return what a task returned; runs in the client's thread."""
        from distributed import KilledWorker  # noqa: PLC0415  (as above)

        asked = asyncio.ensure_future(cast("Awaitable[Result]", future.result()))
        try:
            while not asked.done():
                self._look()
                await asyncio.wait([asked], timeout=_LOOK_AGAIN)
            failure = asked.exception()
            if failure is None:
                return asked.result()
            error = await future.exception() if future.status == "error" else None  # type: ignore[no-untyped-call]
            if error is None or isinstance(error, KilledWorker):  # the failure is not the task's, but of fetching
                raise LostError(str(failure) or repr(failure)) from failure
            raise error
        finally:
            asked.cancel()
            future.release()  # type: ignore[no-untyped-call]  # at once, not when the trace of an error is freed

    def _look(self) -> None:
        """Raise if no answer will come.

        Dask itself waits for ever for workers, for requests made while a client closes, and for a scheduler whose process was
        stopped, as its machine keeps the connection open.
        """
        if self._client.status in ("closing", "closed"):
            raise BrokenExecutor(self._gone)
        if self._is_silent:
            raise BrokenExecutor(f"{self._where} has not answered for {_SILENT:.0f} s")
        now = time.monotonic()
        if now - self._asked_at > _ASK_AGAIN and (self._asked is None or self._asked.done()):
            self._asked, self._asked_at = asyncio.ensure_future(self._ask()), now
        info = self._client.scheduler_info()  # some seconds old: within the client's loop, nothing is sent
        if info.get("n_workers") or info.get("workers"):  # older releases of dask do not count
            self._had_workers = now
        elif now - self._had_workers > _ALONE:
            raise BrokenExecutor(f"{self._where} has had no worker for {_ALONE:.0f} s")

    async def _ask(self) -> None:
        """Ask the scheduler for its identity, which it can answer at any time."""
        scheduler = self._client.scheduler
        if scheduler is None:  # the client is connecting to it
            return
        try:
            await asyncio.wait_for(cast("Any", scheduler).identity(), _SILENT)
        except asyncio.TimeoutError:
            self._is_silent = True
        except OSError:  # there is no connection: the client makes a new one, or closes
            return


def _attempt(task: Callable[..., Result], *words: Any, **named: Any) -> Result:
    """Do a task on a worker. An error that ends a process would end the client's loop if it arrived there."""
    try:
        return task(*words, **named)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"it would have ended its process: {error!r}") from error


def as_executor(executor: Executor | distributed.Client) -> Executor:
    """Return an executor whose futures end, for one of Python or a client of dask.

    Raises:
        TypeError: If it is neither, or the result of `Client.get_executor`.
    """
    dask = sys.modules.get("distributed")  # without a client of dask, it need not be installed
    if dask is not None and isinstance(executor, dask.Client):
        if executor.asynchronous:  # waiting for it here would stop the loop that it runs in
            raise TypeError(
                "`executor` must be a client of dask outside of its event loop; call this from another thread"
            )
        return DaskExecutor(executor)
    if dask is not None and isinstance(executor, dask.cfexecutor.ClientExecutor):
        raise TypeError(
            "`executor` must be dask's client itself, not its get_executor(), whose futures may stay open for ever when a worker "
            "is lost; give `executor=client`"
        )
    if not isinstance(executor, Executor):
        raise TypeError(
            f"`executor` must be an executor of concurrent.futures or a client of dask; got {type(executor).__name__}"
        )
    return executor


_IN_FLIGHT = 4  # items waiting for each process: enough to keep it busy, few enough to hold
_ITEMS_PER_PROCESS = 8  # fewer are done sooner than a process starts
_EXECUTOR_ITEMS = 256  # items that an executor of the caller's is assumed to do at once
_LOST_IN_A_ROW = 16  # processes that may be killed without a result in between
_PATIENCE = 5.0  # seconds that a process may take to end

_FIX = "fix the shard, or give it more memory"
Item = TypeVar("Item")


class _Worker:
    """A process that does one task at a time. Unlike those of `multiprocessing`, it never imports the caller's ``__main__``.

    So a script needs no ``if __name__ == "__main__"``, and may come from a pipe. It is a session of its own: Ctrl-C does not
    reach it, only the caller, who ends it.
    """

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        path = [str(folder) for folder in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from equitar.indexing.executors import serve; serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - Python itself, with nothing from outside
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def run(self, task: Callable[..., Result], words: tuple[Any, ...]) -> Result:
        """Return what a task returns, or raise what it raises; `LostError` if the process ends meanwhile."""
        try:
            self._connection.send((task, words))
            result, error, trace = self._connection.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise LostError(f"its process ended with exit code {self._process.returncode}") from error
        if error is None:
            return cast("Result", result)
        raise error from _RemoteTraceError(trace)

    def end(self) -> None:
        """End the process, which has no task any more."""
        self._connection.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """Interrupt the task; whoever waits for it gets a `LostError`."""
        self._process.terminate()


class _RemoteTraceError(Exception):
    """The trace of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def serve(descriptor: int) -> None:
    """Do the tasks that come through a connection until it is closed; the main function of a `_Worker`."""

    def interrupt(*_: object) -> None:  # so that half-written files are removed
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    with suppress(EOFError, ConnectionError, KeyboardInterrupt), Connection(descriptor) as connection:
        signal.signal(signal.SIGTERM, interrupt)
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))


def _answer(raw: bytes) -> bytes:
    """Return the pickled result or error of a pickled task."""
    try:
        task, words = pickle.loads(raw)  # noqa: S301 - from the process that started this one
        return pickle.dumps((task(*words), None, ""))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a task may raise anything
        trace = traceback.format_exc()
        try:
            answer = pickle.dumps((None, error, trace))
            pickle.loads(answer)  # noqa: S301 - some errors can be pickled but not unpickled
        except Exception:  # noqa: BLE001 - as above
            return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), trace))
        return answer


class ProcessPool(Executor):
    """Processes that are started when they are needed; see `_Worker`."""

    def __init__(self, num_workers: int) -> None:
        self._threads = ThreadPoolExecutor(num_workers)  # each waits for one process
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._lost_in_a_row = 0
        self._is_closed = False

    def submit(self, task: Callable[..., Result], /, *words: Any) -> Future[Result]:  # type: ignore[override]
        """Hand a task out; its future ends in its result or error, in a `LostError`, or in a `BrokenExecutor`."""
        return self._threads.submit(self._run, task, words)

    def _run(self, task: Callable[..., Result], words: tuple[Any, ...]) -> Result:
        with self._lock:
            if self._is_closed:
                raise CancelledError
            if self._lost_in_a_row >= _LOST_IN_A_ROW:
                raise BrokenExecutor(f"{self._lost_in_a_row} processes in a row ended without a result")
            worker = self._idle.pop() if self._idle else _Worker()
            self._workers.add(worker)
        try:
            result = worker.run(task, words)
        except LostError:
            with self._lock:
                self._workers.discard(worker)
                self._lost_in_a_row += 1
            raise
        except BaseException:
            self._keep(worker)
            raise
        self._keep(worker)
        return result

    def _keep(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)
            self._lost_in_a_row = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes: when they have done what was handed out, or at once after an error."""
        with self._lock:
            self._is_closed = True
            if kind is not None:
                for worker in self._workers:
                    worker.terminate()
        self._threads.shutdown(cancel_futures=kind is not None)
        for worker in self._workers:
            worker.end()


def outcomes(
    task: Callable[[Item], Result], items: Sequence[Item], *, jobs: int | None, executor: Executor | Client | None
) -> Generator[tuple[Item, Result | BaseException], None, None]:
    """Yield each item with the result of a task, or its error, as they are done.

    Args:
        task: Called with an item, in some process; it must be importable.
        items: What is to be done.
        jobs: Processes; 1 is this one. With an executor, the number of items it does at once.
        executor: Does the tasks instead of processes here: an executor of Python, or a client of dask. It is not shut down.

    Raises:
        WorkerError: If processes are killed again and again, or the executor is broken.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"`jobs` must be >= 1; got {jobs!r}")
    if executor is not None:
        yield from _by_executor(as_executor(executor), task, iter(items), _IN_FLIGHT * (jobs or _EXECUTOR_ITEMS))
        return
    num_jobs = min(jobs or num_cores(), len(items) if jobs else math.ceil(len(items) / _ITEMS_PER_PROCESS))
    if num_jobs <= 1:
        for item in items:
            yield item, _attempted(task, item)
        return
    waiting, lost = iter(items), []
    for num_workers, limit in ((num_jobs, _IN_FLIGHT * num_jobs), (1, 1)):  # those lost once are done again one by one
        with ProcessPool(num_workers) as pool:
            lost = yield from _through(pool, task, waiting, limit=limit)
        for _, error in lost:
            if isinstance(error, BrokenExecutor):
                names = listed([str(item) for item, _ in lost], 5)
                raise WorkerError(
                    f"{error}, the last while they read {names}; is there too little memory? Give fewer `jobs`"
                )
        waiting = iter([item for item, _ in lost])
    for item, error in lost:
        yield item, WorkerError(f"the process that read it was killed while nothing else was read ({error}); {_FIX}")


def _attempted(task: Callable[[Item], Result], item: Item) -> Result | BaseException:
    try:
        return task(item)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a task may raise anything
        return error


def _by_executor(
    executor: Executor, task: Callable[[Item], Result], waiting: Iterator[Item], limit: int
) -> Iterator[tuple[Item, Result | BaseException]]:
    """Do items by an executor of the caller's; what it loses twice is tried a last time one by one."""
    lost: list[tuple[Item, BaseException]] = []
    for at_once in (limit, limit, 1):
        lost = yield from _through(executor, task, waiting, limit=at_once)
        items = [item for item, _ in lost]
        for _, error in lost:
            if isinstance(error, BrokenExecutor):
                raise WorkerError(
                    f"the executor broke while it did {listed(items, 5)}: {error}; make a new one and rerun "
                    "this to continue"
                ) from error
        waiting = iter(items)
    for item, error in lost:
        reason = " ".join(str(error).split()) or repr(error)
        yield (
            item,
            WorkerError(f"its worker was lost again and again, at last while nothing else was read: {reason}; {_FIX}"),
        )


def _through(
    pool: Executor, task: Callable[[Item], Result], waiting: Iterator[Item], *, limit: int
) -> Generator[tuple[Item, Result | BaseException], None, list[tuple[Item, BaseException]]]:
    """Yield items with their results, never more than `limit` in flight: 100,000 shards take no memory.

    Returns:
        The items whose worker was lost, with the error. A pool that broke gets no more items.
    """
    in_flight: dict[Future[Result], Item] = {}
    done: SimpleQueue[Future[Result]] = SimpleQueue()
    lost: list[tuple[Item, BaseException]] = []
    is_broken = False
    try:
        while True:
            while not is_broken and len(in_flight) < limit and (more := list(islice(waiting, 1))):
                future = _submitted(pool, task, more[0])
                in_flight[future] = more[0]
                future.add_done_callback(done.put)
            if not in_flight:
                return lost
            future = done.get()
            item = in_flight.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if isinstance(error, BrokenExecutor | CancelledError | LostError):
                is_broken |= isinstance(error, BrokenExecutor)
                lost.append((item, error))
            else:
                yield item, future.result() if error is None else error
    finally:
        for future in in_flight:
            future.cancel()


def _submitted(pool: Executor, task: Callable[[Item], Result], item: Item) -> Future[Result]:
    """Return the future of an item; that of a pool which is broken already ends in its error."""
    try:
        return pool.submit(task, item)
    except BrokenExecutor as error:
        broken: Future[Result] = Future()
        broken.set_exception(error)
        return broken


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
