"""What one of four ranks of `test_meshes.py` does, as ``mesh_ranks.py SOURCES RESULTS``: meshes of two by two, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import equitar
from equitar.errors import EquitarError


def keys(folder: Path, **ranks: Any) -> list[list[str]]:
    """Return the keys of an epoch on this rank."""
    return [batch["__key__"] for batch in equitar.Loader(batches(folder, **ranks))]


def batches(folder: Path, **arguments: Any) -> equitar.Batches:
    sources = [equitar.Source(path.name, str(path / "*.tar"), root=str(path)) for path in sorted(folder.iterdir())]
    return equitar.debiased(sources, **{"batch_size": 3, **arguments})


def refusal(begin: Callable[[], object]) -> str:
    try:
        begin()
    except EquitarError as error:
        return str(error)
    return "not refused"


def trained(folder: Path, mesh: Any, data_mesh: Any) -> list[float]:
    """Train a sharded model for two steps, and return the norms of its gradients: they are equal on all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    fully_shard(model, mesh=mesh)
    norms = []
    for batch in list(equitar.Loader(batches(folder, mesh=data_mesh)))[:2]:
        inputs = torch.tensor([[float(ord(letter)) for letter in key[-4:]] for key in batch["__key__"]])
        model(inputs).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm: Any = torch.nn.utils.get_total_norm(gradients)
        norms.append(float(norm.full_tensor()))
        model.zero_grad()
    return norms


def of_accelerate() -> Any:
    """Return the mesh that accelerate makes, with a flattened dimension."""
    from accelerate.parallelism_config import ParallelismConfig

    return ParallelismConfig(dp_replicate_size=2, tp_size=2).build_device_mesh("cpu")


def on_meshes(folder: Path) -> dict[str, Any]:
    model_parallel = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    sizes = {"a": 40, "b": 24}
    return {
        "dp of dp x tp": keys(folder, mesh=model_parallel["dp"]),
        "group of dp": keys(folder, group=model_parallel["dp"].get_group()),
        "pairs of dp": keys(folder, rank=model_parallel["dp"].get_local_rank(), world_size=2),
        "replicate x shard": keys(folder, mesh=hybrid),
        "no mesh": keys(folder),
        "repeats, dp of dp x tp": list(equitar.RepeatFactorSampler(sizes, None, mesh=model_parallel["dp"])),
        "debiased, dp of dp x tp": list(equitar.DebiasedBatchSampler(sizes, batch_size=4, mesh=model_parallel["dp"])),
        "wrapped, dp of dp x tp": list(
            equitar.DistributedSamplerWrapper(torch.utils.data.RandomSampler(range(30)), mesh=model_parallel["dp"])
        ),
        "HSDP": trained(folder, hybrid, hybrid),
        "FSDP2 beside tensor parallelism": trained(folder, model_parallel["dp"], model_parallel["dp"]),
        "dp of accelerate": keys(folder, mesh=of_accelerate()["dp"]),
        "whole mesh": refusal(lambda: batches(folder, mesh=model_parallel)),
    }


def refused(folder: Path) -> dict[str, str]:
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return {
        "another seed on a peer": refusal(lambda: keys(folder, mesh=mesh["dp"], seed=int(rank == 3))),
        "another seed on a peer's group": refusal(lambda: keys(folder, group=mesh["dp"].get_group(), seed=rank % 2)),
        "another batch size by hand": refusal(
            lambda: keys(folder, rank=rank // 2, world_size=2, batch_size=3 + rank // 2)
        ),
        "mesh forgotten on one rank": refusal(lambda: keys(folder, **({} if rank == 2 else {"mesh": mesh["dp"]}))),
        "local ranks of two nodes": refusal(lambda: keys(folder, rank=rank % 2, world_size=4)),
        "a rank taken three times": refusal(lambda: keys(folder, rank=int(rank > 0), world_size=2)),
        "ranks beyond the world": refusal(lambda: keys(folder, rank=rank, world_size=8)),
        "another draw": refusal(
            lambda: list(equitar.DebiasedBatchSampler({"a": 90}, batch_size=2, seed=rank // 2, mesh=mesh["dp"]))
        ),
    }


def alone(folder: Path) -> dict[str, Any]:
    """Only some ranks come: the user's own collective is left alone, and whoever waits is told for whom."""
    rank = distributed.get_rank()
    loading = distributed.new_group([0, 2])
    os.environ["EQUITAR_RANKS_TIMEOUT"] = "2"
    result = {
        "rank 0 of 1": keys(folder, rank=0, world_size=1) if rank == 0 else None,
        "group of those that load": keys(folder, group=loading) if rank % 2 == 0 else None,
        "all after the group": refusal(lambda: keys(folder)),
        "first of each pair": keys(folder, rank=rank // 2, world_size=2) if rank % 2 == 0 else None,
    }
    distributed.barrier()
    result |= {
        "all after the pairs": refusal(lambda: keys(folder)),
        "rank 0 alone": refusal(lambda: keys(folder)) if rank == 0 else None,
    }
    distributed.barrier()
    result["all after one"] = refusal(lambda: keys(folder, seed=1))
    total = torch.tensor([rank])
    distributed.all_reduce(total)
    return {**result, "sum of ranks": int(total)}


def main() -> None:
    folder, results = map(Path, sys.argv[1:])
    distributed.init_process_group("gloo")
    result = {**on_meshes(folder), **refused(folder), **alone(folder)}
    (results / f"{distributed.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    distributed.barrier()  # the store lies with rank 0
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
