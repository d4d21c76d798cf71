"""The loader: a torch DataLoader that knows epochs, resumes at any step, and counts what it hands out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, IterableDataset

from equitar.agreement import compare_over_ranks
from equitar.checks import check_integer
from equitar.display import Overview, Table, overview_of
from equitar.errors import PlanError, SidecarError
from equitar.loading.batches import Batches, execution_of, own_copy
from equitar.loading.execution import Execution
from equitar.loading.record import LoaderCounters, LoaderReport, Record
from equitar.loading.request import Request
from equitar.loading.shared_slots import Packed, SharedBuffers
from equitar.loading.state import State, check_state, differences, given_up_by, pass_start_after, summaries_in
from equitar.misuse import warn_of_replacement
from equitar.planning.plan import Plan
from equitar.planning.weights import Changes, Weights
from equitar.progress import Position, Progress
from equitar.ranks import detect_workers, let_collectives_end
from equitar.rng import Purpose, fold

logger = logging.getLogger("equitar")
Recorded: TypeAlias = Iterator[tuple[Record, Any]]
_PUBLIC = ("counters", "epoch", "last", "load_state_dict", "num_workers", "reweight", "set_epoch", "state_dict", "step")


class _Recorded(IterableDataset[Any]):
    """Batches with their records, as workers send them to a Loader."""

    def __init__(self, batches: Batches) -> None:
        self.batches, self.execution = batches, execution_of(batches)
        self.buffers: SharedBuffers | None = None

    def __iter__(self) -> Recorded:
        if not self.execution.start.is_driven:
            raise PlanError(
                "another loader was built around the data of an equitar.Loader, and would shard again what is sharded already; "
                "use the Loader as it is (with accelerate: do not `prepare` it)"
            )
        recorded = self.execution.recorded()
        worker, num_workers = detect_workers()
        return self.buffers.sent(worker, recorded) if self.buffers is not None and num_workers else recorded

    def __len__(self) -> int:
        return len(self.batches)


def _unchanged(batch: Any) -> Any:
    return batch


class Loader(Overview, DataLoader[Any]):
    """Loads batches through workers; the arguments are torch's own.

    The epoch advances by itself with the last batch of a pass; a pass that is broken off begins again where it began, even if that
    is the step at which it was resumed.

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
        """Make a loader with a position of its own: two loaders over the same batches do not affect each other.

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
                all through torch's pipe. A slot grows to the largest batch that it has held, and keeps that memory. With
                `pin_memory`, tensors are copied from their slot straight into pinned memory.
            views: Whether bytes, arrays and tensors of a batch are views of its slot, which is overwritten when the next batch
                but one is requested; otherwise they are copies. Pinned tensors are always copies.
        """
        if not in_order:
            raise ValueError("`in_order` must be True: a step out of order would be another step on the other ranks")
        if not isinstance(batches, Batches):
            raise TypeError(f"`batches` must come from debiased, mixed or exact; got {type(batches).__name__}")
        num_workers = check_integer("num_workers", num_workers, 0)
        if slots is not None:
            slots = check_integer("slots", slots, 0)
        self._views = views
        self._is_pinning = pin_memory and torch.cuda.is_available()  # without a device torch pins nothing, and says so
        self._slots = (prefetch_factor or 2) + 2 if slots is None else slots  # of batches under way, and of two in use
        self._recorded = _Recorded(own_copy(batches))
        super().__init__(
            self._recorded,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_unchanged,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=torch.Generator(),  # torch draws a seed for its workers: not from the global one
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        self.last: Record | None = None
        # The shared position follows when an iterator begins: workers may not have read it yet.
        self._progress = Progress(unit="step", fix="give the builder `steps=`, or call `set_epoch` before each pass")
        self._counters = LoaderCounters()
        self._is_compared = False
        self._is_placed = False  # an epoch was set or a state loaded
        self._reweighted: Request | None = None  # to continue with at the next iterator

    def _overview(self) -> tuple[str, list[Table]]:
        title, tables = overview_of(self._recorded.batches)
        return f"Loader(num_workers={self.num_workers}, epoch {self.epoch}, step {self.step})\n  {title}", tables

    def __dir__(self) -> list[str]:
        return [*(name for name in super().__dir__() if name.startswith("_")), *_PUBLIC]

    @property
    def _execution(self) -> Execution:
        return self._recorded.execution

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0; if `load_state_dict` was just called, in the middle of it."""
        self._apply_weights()
        progress, self._is_placed = self._progress, True
        # An iterator that has given nothing yet is the one that is meant: Lightning makes it before it sets the epoch.
        is_there = progress.latest == progress.next and (progress.is_under_way or progress.next.step > 0)
        if not (is_there and progress.next.epoch == epoch):
            progress.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a class of its own
        """Return an iterator over the epoch that comes next."""
        self._apply_weights()
        position, execution = self._progress.next, self._execution
        plan = execution.plan_at(position, self.num_workers)
        if not self._is_compared:
            execution.request.check_rank()
        execution.start.position = position
        execution.start.is_driven = True  # before workers start
        # What user code draws in workers differs by rank and epoch, and is the same in every run.
        names = (execution.request.seed, execution.request.resolved.rank, position.epoch, position.step)
        self.generator.manual_seed(fold(Purpose.WORKER_SEED, *names) >> 1)
        if self.num_workers and self._iterator is None:
            let_collectives_end()
            # New workers get slots of their own: those of an iterator that is still in use write to theirs.
            self._recorded.buffers = SharedBuffers(self.num_workers, self._slots) if self._slots else None
        batches = super().__iter__()
        try:  # ours comes after workers were forked, for the same reason
            self._compare(plan, position)
        except PlanError:
            self._restart_workers()
            execution.start.is_driven = False
            raise
        if plan.is_whole and not (self._is_placed or self._progress.turn or position.epoch):
            warn_of_replacement(self, "Loader", plan.digest)
        turn = self._progress.turn + 1  # of `counted`
        received = self._received(self._driven(batches, turn), self._recorded.buffers, position, plan.num_steps)
        return self._progress.counted(received, plan.num_steps - position.step)

    def _compare(self, plan: Plan, position: Position) -> None:
        """Compare plan and position over ranks, once."""
        if self._is_compared:
            return
        request = self._execution.request
        facts = {
            "epoch": position.epoch,
            "step": position.step,
            "seed": request.seed,
            "batch_size": request.batch_size,
            "sources": ", ".join(plan.names),
            "workers": plan.spec.lanes,
            "plan": plan.digest,
        }
        fix = "compare their sources, arguments and sidecars, and call `set_epoch` and `load_state_dict` on all ranks alike"
        compare_over_ranks(request.ranks, facts, what="plan", fix=fix)
        self._is_compared = True

    def _received(
        self, batches: Recorded, buffers: SharedBuffers | None, position: Position, num_steps: int
    ) -> Iterator[Any]:
        """Yield batches as they arrive, in the order of their steps."""
        due = position.step
        in_use = deque[int]()  # slots of views
        for record, batch in batches:
            if (record.epoch, record.step) != (position.epoch, due):
                raise PlanError(
                    f"step {record.step} of epoch {record.epoch} arrived but step {due} of epoch {position.epoch} is next; keep "
                    "the order of workers, and use one iterator at a time"
                )
            due += 1
            self.last = record
            self._counters.note(record)
            yield self._unpacked(batch, buffers, in_use)
            if buffers is not None and len(in_use) > 1:  # the next batch but one is requested
                buffers.free(in_use.popleft())
        if due < num_steps:
            raise PlanError(f"workers ended at step {due} but the epoch has {num_steps}")

    def _unpacked(self, batch: Any, buffers: SharedBuffers | None, in_use: deque[int]) -> Any:
        """Return a batch, from its slot if it is in one."""
        if buffers is None:
            return batch
        if not isinstance(batch, Packed):
            self._counters.piped += 1
            return batch
        if self._views:
            in_use.append(batch.slot)
        return buffers.received(batch, views=self._views, pinned=self._is_pinning)

    def _driven(self, batches: Recorded, turn: int) -> Recorded:
        """Yield the batches of a pass, and note when their workers have no Loader any more."""
        try:
            yield from batches
        finally:
            if self._progress.turn == turn or not self._progress.is_under_way:
                self._execution.start.is_driven = False

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator begins or continues: write ``for epoch in range(loader.epoch, num_epochs)``."""
        return self._progress.next.epoch

    @property
    def step(self) -> int:
        """Steps of that epoch that were handed out; 0 after the last one, as then the next epoch is due."""
        return self._progress.latest.step

    def counters(self) -> LoaderReport:
        """Return what was handed out since the loader was made, on this rank."""
        return self._counters.counts()

    def state_dict(self) -> State:
        """Return where this run stands: after the latest batch that was handed out."""
        return self._execution.state_at(self._progress.latest, self.num_workers)

    def load_state_dict(self, state: State, *, restart: bool = False) -> None:
        """Begin the next iterator where a run stood, with any number of ranks and workers and the same global batch.

        Within an epoch sources are as the state knew them, by the summaries it names: shards that were added later wait for the
        next start of a run. At the end of an epoch, or with `restart`, the run may continue with other sources, weights, batch
        size, ranks or repeats: sources that were there before keep their place in their passes, and what has changed is logged.

        With `restart` within an epoch the run continues at the start of the next one. A source continues behind all that the
        epoch had begun to emit of its pass, so no sample comes twice before its pass is over. What lies before that and was not
        emitted is given up until the next pass: how many samples of each source is logged, and counted in `counters`. It is
        nothing at the end of an epoch, and at most the rest of the epoch: keep epochs short (`steps=`) to give up little.

        Args:
            state: From `state_dict`.
            restart: Whether the rest of a state's epoch may be given up for the start of the next one.

        Raises:
            PlanError: If the state has another version; or, within an epoch, belongs to another plan: it says what differs.
        """
        execution = self._execution
        before, request = execution.pass_start, execution.request
        execution.request = self._reweighted or request
        try:
            position = self._position_from(state, restart=restart)
        except (PlanError, SidecarError):
            execution.request = request
            execution.follow(before)
            raise
        self._reweighted = None
        self._restart_workers()
        self._progress.set_next(position)
        self._is_placed = True

    def reweight(self, weights: Weights | Changes | None) -> None:
        """Continue with other weights from the next `iter()` on, as `load_state_dict` does with `restart`; call it on all ranks alike.

        An iterator in use is not affected. If it is left within its epoch, the next one begins the next epoch: no sample comes
        twice before its pass is over, and what is given up is logged and counted in `counters`. After the last batch of an epoch
        nothing is given up, so change weights there, and give the builder as many `steps=` as there are between two changes.
        Shards stay as they are, and the plan is compared over ranks again.

        The state of the run from then on belongs to the new weights. To resume it, give them to the builder, or to this method
        before `load_state_dict`.

        Args:
            weights: As in the builder.

        Raises:
            PlanError: If the weights are not right for the sources, or the promises cannot be kept with them.
        """
        execution, progress = self._execution, self._progress
        request = execution.request.reweighted(weights)
        request.plan(Position(progress.next.epoch), self.num_workers, execution.pass_start)  # may raise
        self._reweighted = None if request.recipe == execution.request.recipe else request
        if not progress.is_under_way and not progress.next.step:
            self._apply_weights()

    def _apply_weights(self) -> None:
        """Continue with the weights of `reweight`, if there are some."""
        if self._reweighted is None:
            return
        state, execution = self.state_dict(), self._execution
        execution.request, self._reweighted = self._reweighted, None
        if (state["epoch"], state["step"]) == (execution.pass_start.epoch, 0):  # nothing was emitted along these passes
            execution.follow(execution.pass_start)
            self._is_compared = False
            position = Position(state["epoch"])
        else:
            position = self._continued(state)
        self._restart_workers()
        self._progress.set_next(position)

    def _position_from(self, state: State, *, restart: bool) -> Position:
        """Follow the passes of a state, or of a run that continues from it, and return where it begins."""
        execution = self._execution
        position = execution.follow_state(state)
        is_within = position.step > 0 and not restart
        execution.use_summaries(summaries_in(state) if is_within else {})
        changed = [] if is_within else self._changed(state, position)
        if is_within or not (changed or restart):
            check_state(state, execution.state_at(position, self.num_workers))
            return position
        return self._continued(state)

    def _changed(self, state: State, position: Position) -> list[str]:
        """Return in words what differs from the run of a state, apart from ranks and workers."""
        return differences(state, self._execution.state_at(Position(position.epoch), self.num_workers))

    def _continued(self, state: State) -> Position:
        """Follow the passes from where a state leaves them, log what changes and what is given up, and return the position."""
        execution = self._execution
        pass_start, epoch = pass_start_after(state)
        execution.follow(pass_start)
        position = Position(epoch)
        for difference in self._changed(state, position):
            logger.warning("epoch %d continues from a state with a difference: %s", epoch, difference)
        given_up = given_up_by(state, execution.plan_at(position, self.num_workers))
        if given_up:
            listed = ", ".join(f"{number} of {source!r}" for source, number in sorted(given_up.items()))
            logger.warning(
                "epoch %d begins after step %d of epoch %d; samples given up until the next pass: %s",
                epoch,
                state["step"],
                state["epoch"],
                listed,
            )
        self._counters.given_up.update(given_up)
        self._is_compared = False
        return position

    def _restart_workers(self) -> None:
        """End persistent workers: the batches they hold follow the passes as they were."""
        self._iterator = None
