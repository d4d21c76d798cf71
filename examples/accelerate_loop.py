"""Train by accelerate on debiased batches: ``accelerate launch examples/accelerate_loop.py [FOLDER]``, or by torchrun.

Model and optimizer are prepared, the loader is not: accelerate would share out again what each rank has its own part of.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import torch
import webdataset as wds
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

import equitar
from classifier import prepare
from ddp_contrastive import sources_in

GLOBAL_BATCH = 32


def main(folder: Path, steps: int, accumulate: int) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True)  # without `cpu` on GPUs
    batches = equitar.debiased(
        sources_in(folder),
        batch_size=GLOBAL_BATCH // accelerator.num_processes,
        steps=steps,
        accumulation_steps=accumulate,  # batches whose gradients are accumulated have one source too
        stages=[wds.decode("torchrgb"), wds.map(prepare)],
    )
    loader = equitar.Loader(batches)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    for batch in loader:
        with accelerator.accumulate(model):
            pixels, labels = send_to_device(
                (torch.stack(batch["pixels"]), torch.tensor(batch["cls"])), accelerator.device
            )
            accelerator.backward(nn.functional.cross_entropy(model(pixels), labels))
            optimizer.step()
            optimizer.zero_grad()
        keys = " ".join(batch["__key__"])
        print(
            f"rank {accelerator.process_index} epoch 0 step {batch['__step__']} {batch['__source__']} {keys}\n", end=""
        )
    accelerator.free_memory(model, optimizer)
    del model, optimizer  # the model holds the process group, which must not outlive what ends it
    gc.collect()
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=1)
    main(**vars(parser.parse_args()))
