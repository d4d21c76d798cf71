"""Lightning: a callback that gives every epoch of the trainer its own epoch of the data, and the ranks of its strategy.

An `equitar.Loader`, and a sampler, advance by themselves after a complete pass. With ``limit_train_batches``, or a trainer that stops
an epoch early, passes are never complete, and each would begin the same epoch again: then use this callback, or `steps=` of the
builder.

Use it too where a run may be restarted from a checkpoint: from one at the end of an epoch, Lightning restores no loader, and
would begin with epoch 0 again. Within an epoch a run continues where it stood with an `equitar.Loader`, or torchdata's
StatefulDataLoader; of a plain DataLoader a checkpoint holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from lightning.pytorch import Callback, LightningModule, Trainer

from equitar.misuse import trainer_ranks


class DataRanks(TypedDict):
    """Arguments of builders and samplers."""

    rank: int
    world_size: int


def data_ranks(trainer: Trainer) -> DataRanks:
    """Return which rank this process is among those that share the data, as the strategy of a trainer has it.

    With `ModelParallelStrategy` these are fewer than the processes: tensor-parallel peers need the same batches. Use it where the
    strategy is set up, as in a hook ``train_dataloader`` of a module or data module::

        batches = equitar.debiased(sources, batch_size=64, **data_ranks(self.trainer))
    """
    rank, world_size = trainer_ranks(trainer) or (trainer.global_rank, trainer.world_size)
    return DataRanks(rank=rank, world_size=world_size)


class SetEpoch(Callback):
    """Calls `set_epoch` before each epoch: on training loaders, or their dataset, sampler and batch sampler."""

    def __init__(self) -> None:
        self._is_begun = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that a fit begins."""
        self._is_begun = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch of the trainer on its training loaders."""
        for loader in _loaders_in(trainer.train_dataloader):
            for part in [loader] if hasattr(loader, "set_epoch") else _parts_of(loader):
                part.set_epoch(trainer.current_epoch)
        fetcher: Any = trainer.fit_loop._data_fetcher  # noqa: SLF001  (Lightning has no other way to it)
        if not self._is_begun and trainer.current_epoch and fetcher is not None:
            iter(fetcher)  # a fit that continues has made its first iterator before it set the epoch
        self._is_begun = True


def _loaders_in(loaders: Any) -> Iterator[Any]:
    """Yield the loaders that a trainer was given, in whatever collections."""
    if isinstance(loaders, dict | list | tuple):
        for inner in loaders.values() if isinstance(loaders, dict) else loaders:
            yield from _loaders_in(inner)
    elif loaders is not None:
        yield from getattr(loaders, "flattened", [loaders])  # of a CombinedLoader


def _parts_of(loader: Any) -> Iterator[Any]:
    """Yield the parts of a DataLoader that have epochs."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    candidates = (
        getattr(loader, "dataset", None),
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    parts = {id(part): part for part in candidates if callable(getattr(part, "set_epoch", None))}
    yield from parts.values()
