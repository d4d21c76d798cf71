"""Who drives the workers? A torch DataLoader that knows epochs, resumes by step, and reports what came."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, IterableDataset

from equitar.checks import check_integer
from equitar.errors import PlanError, SidecarError
from equitar.loading.batches import Batches
from equitar.loading.position import Position
from equitar.loading.record import LoaderCounters, LoaderReport, Record
from equitar.loading.shared_slots import Packed, SharedBuffers
from equitar.loading.state import State, check_state, differences, state_of, walk_on
from equitar.planning.plan import Plan
from equitar.ranks import compare_over_ranks, detect_workers, let_collectives_end
from equitar.rng import Purpose, fold

logger = logging.getLogger("equitar")
Sent: TypeAlias = Iterator[tuple[Record, Any]]
_BROKEN_OFF = 3  # passes in a row at one step, before it looks like a habit


class _Recorded(IterableDataset[Any]):
    """Batches with their records, as workers send them to a Loader."""

    def __init__(self, batches: Batches, ring: SharedBuffers | None) -> None:
        self.batches, self.ring = batches, ring

    def __iter__(self) -> Sent:
        if not self.batches.clock.is_driven:
            raise PlanError(
                "another loader was built around the data of an equitar.Loader, and would share out again what each rank has "
                "a share of; use the Loader as it is (with accelerate: do not `prepare` it)"
            )
        recorded = self.batches.recorded()
        worker, num_workers = detect_workers()
        return self.ring.sent(worker, recorded) if self.ring is not None and num_workers else recorded

    def __len__(self) -> int:
        return len(self.batches)


def _as_it_is(batch: Any) -> Any:
    return batch


class Loader(DataLoader[Any]):
    """Loads batches through workers; the arguments are torch's own.

    The epoch advances by itself after each complete pass; a pass that is broken off starts again where it began, be that the
    step at which it was resumed.

    Attributes:
        last: The record of the latest batch: epoch, step, source and keys.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        slots: int | None = None,
        views: bool = False,
    ) -> None:
        """Make a loader of its own clock: two loaders over the same batches do not disturb each other.

        Args:
            batches: From `debiased`, `mixed` or `exact`.
            num_workers: As in torch.
            pin_memory: As in torch.
            timeout: As in torch, in seconds.
            worker_init_fn: As in torch.
            multiprocessing_context: As in torch: "fork", "spawn" or "forkserver".
            prefetch_factor: As in torch, batches per worker.
            persistent_workers: As in torch.
            pin_memory_device: As in torch.
            in_order: Must be true.
            slots: Slots of shared memory through which each worker sends batches; None is as many as may be under way, 0 sends
                all through the pipe. With `pin_memory`, tensors are copied from their slot right into pinned memory.
            views: Whether bytes, arrays and tensors of a batch are views of its slot, which are written over when the next
                batch but one is asked for; otherwise they are copies. Pinned tensors are always copies.
        """
        if not in_order:
            raise ValueError("`in_order` must be True: a step out of turn would be another step on the other ranks")
        if not isinstance(batches, Batches):
            raise TypeError(f"`batches` must come from debiased, mixed or exact; got {type(batches).__name__}")
        num_workers = check_integer("num_workers", num_workers, 0)
        if slots is not None:
            slots = check_integer("slots", slots, 0)
        self._batches = batches.copied()
        self._views = views
        self._is_pinning = pin_memory and torch.cuda.is_available()  # without a device torch pins nothing, and says so
        self._slots = (prefetch_factor or 2) + 2 if slots is None else slots  # of batches under way, and of two in hand
        self._sends = _Recorded(self._batches, None)
        super().__init__(
            self._sends,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=torch.Generator(),  # torch draws a seed for its workers: not from the global generator
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        self.last: Record | None = None
        # Where the next iterator begins. The clock follows only then: workers of this one may not have read it yet.
        self._position = Position(0, 0, 0, 0)
        self._under_way: object | None = None  # stands for the latest iterator until it is complete
        self._next_step = 0
        self._is_compared = False
        self._broken_at: list[int] = []
        self._has_warned = False
        self._counters = LoaderCounters()

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0; where `load_state_dict` was just called, in the middle of it."""
        if epoch < 0:
            raise ValueError(f"`epoch` must be >= 0; got {epoch}")
        # An iterator that gave nothing yet is the one that is meant: Lightning makes it before it tells the epoch.
        is_there = self._position.step > 0 if self._under_way is None else self._next_step == self._position.step
        if not (is_there and self._position.epoch == epoch):
            self._position, self._under_way = Position(epoch, 0, 0, 0), None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a class of its own
        """Return an iterator over the epoch of the clock."""
        position = self._position
        plan = self._batches.plan_at(position, self.num_workers)
        if not self._is_compared:
            self._batches.order.check_rank()
        self._note_broken_off()
        self._batches.clock.position = position
        self._batches.clock.is_driven = True  # before workers start
        # What user code draws in workers differs by rank and epoch, and is the same in every run.
        names = (self._batches.order.seed, self._batches.prepared().rank, position.epoch, position.step)
        self.generator.manual_seed(fold(Purpose.WORKER_SEED, *names) >> 1)
        if self.num_workers and self._iterator is None:
            let_collectives_end()
            # New workers get slots of their own: those of an iterator that is still held write into theirs.
            self._sends.ring = SharedBuffers(self.num_workers, self._slots) if self._slots else None
        batches = super().__iter__()
        try:  # ours comes after workers were forked, for the same reason
            self._compare(plan, position)
        except PlanError:
            self._restart_workers()
            self._batches.clock.is_driven = False
            raise
        self._next_step = position.step
        self._under_way = this = object()
        return self._pass(batches, self._sends.ring, this, position, plan.num_steps)

    def _compare(self, plan: Plan, position: Position) -> None:
        """Compare plan and place over ranks, once."""
        if self._is_compared:
            return
        world_size = self._batches.prepared().world_size
        begin, mend = f"{position}", "call `set_epoch` and `load_state_dict` on all ranks alike"
        compare_over_ranks(begin, world_size, what="place to begin at", mend=mend)
        mend = "compare their sources, arguments, number of workers and sidecars"
        compare_over_ranks(plan.digest, world_size, what="plan", mend=mend)
        self._is_compared = True

    def _pass(
        self, batches: Sent, ring: SharedBuffers | None, this: object, position: Position, num_steps: int
    ) -> Iterator[Any]:
        due = position.step
        in_hand = deque[int]()  # slots of views
        for record, batch in self._driven(batches, this):
            if (record.epoch, record.step) != (position.epoch, due):
                raise PlanError(
                    f"step {record.step} of epoch {record.epoch} came when step {due} of epoch {position.epoch} was due; keep "
                    "the order of workers, and one iterator at a time"
                )
            due += 1
            self.last = record
            self._counters.note(record)
            if self._under_way is this:  # else a later iterator was made, or another position set
                self._next_step = due
                if due == num_steps:  # with the last batch, not after it: who takes just as many never asks for more
                    self._position, self._under_way = Position(position.epoch + 1, 0, 0, 0), None
                    self._broken_at.clear()
            yield self._unpacked(batch, ring, in_hand)
            if ring is not None and len(in_hand) > 1:  # the next batch but one was asked for
                ring.free(in_hand.popleft())
        if due < num_steps:
            raise PlanError(f"workers ended at step {due} but the epoch has {num_steps}")

    def _unpacked(self, batch: Any, ring: SharedBuffers | None, in_hand: deque[int]) -> Any:
        """Return a batch, from its slot if it came in one."""
        if ring is None:
            return batch
        if not isinstance(batch, Packed):
            self._counters.piped += 1
            return batch
        if self._views:
            in_hand.append(batch.slot)
        return ring.received(batch, views=self._views, pinned=self._is_pinning)

    def _driven(self, batches: Sent, this: object) -> Sent:
        """Pass batches on, and note when no Loader is behind their workers any more."""
        try:
            yield from batches
        finally:
            if self._under_way in (this, None):
                self._batches.clock.is_driven = False

    def _note_broken_off(self) -> None:
        """Warn once where passes end early as a habit: the rest of the data would never be seen."""
        if self._under_way is None:
            return
        self._broken_at = [*self._broken_at, self._next_step][-_BROKEN_OFF:]
        if not self._has_warned and self._broken_at == [self._next_step] * _BROKEN_OFF:
            self._has_warned = True
            warnings.warn(
                f"{_BROKEN_OFF} passes in a row were broken off at step {self._next_step} of {len(self)}, and each begins "
                "the same epoch again; give the builder `steps=`, or call `set_epoch` before each pass",
                stacklevel=3,
            )

    def counters(self) -> LoaderReport:
        """Return what came since the loader was made, on this rank."""
        return self._counters.counts()

    def state_dict(self) -> State:
        """Return where this run stands: after the latest batch that was handed out."""
        plan = self._batches.plan_at(self._position, self.num_workers)
        step = self._position.step if self._under_way is None else self._next_step
        return state_of(self._batches.order, plan, self._position._replace(step=step))

    def load_state_dict(self, state: State, *, restart: bool = False) -> None:
        """Begin the next iterator where a run stood, with any number of ranks and workers of the same global batch.

        Within an epoch sources are as the state knew them, by the summaries it names: shards that joined later wait for the next
        start of a run. At the end of an epoch, or with `restart`, the run may go on with other sources, weights, batch size or repeats:
        sources that were there before keep their place in their passes, and what has changed is logged.

        Args:
            state: From `state_dict`.
            restart: Whether a state within an epoch may be given up for the start of the next one.

        Raises:
            PlanError: If the state is of another version; or, within an epoch, of another plan: it says what differs.
        """
        before, order = self._batches.walk, self._batches.order
        try:
            position = self._position_from(state, restart=restart)
        except (PlanError, SidecarError):
            self._batches.order = order
            self._batches.go_along(before)
            raise
        self._restart_workers()
        self._position, self._under_way = position, None

    def _position_from(self, state: State, *, restart: bool) -> Position:
        """Take the walk of a state, or of a run that goes on from it, and return where it begins."""
        batches = self._batches
        position = batches.walk_from(state)
        is_within = position.step > 0 and not restart
        batches.take_summaries(state["summaries"] if is_within else {})
        changed = [] if is_within else self._changed(state, position)
        if is_within or not (changed or restart):
            plan = batches.plan_at(position, self.num_workers)
            check_state(state, state_of(batches.order, plan, position))
            return position
        walk, epoch = walk_on(state)
        batches.go_along(walk)
        for difference in changed:
            logger.warning("epoch %d goes on from a state with a difference: %s", epoch, difference)
        return Position(epoch, 0, 0, 0)

    def _changed(self, state: State, position: Position) -> list[str]:
        """Return in words what is another than in the run of a state, apart from ranks and workers."""
        now = self._batches.plan_at(Position(position.epoch, 0, 0, 0), self.num_workers)
        return differences(state, state_of(self._batches.order, now, position._replace(step=0)))

    def _restart_workers(self) -> None:
        """End persistent workers: the batches they hold know the walk along the passes that was."""
        self._iterator = None
