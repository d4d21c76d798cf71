"""Who does the tasks? Threads and processes here, or any executor of the caller's: never more than so many are under way.

What is lost with a worker is done again. When processes of our own break, all that were at work break together: their items are
given to a new pool one by one, so that the one which kills its process is found, named and left out. An executor of the
caller's is asked again a few times for what it lost; one that is broken takes nothing more, and a new one is not ours to make.

The workers of dask as an executor: whatever becomes of a worker or of the scheduler, each future ends.

Dask's own `Client.get_executor()` does not promise that. Where a result is lost with its worker while it is fetched, and making
it again fails, its future stays open for ever; where it is being made again at the wrong moment, it ends in a `TypeError`.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from equitar.errors import WorkerError
from equitar.text import listed

if TYPE_CHECKING:
    import distributed
    from distributed import Client

_LOOK_AGAIN = 1.0  # seconds after which a future that is open asks whether anybody is still there
_ASK_AGAIN = 10.0  # seconds after which the scheduler is asked for a sign of life
_SILENT = 120.0  # seconds that it may take to answer; one that is busy with many tasks takes a few
_ALONE = 600.0  # seconds that a scheduler may have no worker; queues of clusters, and nannies that start one anew, take a while
Result = TypeVar("Result")


class LostError(RuntimeError):
    """A worker was lost, with what it did or had done."""


class DaskExecutor(Executor):
    """Hands tasks to the workers of a dask scheduler, and results back as they come: none stays on a worker."""

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
            # Not pure: dask gives equal calls one answer, which may be the old failure.
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
            found = asked.exception()
            if found is None:
                return asked.result()
            error = await future.exception() if future.status == "error" else None  # type: ignore[no-untyped-call]
            if error is None or isinstance(error, KilledWorker):  # what was found is not of the task, but of fetching
                raise LostError(str(found) or repr(found)) from found
            raise error
        finally:
            asked.cancel()
            future.release()  # type: ignore[no-untyped-call]  # at once, not when the trace of an error is forgotten

    def _look(self) -> None:
        """Raise if nobody will answer.

        Dask itself waits for ever for workers, for what is asked while a client closes, and for a scheduler whose process was
        stopped, as its machine keeps the connection open.
        """
        if self._client.status in ("closing", "closed"):
            raise BrokenExecutor(self._gone)
        if self._is_silent:
            raise BrokenExecutor(f"{self._where} has not answered for {_SILENT:.0f} s")
        now = time.monotonic()
        if now - self._asked_at > _ASK_AGAIN and (self._asked is None or self._asked.done()):
            self._asked, self._asked_at = asyncio.ensure_future(self._ask()), now
        info = self._client.scheduler_info()  # as of some seconds ago: within the client's loop, nothing is sent
        if info.get("n_workers") or info.get("workers"):  # older releases of dask do not count
            self._had_workers = now
        elif now - self._had_workers > _ALONE:
            raise BrokenExecutor(f"{self._where} has had no worker for {_ALONE:.0f} s")

    async def _ask(self) -> None:
        """Ask the scheduler who it is, which it can say at any time."""
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
    """Do a task on a worker. What would end a process would end the client's loop when it came there."""
    try:
        return task(*words, **named)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"it would have ended its process: {error!r}") from error


def as_executor(executor: Executor | distributed.Client) -> Executor:
    """Return an executor whose futures end, for one of Python or a client of dask.

    Raises:
        TypeError: If it is neither, or what `Client.get_executor` gives.
    """
    dask = sys.modules.get("distributed")  # who has none of its clients need not have it
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
_ITEMS_A_JOB = 8  # fewer are done sooner than a process starts
_AT_ONCE = 256  # items that an executor of the caller's is taken to do at once
_BREAKS = 16  # pools of our own that may break, each with all that were at work


_MEND = "mend the shard, or give it more memory"
Item = TypeVar("Item")


