"""Misuse: callers that share out again, batch in workers, or begin the same epoch again, recognised and refused or warned about.

A dataset or sampler can see only by who calls it that a trainer has wrapped it, and a DataLoader tells a dataset nothing else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from weakref import ReferenceType, ref

from equitar.errors import PlanError

# Classes of accelerate, transformers, catalyst and ignite that keep a part of what each process would read.
_SHARES_STREAMS = frozenset(("IterableDatasetShard", "DataLoaderDispatcher"))
_SHARES_SAMPLERS = _SHARES_STREAMS | {"BatchSamplerShard", "DatasetFromSampler", "DistributedSampler"}
_TRAINER_LOOPS = frozenset(("_FitLoop", "_TrainingEpochLoop", "_EvaluationLoop", "_PredictionLoop"))
_FETCHERS = frozenset(("_IterableDatasetFetcher", "_StatefulIterableDatasetFetcher"))  # within workers of a DataLoader


def refuse_resharding() -> None:
    """Raise PlanError if a caller is about to share out a stream again, of which each rank already reads its own part.

    accelerate and the Trainer of transformers wrap an iterable dataset so that each process keeps every n-th batch, or that
    one process reads for all. A dataset can only see that by who calls it; workers that were forked see their parent's callers.
    """
    for caller in _callers():
        if _class_names(caller) & _SHARES_STREAMS:
            raise PlanError(
                f"{type(caller).__name__} would share this stream out again, but each rank already gets its own part; hand the "
                "loader to the training loop as it is, without `accelerator.prepare`, or set `dispatch_batches=False` and one process"
            )


def refuse_resampling(world_size: int) -> None:
    """Raise PlanError if a caller is about to share out again what a sampler gives to this rank of so many.

    accelerate (and so the Trainer of transformers) keeps every n-th batch; Lightning, catalyst and ignite keep every n-th index.
    """
    if world_size == 1:
        return  # the sampler gives everything, and a trainer may share it out
    for caller in _callers():
        names = _class_names(caller) & _SHARES_SAMPLERS
        if not names:
            continue
        raise PlanError(
            f"{type(caller).__module__}.{type(caller).__name__} would share out again what this sampler gives to one of {world_size} "
            + (
                "ranks; set `use_distributed_sampler=False` (Lightning's Trainer, `fabric.setup_dataloaders`), or do not wrap it"
                if "DistributedSampler" in names or "DatasetFromSampler" in names
                else "ranks; do not pass the DataLoader to `accelerator.prepare`; in a transformers Trainer, return it from "
                "`get_train_dataloader`, in place of `_get_train_sampler`"
            )
        )


def refuse_other_ranks(rank: int, world_size: int) -> None:
    """Raise PlanError if Lightning, by its strategy, has other data-parallel ranks than were detected."""
    for caller in _callers():
        if not _class_names(caller) & _TRAINER_LOOPS:
            continue
        wanted = trainer_ranks(caller.trainer)
        if wanted is not None and wanted != (rank, world_size):
            raise PlanError(
                f"Lightning's {type(caller.trainer.strategy).__name__} has this process as data-parallel rank {wanted[0]} of "
                f"{wanted[1]}, but rank {rank} of {world_size} was detected, so that its tensor-parallel peers would get other "
                "batches; make the data in a hook such as `train_dataloader`, with `**equitar.lightning.data_ranks(self.trainer)`"
            )
        return


def trainer_ranks(trainer: Any) -> tuple[int, int] | None:
    """Return (rank, world_size) of this process among those that share data, as a trainer of Lightning has it, or None."""
    arguments: Mapping[str, int] | None = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    return None if arguments is None else (arguments["rank"], arguments["num_replicas"])


def warn_of_batching_workers() -> None:
    """Warn if this is a worker of a DataLoader that makes batches of single samples: then each worker has an end of its own."""
    for caller in _callers():
        if type(caller).__name__ in _FETCHERS and caller.auto_collation:
            lost = "dropped" if caller.drop_last else "short"
            warnings.warn(
                f"each worker of this DataLoader makes batches of its own samples, so that the last batch of every worker is {lost}, "
                "and there are not as many batches as its length says; let the builder make them: `batch_size=` of "
                "`equitar.mixed`, and `batch_size=None` of the DataLoader, or use equitar.Loader",
                stacklevel=4,
            )
            return


def warn_of_replacement(loader: object, name: str, digest: str) -> None:
    """Warn if a loader or sampler begins epoch 0 of the plan that one before it began, which is gone: so will the next one.

    Two that exist side by side, as for two views of the same samples, are not meant.
    """
    begun = _begun()
    before = begun.get(digest)
    if before is not None and before() is None:
        warnings.warn(
            f"a new {name} begins epoch 0 of the same plan as one before it, so that every epoch would have the same batches; make "
            f"one {name} before the loop over epochs, as it advances by itself, or call `set_epoch` on each new one",
            stacklevel=4,
        )
    begun[digest] = ref(loader)


@cache
def _begun() -> dict[str, ReferenceType[object]]:
    """Return who began the first epoch of each plan in this process, by the digest of the plan.

    There is one for the process: loaders, batches and sources may all be made again for every epoch, so no object of the user
    lives from the first to the second. It decides nothing but whether to warn.
    """
    return {}


def warn_of_plan_in_worker() -> None:
    """Warn that batches were made by a builder within a worker of a DataLoader, where no epoch reaches them."""
    warnings.warn(
        "these batches were made within a DataLoader worker, where every epoch is epoch 0; make them in the main process (in "
        "`__init__` of a dataset around them), and call their `set_epoch` before each epoch",
        stacklevel=4,
    )


def _callers() -> Iterator[Any]:
    """Yield the objects whose methods are being called, innermost first."""
    frame = sys._getframe(1)  # noqa: SLF001  (the documented way to one's callers)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]  # None ends the loop
        caller = frame.f_locals.get("self")
        if caller is not None:
            yield caller


def _class_names(caller: object) -> set[str]:
    return {base.__name__ for base in type(caller).__mro__}
