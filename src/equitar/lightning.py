"""For Lightning: a callback that gives every epoch of the trainer its own epoch of the data.

An `equitar.Loader` advances by itself after a complete pass. With ``limit_train_batches``, or a trainer that stops an epoch early,
passes are never complete, and each would begin the same epoch again: then use this callback, or `steps=` of the builder.

Use it too where a run may be restarted from a checkpoint: from one of the end of an epoch, Lightning restores no loader, and
would begin with epoch 0 again. Within an epoch a run goes on where it stood with an `equitar.Loader`, or torchdata's
StatefulDataLoader; of a plain DataLoader a checkpoint holds nothing.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class SetEpoch(Callback):
    """Calls `set_epoch` on the training loaders that have it, before each epoch."""

    def __init__(self) -> None:
        self._is_begun = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that a fit begins."""
        self._is_begun = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the epoch of the trainer on its training loaders."""
        loaders: Any = trainer.train_dataloader
        for loader in loaders.values() if isinstance(loaders, dict) else [loaders]:
            target = loader if hasattr(loader, "set_epoch") else getattr(loader, "dataset", None)
            if target is not None and hasattr(target, "set_epoch"):
                target.set_epoch(trainer.current_epoch)
        fetcher: Any = trainer.fit_loop._data_fetcher  # noqa: SLF001  (Lightning has no other way to it)
        if not self._is_begun and trainer.current_epoch and fetcher is not None:
            iter(fetcher)  # a fit that goes on has made its first iterator before it told the epoch
        self._is_begun = True
