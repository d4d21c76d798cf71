"""A Lightning run that writes down what it trains on, as ``lightning_run.py SOURCES FOLDER KILL_AT``.

It saves a checkpoint every third step, goes on from the latest one in FOLDER, and kills itself after so many steps (0: never).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import equitar
from equitar.lightning import SetEpoch

Seen = tuple[int, int, list[str]]  # epoch, step, keys


class Net(LightningModule):
    """Notes every batch; it learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[Seen] = []
        self.validated = 0

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch["__step__"], batch["__key__"]))
        return (self.weight**2).sum()

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        self.validated += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def quiet_trainer(folder: Path, callbacks: list[Callback], **arguments: Any) -> Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=callbacks,
        **{"max_epochs": 3, **arguments},
    )


class _Writes(Callback):
    def __init__(self, path: Path, kill_at: int) -> None:
        self.path, self.kill_at, self.count = path, kill_at, 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(pl_module.seen[-1]), file=file)
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    sources, folder, kill_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    listed = [
        equitar.Source(folder.name, str(folder / "*.tar"), root=str(folder)) for folder in sorted(sources.iterdir())
    ]
    loader = equitar.Loader(equitar.debiased(listed, batch_size=8), num_workers=2)
    saves = ModelCheckpoint(dirpath=folder, every_n_train_steps=3, save_top_k=-1)
    latest = max(folder.glob("*.ckpt"), key=lambda path: int(path.stem.rpartition("=")[2]), default=None)
    trainer = quiet_trainer(folder, [SetEpoch(), saves, _Writes(folder / "seen.jsonl", kill_at)])
    trainer.fit(Net(), loader, ckpt_path=latest, weights_only=False)


if __name__ == "__main__":
    main()
