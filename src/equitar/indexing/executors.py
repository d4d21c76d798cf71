"""Who does the tasks? Threads and processes here, or any executor of the caller's: never more than so many are under way.

What is lost with a worker is done again. When processes of our own break, all that were at work break together: their items are
given to a new pool one by one, so that the one which kills its process is found, named and left out. An executor of the
caller's is asked again a few times for what it lost; one that is broken takes nothing more, and a new one is not ours to make.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from equitar.dask_executor import LostError, as_executor
from equitar.errors import WorkerError

if TYPE_CHECKING:
    from distributed import Client

_IN_FLIGHT = 4  # items waiting for each process: enough to keep it busy, few enough to hold
_ITEMS_A_JOB = 8  # fewer are done sooner than a process starts
_AT_ONCE = 256  # items that an executor of the caller's is taken to do at once
_BREAKS = 16  # pools of our own that may break, each with all that were at work
_LISTED = 5
_MEND = "mend the shard, or give it more memory"

Item = TypeVar("Item")
Result = TypeVar("Result")


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
                f"processes were killed again and again, at last while they did {_listed(suspects)}; is there too little "
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
                    f"the executor broke while it did {_listed(items)}: {error}; make a new one and run this again, which goes on "
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


def _listed(items: Sequence[object]) -> str:
    more = f" and {len(items) - _LISTED} more" * (len(items) > _LISTED)
    return ", ".join(map(str, items[:_LISTED])) + more


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
