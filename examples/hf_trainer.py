"""Train with the Trainer of transformers on debiased batches, and resume within an epoch.

torchrun --nproc-per-node 2 examples/hf_trainer.py [FOLDER]
torchrun --nproc-per-node 2 examples/hf_trainer.py [FOLDER] --resume
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import equitar
from ddp_contrastive import sources_in

GLOBAL_BATCH = 32


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "pixels": sample["png"], "labels": int(sample["cls"])}


def inputs(batch: dict[str, Any]) -> dict[str, Tensor]:
    """Return what the model takes: `__key__`, `__source__` and the like are for us."""
    return {"pixels": torch.stack(batch["pixels"]), "labels": torch.tensor(batch["labels"])}


class Model(nn.Module):
    """A classifier that gives its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: D102
        logits = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PlannedTrainer(Trainer):  # type: ignore[misc]  # transformers may be missing where types are checked
    """Takes a loader as it is: the batches of this rank, which must not be shared out again."""

    def __init__(self, *, loader: equitar.Loader, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.loader = loader

    def get_train_dataloader(self) -> equitar.Loader:
        """Return the loader, not prepared by accelerate."""
        return self.loader


class SavesLoader(TrainerCallback):  # type: ignore[misc]  # as above
    """Writes where the loader stands into every checkpoint."""

    def __init__(self, loader: equitar.Loader) -> None:
        self.loader = loader
        self.came: list[tuple[int, str | None, tuple[str, ...]]] = []  # step, source and keys of every batch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: D102
        assert self.loader.last is not None
        self.came.append((self.loader.last.step, self.loader.last.source, self.loader.last.keys))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: D102
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(self.loader.state_dict()), encoding="utf-8")
