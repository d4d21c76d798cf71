"""Train on a mesh of data and tensor parallel ranks: ``torchrun --nproc-per-node 4 examples/mesh_training.py [FOLDER]``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import webdataset as wds
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import equitar
from classifier import prepare
from ddp_contrastive import sources_in

if TYPE_CHECKING:
    from accelerate import Accelerator

GLOBAL_BATCH = 32


def torchtitan_batches(folder: Path, parallel_dims: Any) -> equitar.Batches:
    """Return batches for a `ParallelDims` of torchtitan."""
    return equitar.debiased(
        sources_in(folder),
        batch_size=8,
        mesh=parallel_dims.world_mesh["dp"],
    )


def accelerate_batches(folder: Path, accelerator: Accelerator) -> equitar.Batches:
    """Return batches for an `Accelerator` with a `ParallelismConfig`."""
    return equitar.debiased(
        sources_in(folder),
        batch_size=8,
        mesh=accelerator.torch_device_mesh["dp"],
    )


def main(folder: Path, steps: int, tensor_parallel: int) -> None:
    distributed.init_process_group("gloo")
    if distributed.get_rank() == 0:
        equitar.index(sources_in(folder), jobs=1, progress=False)
    distributed.barrier()
    sizes = (distributed.get_world_size() // tensor_parallel, tensor_parallel)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    batches = equitar.debiased(
        sources_in(folder),
        batch_size=GLOBAL_BATCH // mesh["dp"].size(),  # of each data-parallel rank
        steps=steps,
        stages=[wds.decode("torchrgb"), wds.map(prepare)],
        mesh=mesh["dp"],
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in equitar.Loader(batches):
        logits = model(torch.stack(batch["pixels"]))
        loss = nn.functional.cross_entropy(logits, torch.tensor(batch["cls"]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        keys = " ".join(batch["__key__"])
        print(
            f"rank {mesh['dp'].get_local_rank()} epoch 0 step {batch['__step__']} {batch['__source__']} {keys}\n",
            end="",
        )
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tensor-parallel", type=int, default=2)
    main(**vars(parser.parse_args()))
