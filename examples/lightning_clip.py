"""Train two towers in Lightning on debiased batches; started again, it continues from its last checkpoint.

python examples/lightning_clip.py [FOLDER] [--devices 2]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn.functional import log_softmax

import demo_shards
import equitar
from contrastive import prepare
from ddp_contrastive import Towers, sources_in
from equitar.lightning import SetEpoch

GLOBAL_BATCH = 64


class Clip(LightningModule):
    """Two towers, and the loss of this rank's rows against those of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = Towers()
        self.came: list[tuple[int, str]] = []  # epoch and source of every step

    def everywhere(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, with their gradient."""
        gathered: Any = self.all_gather(rows, sync_grads=True)  # ranks x rows x numbers; rows x numbers on one device
        return gathered.reshape(-1, rows.shape[1])  # type: ignore[no-any-return]

    def training_step(self, batch: dict[str, Any], index: int) -> Tensor:
        """Return the loss of a batch, which has one source."""
        self.came.append((self.current_epoch, batch["__source__"]))
        letters = torch.stack(batch["letters"])
        images, texts = self.towers(torch.stack(batch["pixels"]), letters)
        fits = (letters[:, None] == self.everywhere(letters)).all(2).float()
        by_image = log_softmax(10 * images @ self.everywhere(texts).T, 1)
        by_text = log_softmax(10 * texts @ self.everywhere(images).T, 1)
        loss: Tensor = -(fits / fits.sum(1, keepdim=True) * (by_image + by_text)).sum(1).mean() / 2
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main(folder: Path, epochs: int, steps: int, devices: int, stop_after: int = -1) -> Clip:
    batches = equitar.debiased(
        sources_in(folder),
        batch_size=GLOBAL_BATCH // devices,  # of each rank
        steps=steps,
        stages=[wds.decode("torchrgb"), wds.map(prepare)],
    )
    checkpoints = ModelCheckpoint(dirpath=folder / "checkpoints", every_n_train_steps=3, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        max_epochs=epochs,
        max_steps=stop_after,
        callbacks=[SetEpoch(), checkpoints],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
    )
    torch.manual_seed(0)
    clip = Clip()
    last = folder / "checkpoints" / "last.ckpt"
    trainer.fit(clip, equitar.Loader(batches), ckpt_path=last if last.exists() else None, weights_only=False)
    return clip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="steps of an epoch")
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()
    if not any(arguments.folder.glob("*.tar")):
        demo_shards.write_all(arguments.folder)
    equitar.index(sources_in(arguments.folder), jobs=1, progress=False)
    trained = main(**vars(arguments))
    lines = [f"rank {trained.global_rank} epoch {epoch} {source}\n" for epoch, source in trained.came]
    print("".join(lines), end="")  # at once: ranks share the terminal