def outcomes(
    task: Callable[[Item], Result], items: Sequence[Item], *, jobs: int | None, executor: Executor | Client | None
) -> Iterator[tuple[Item, Result | BaseException]]:
    """Yield what comes of a task for each item, or its error, as they are done.

    Args:
        task: Called with an item, in some process.
        items: What is to be done.
        jobs: Processes; 1 is a thread of this one. With an executor, how many items it does at once.
        executor: Who does it, in place of processes here: one of Python, or a client of dask. It is not shut down.

    Raises:
        WorkerError: If there is no getting on: processes break again and again, or the executor is broken.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"`jobs` must be >= 1; got {jobs!r}")
    if executor is not None:
        yield from _by_executor(as_executor(executor), task, iter(items), _IN_FLIGHT * (jobs or _AT_ONCE))
        return
    num_jobs = min(jobs or num_cores(), len(items) if jobs else math.ceil(len(items) / _ITEMS_A_JOB))
    coming, breaks = iter(items), 0
    while suspects := (yield from _in_pool(task, coming, num_jobs)):
        one_by_one = iter(suspects)
        while killer := (yield from _in_pool(task, one_by_one, -1)):
            yield killer[0], WorkerError(f"the process that read it was killed while it read nothing else; {_MEND}")
        breaks += 1
        if breaks > _BREAKS:
            raise WorkerError(
                f"processes were killed again and again, at last while they did {listed(suspects, 5)}; is there too little "
                "memory? Give fewer `jobs`"
            )


def _by_executor(
    executor: Executor, task: Callable[[Item], Result], coming: Iterator[Item], limit: int
) -> Iterator[tuple[Item, Result | BaseException]]:
    """Do items by an executor of the caller's; what it loses twice, it gets a last time one by one."""
    lost: list[tuple[Item, BaseException]] = []
    for most in (limit, limit, 1):
        lost = yield from _through(executor, task, coming, limit=most)
        items = [item for item, _ in lost]
        for _, error in lost:
            if isinstance(error, BrokenExecutor):
                raise WorkerError(
                    f"the executor broke while it did {listed(items, 5)}: {error}; make a new one and run this again, which goes on "
                    "from what is done"
                ) from error
        coming = iter(items)
    for item, error in lost:
        why = " ".join(str(error).split()) or repr(error)
        yield (
            item,
            WorkerError(f"who read it was lost again and again, at last while it read nothing else: {why}; {_MEND}"),
        )


def _in_pool(
    task: Callable[[Item], Result], coming: Iterator[Item], num_jobs: int
) -> Generator[tuple[Item, Result | BaseException], None, list[Item]]:
    """Do items in a pool of our own, until it breaks; -1 is one process, which does one item at a time.

    Returns:
        The items that were under way when it broke.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads (torch's, say) can hang
    pool: Executor = (
        ThreadPoolExecutor(1) if num_jobs in (0, 1) else ProcessPoolExecutor(abs(num_jobs), mp_context=spawn)
    )
    with pool:
        lost = yield from _through(pool, task, coming, limit=1 if num_jobs < 0 else num_jobs * _IN_FLIGHT)
    return [item for item, _ in lost]


def _through(
    pool: Executor, task: Callable[[Item], Result], coming: Iterator[Item], *, limit: int
) -> Generator[tuple[Item, Result | BaseException], None, list[tuple[Item, BaseException]]]:
    """Yield what comes of items, of which never more than `limit` are under way: 100,000 shards take no memory.

    Returns:
        The items whose worker was lost, with the error that said so. A pool that broke got no more after that.
    """
    under_way: dict[Future[Result], Item] = {}
    done: SimpleQueue[Future[Result]] = SimpleQueue()
    lost: list[tuple[Item, BaseException]] = []
    is_broken = False
    try:
        while True:
            while not is_broken and len(under_way) < limit and (more := list(islice(coming, 1))):
                future = _submitted(pool, task, more[0])
                under_way[future] = more[0]
                future.add_done_callback(done.put)
            if not under_way:
                return lost
            future = done.get()
            item = under_way.pop(future)
            error = CancelledError() if future.cancelled() else future.exception()
            if isinstance(error, BrokenExecutor | CancelledError | LostError):
                is_broken |= isinstance(error, BrokenExecutor)
                lost.append((item, error))
            else:
                yield item, future.result() if error is None else error
    finally:
        for future in under_way:
            future.cancel()


def _submitted(pool: Executor, task: Callable[[Item], Result], item: Item) -> Future[Result]:
    """Return what comes of an item; a pool that is broken already says so here, too."""
    try:
        return pool.submit(task, item)
    except BrokenExecutor as error:
        broken: Future[Result] = Future()
        broken.set_exception(error)
        return broken


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
