"""Train by Lightning on two tensor-parallel devices: ``torchrun --nproc-per-node 2 examples/lightning_mesh.py [FOLDER]``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, distributed, nn

import equitar
from classifier import prepare
from ddp_contrastive import sources_in
from equitar.lightning import data_ranks

GLOBAL_BATCH = 32


class Classifier(LightningModule):
    """Makes its loader where the strategy knows its ranks."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))

    def configure_model(self) -> None:
        """Parallelize `self.layers` along `self.device_mesh` here; this one is left whole."""

    def train_dataloader(self) -> equitar.Loader:
        """Return the batches of this data-parallel rank."""
        ranks = data_ranks(self.trainer)
        batches = equitar.debiased(
            sources_in(self.folder),
            batch_size=GLOBAL_BATCH // ranks["world_size"],
            stages=[wds.decode("torchrgb"), wds.map(prepare)],
            **ranks,
        )
        return equitar.Loader(batches)

    def training_step(self, batch: dict[str, Any], _: int) -> Tensor:  # noqa: D102
        keys = " ".join(batch["__key__"])
        print(f"rank {self.global_rank} epoch 0 step {batch['__step__']} {batch['__source__']} {keys}\n", end="")
        logits = self.layers(torch.stack(batch["pixels"]))
        return nn.functional.cross_entropy(logits, torch.tensor(batch["cls"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        return torch.optim.SGD(self.parameters(), 0.1)


def main(folder: Path, steps: int) -> None:
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2),
        max_steps=steps,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(folder))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=4)
    main(**vars(parser.parse_args()))
