"""The workers of dask as an executor: whatever becomes of a worker or of the scheduler, each future ends.

Dask's own `Client.get_executor()` does not promise that. Where a result is lost with its worker while it is fetched, and making
it again fails, its future stays open for ever; where it is being made again at the wrong moment, it ends in a `TypeError`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import distributed

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
