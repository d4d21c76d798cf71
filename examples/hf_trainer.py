"""Train with the Trainer of transformers on debiased batches, and resume within an epoch.

torchrun --nproc-per-node 2 examples/hf_trainer.py [FOLDER]
torchrun --nproc-per-node 2 examples/hf_trainer.py [FOLDER] --resume
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from torch import Tensor, distributed, nn
from transformers import BatchEncoding, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import equitar
from ddp_contrastive import sources_in

GLOBAL_BATCH = 32


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "pixels": sample["png"], "labels": int(sample["cls"])}


def for_model(samples: list[dict[str, Any]]) -> BatchEncoding:
    """Collate; a dict would get `__source__`, which no model takes."""
    pixels = torch.stack([sample["pixels"] for sample in samples])
    return BatchEncoding({"pixels": pixels, "labels": torch.tensor([sample["labels"] for sample in samples])})


class Classifier(nn.Module):
    """Returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 10))

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: D102
        logits = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PlannedTrainer(Trainer):  # type: ignore[misc]  # optional
    """Trains on an `equitar.Loader`, which has its own batches per rank."""

    def __init__(self, *, loader: equitar.Loader, args: TrainingArguments, model: nn.Module) -> None:
        super().__init__(model, args, callbacks=[SavesLoader(loader)])
        self.loader = loader

    def get_train_dataloader(self) -> equitar.Loader:
        """Return the loader as it is: accelerate would shard it again."""
        return self.loader


class SavesLoader(TrainerCallback):  # type: ignore[misc]  # optional
    """Puts the position of the loader into every checkpoint."""

    def __init__(self, loader: equitar.Loader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write `loader.json`: the same on all ranks."""
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (checkpoint / "loader.json").write_text(json.dumps(self.loader.state_dict()), encoding="utf-8")


class Prints(TrainerCallback):  # type: ignore[misc]  # optional
    """Prints what each rank trained on."""

    def __init__(self, loader: equitar.Loader) -> None:
        self.loader = loader

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Print rank, step, source and keys of the batch."""
        last = self.loader.last
        assert last is not None
        print(
            f"rank {args.process_index} epoch {last.epoch} step {last.step} {last.source} {' '.join(last.keys)}\n",
            end="",
        )


def main(folder: Path, steps: int, stop_after: int, *, resume: bool) -> None:
    args = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=GLOBAL_BATCH,  # what its logs count with; the loader makes the batches
        num_train_epochs=2,
        max_steps=stop_after,
        save_steps=2,
        ignore_data_skip=True,  # the loader begins where the checkpoint was saved
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    batches = equitar.debiased(
        sources_in(folder),
        batch_size=GLOBAL_BATCH // args.world_size,
        steps=steps,
        stages=[wds.decode("torchrgb"), wds.map(prepare)],
        collate_fn=for_model,
    )
    loader = equitar.Loader(batches)
    trainer = PlannedTrainer(loader=loader, args=args, model=Classifier())
    trainer.add_callback(Prints(loader))
    checkpoint = get_last_checkpoint(args.output_dir) if resume else None
    if checkpoint is not None:
        loader.load_state_dict(json.loads(Path(checkpoint, "loader.json").read_text(encoding="utf-8")))
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=20, help="steps of an epoch")
    parser.add_argument("--stop-after", type=int, default=-1, help="stop after so many steps in all")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    arguments = parser.parse_args()
    equitar.index(sources_in(arguments.folder), jobs=1, progress=False)
    main(**vars(arguments))
    gc.collect()  # the model would keep the process group alive
    if distributed.is_initialized():
        distributed.destroy_process_group()
