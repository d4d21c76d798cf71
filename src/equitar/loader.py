"""Who drives the workers? A torch DataLoader that knows epochs, resumes by step, and reports what came."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import torch
from torch.utils.data import DataLoader, IterableDataset

from equitar.clock import Position
from equitar.emit import Dropped, Record
from equitar.errors import PlanError
from equitar.pipeline import Batches

STATE_VERSION = 1
_BROKEN_OFF = 3  # passes in a row at one step, before it looks like a habit


class State(TypedDict):
    """Where a run stands: a few hundred bytes."""

    version: int
    epoch: int
    step: int
    lanes: int
    world_size: int
    global_batch: int
    digest: str


class Report(TypedDict):
    """What came since a loader was made, on one rank.

    Attributes:
        steps: Batches.
        samples: Samples of each source.
        dropped: Samples of each source that stages dropped.
        lost: These samples: source, URL of the shard, and key.
    """

    steps: int
    samples: dict[str, int]
    dropped: dict[str, int]
    lost: list[Dropped]


class _Recorded(IterableDataset[Any]):
    """Batches with their records, as workers send them."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Record, Any]]:
        return self.batches.recorded()

    def __len__(self) -> int:
        return len(self.batches)


def _as_it_is(batch: Any) -> Any:
    return batch


class Loader(DataLoader[Any]):
    """Loads batches through workers; the arguments are torch's own.

    The epoch advances by itself after each complete pass; a pass that is broken off starts again.

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
        """
        if not isinstance(batches, Batches):
            raise TypeError(f"`batches` must come from debiased, mixed or exact; got {type(batches).__name__}")
        self._batches = batches.copied()
        self._batches.is_managed = True
        super().__init__(
            _Recorded(self._batches),
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
        self._next_step = 0
        self._is_under_way = False
        self._is_compared = False
        self._broken_at: list[int] = []
        self._report = Report(steps=0, samples={}, dropped={}, lost=[])

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0."""
        self._batches.set_epoch(epoch)
        self._next_step, self._is_under_way = 0, False

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a class of its own
        """Return an iterator over the epoch of the clock."""
        position = self._batches.clock.position
        plan = self._batches.plan_at(position, self.num_workers)
        if not self._is_compared:
            _compare_over_ranks(plan.digest, plan.shape.world_size)
            self._is_compared = True
        self._note_broken_off()
        self._next_step, self._is_under_way = position.step, True
        return self._pass(super().__iter__(), position, plan.num_steps)

    def _pass(self, batches: Iterator[tuple[Record, Any]], position: Position, num_steps: int) -> Iterator[Any]:
        for record, batch in batches:
            if record.step != self._next_step:
                raise PlanError(
                    f"step {record.step} came when step {self._next_step} was due; keep the order of workers"
                )
            self._note(record)
            yield batch
        if self._next_step < num_steps:
            raise PlanError(f"workers ended at step {self._next_step} but the epoch has {num_steps}")
        self._batches.clock.position = Position(position.epoch + 1, 0, 0, 0)
        self._next_step, self._is_under_way = 0, False
        self._broken_at.clear()

    def _note_broken_off(self) -> None:
        """Warn once where passes end early as a habit: the rest of the data would never be seen."""
        if not self._is_under_way:
            return
        self._broken_at.append(self._next_step)
        if len(self._broken_at) == _BROKEN_OFF and len(set(self._broken_at)) == 1:
            warnings.warn(
                f"{_BROKEN_OFF} passes in a row were broken off at step {self._next_step} of {len(self)}, and each begins "
                "the same epoch again; give the builder `steps=`, or call `set_epoch` before each pass",
                stacklevel=3,
            )

    def _note(self, record: Record) -> None:
        self.last = record
        self._next_step = record.step + 1
        report = self._report
        report["steps"] += 1
        for source, count in record.counts:
            report["samples"][source] = report["samples"].get(source, 0) + count
        for dropped in record.dropped:
            report["dropped"][dropped.source] = report["dropped"].get(dropped.source, 0) + 1
            report["lost"].append(dropped)

    def report(self) -> Report:
        """Return what came since the loader was made, on this rank."""
        return copy.deepcopy(self._report)

    def state_dict(self) -> State:
        """Return where this run stands: after the latest batch that was handed out."""
        position = self._batches.clock.position
        plan = self._batches.plan_at(position, self.num_workers)
        return State(
            version=STATE_VERSION,
            epoch=position.epoch,
            step=self._next_step if self._is_under_way else position.step,
            lanes=plan.shape.lanes,
            world_size=plan.shape.world_size,
            global_batch=plan.global_batch,
            digest=plan.digest,
        )

    def load_state_dict(self, state: State) -> None:
        """Begin the next iterator where a run stood, with any number of ranks and workers of the same global batch.

        Raises:
            PlanError: If the state is of another version, or of another plan.
        """
        if state["version"] != STATE_VERSION:
            raise PlanError(f"the state must be of version {STATE_VERSION}; got {state['version']!r}")
        position = Position(state["epoch"], state["step"], state["lanes"], state["world_size"])
        plan = self._batches.plan_at(position, self.num_workers)
        if plan.global_batch != state["global_batch"]:
            raise PlanError(
                f"a resumed run must have the same global batch; it had {state['global_batch']} samples and now has "
                f"{plan.global_batch}"
            )
        if plan.digest != state["digest"]:
            raise PlanError("the state is of a run with other sources, shards, seed or arguments; start a new run")
        if position.step >= plan.num_steps:  # saved at the very end of an epoch
            position = Position(position.epoch + 1, 0, 0, 0)
        self._batches.clock.position = position
        self._next_step, self._is_under_way = position.step, False


def _compare_over_ranks(digest: str, world_size: int) -> None:
    """Raise PlanError if ranks have different plans: they would draw different sources, or wait for each other."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() != world_size:
        return
    digests: list[Any] = [None] * world_size
    distributed.all_gather_object(digests, digest)
    different = [rank for rank, one in enumerate(digests) if one != digests[0]]
    if different:
        raise PlanError(
            f"all ranks must have the same plan; rank {different[0]} has another than rank 0: compare their sources, "
            "arguments, number of workers and sidecars"
        )
