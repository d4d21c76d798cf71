"""Samplers under trainers that share out by themselves: accelerate, the Trainer of transformers, Lightning.

torchrun --nproc-per-node 2 examples/trainer_samplers.py accelerate|transformers|lightning
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset

import equitar

SIZES = {"cc3m": 90, "sbu": 30}
BATCH_SIZE = 5  # of each rank


class Rows(Dataset[dict[str, Tensor]]):
    """Two datasets, one after the other; a sample is its own index."""

    def __len__(self) -> int:
        return sum(SIZES.values())

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"inputs": torch.tensor([float(row)]), "labels": torch.tensor([0.0])}


class Model(nn.Module):
    """Returns its loss, as models of transformers do, and keeps the rows that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 1), list[int]()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: D102
        self.seen += inputs.flatten().int().tolist()
        return {"loss": nn.functional.mse_loss(self.layer(inputs), labels)}


def train_loader() -> DataLoader[Any]:
    """Return a loader whose sampler gives each rank its own share."""
    sampler = equitar.DebiasedBatchSampler(SIZES, batch_size=BATCH_SIZE)
    return DataLoader(Rows(), batch_sampler=sampler)


def with_accelerate() -> Model:
    from accelerate import Accelerator
    from accelerate.utils import send_to_device

    accelerator, loader, net = Accelerator(cpu=True), train_loader(), Model()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 1e-6))  # not the loader
    for batch in loader:
        accelerator.backward(model(**send_to_device(batch, accelerator.device))["loss"])
        optimizer.step()
        optimizer.zero_grad()
    return net


def with_transformers() -> Model:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    loader, net = train_loader(), Model()
    sampler: Any = loader.batch_sampler

    class Planned(Trainer):  # type: ignore[misc]  # transformers may be missing where types are checked
        # In place of `_get_train_sampler`: accelerate would share out what that returns.
        def get_train_dataloader(self) -> DataLoader[Any]:
            return loader

    class SetEpoch(TrainerCallback):  # type: ignore[misc]  # for runs that may be resumed: samplers begin at epoch 0
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            sampler.set_epoch(int(state.epoch))

    args = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=1, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    Planned(net, args, callbacks=[SetEpoch()]).train()
    return net


def with_lightning() -> Model:
    from lightning.pytorch import LightningModule, Trainer

    from equitar.lightning import SetEpoch

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Model()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            loss: Tensor = self.net(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-6)

    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # as torchrun says; "auto" on GPUs
        strategy="ddp",
        max_epochs=1,
        use_distributed_sampler=False,  # the sampler shares out itself
        callbacks=[SetEpoch()],  # for epochs that are cut short
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, train_loader())
    return module.net


if __name__ == "__main__":
    ways = {"accelerate": with_accelerate, "transformers": with_transformers, "lightning": with_lightning}
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=ways)
    seen = ways[parser.parse_args().trainer]().seen
    everywhere: list[list[int]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everywhere, seen)
    print(f"{len(set().union(*everywhere))} of {sum(map(len, everywhere))} rows are different\n", end="")
    gc.collect()  # a trainer may leave a model that holds the process group
    distributed.destroy_process_group()
