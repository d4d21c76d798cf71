"""One rank: loads what `test_ranks.py` wrote, meets the other ranks at every step, and writes down what they told.

Started by torchrun, as ``ranks.py SOURCES RESULTS``, both of them folders.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import webdataset as wds

import equitar
from equitar.errors import PlanError
from helpers.shards import Drops

PATIENCE = timedelta(seconds=45)
SHORT = timedelta(seconds=5)  # for what is expected to hang


def sources(folder: Path) -> list[equitar.Source]:
    return [equitar.Source(path.name, str(path / "*.tar"), root=str(path)) for path in sorted(folder.iterdir())]


def meetings(batches: Any, num_workers: int) -> Iterator[list[Any]]:
    """Yield what all ranks have at each step; a rank that does not come to a meeting breaks the run."""
    loader = equitar.Loader(batches, num_workers=num_workers)
    world_size = dist.get_world_size()
    for _ in range(2):
        for batch in loader:
            assert loader.last is not None
            meeting: list[Any] = [None] * world_size
            pads = batch.get("__pad__", [False] * len(batch["__key__"]))
            dist.all_gather_object(meeting, [loader.last.source, batch["__step__"], batch["__key__"], pads])
            yield meeting
    ends: list[Any] = [None] * world_size
    dist.all_gather_object(ends, "end")  # who has one more batch tells it here
    yield ends


def refusal(batches: Any, *, epoch: int) -> str:
    """Return why a Loader does not begin."""
    loader = equitar.Loader(batches)
    loader.set_epoch(epoch)
    try:
        next(iter(loader))
    except PlanError as error:
        return str(error)
    return "not refused"


def with_equitar(folder: Path) -> dict[str, Any]:
    rank = dist.get_rank()
    dropping = equitar.debiased(sources(folder), batch_size=3, stages=[Drops(3)])
    repeated = equitar.mixed(sources(folder), batch_size=3, repeat=0.3)
    return {
        **{f"debiased, {workers} workers": list(meetings(dropping, workers)) for workers in (0, 2)},
        **{f"mixed, {workers} workers": list(meetings(repeated, workers)) for workers in (0, 2)},
        **{
            f"exact, {workers} workers": list(meetings(equitar.exact(sources(folder), batch_size=3), workers))
            for workers in (0, 2)
        },
        "another seed": refusal(equitar.debiased(sources(folder), batch_size=3, seed=rank), epoch=0),
        "another epoch": refusal(equitar.debiased(sources(folder), batch_size=3), epoch=rank),
    }


def with_webdataset(folder: Path) -> dict[str, Any]:
    """Train by the splitting of webdataset, and return how far this rank came."""
    paths = sorted(str(path) for path in folder.glob("*/*.tar"))
    batches = wds.WebDataset(paths, nodesplitter=wds.split_by_node, shardshuffle=False).batched(3)
    steps, group = 0, dist.new_group(timeout=SHORT)
    try:
        for _ in batches:
            dist.all_reduce(torch.ones(1), group=group)
            steps += 1
    except RuntimeError as error:
        return {"steps": steps, "error": str(error)}
    return {"steps": steps, "error": None}


def main() -> None:
    folder, results = map(Path, sys.argv[1:])
    dist.init_process_group("gloo", timeout=PATIENCE)
    result = {**with_equitar(folder), "webdataset": with_webdataset(folder)}  # which breaks a group: it comes last
    (results / f"{dist.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()  # a process that ends with its group standing may be aborted by a thread of gloo


if __name__ == "__main__":
    main()
