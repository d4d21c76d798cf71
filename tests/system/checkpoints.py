"""One rank that saves or loads its loader by `torch.distributed.checkpoint`, and writes down what it gets.

Started by torchrun as ``checkpoints.py SOURCES NAMES CHECKPOINT HOW RESULTS``: NAMES are the sources to use, by commas; HOW is
``save``, ``async_save``, ``load`` or ``load_stateful``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

import equitar
from equitar.errors import PlanError

GLOBAL_BATCH, STEPS = 8, 5


def main(folder: Path, names: str, checkpoint: str, how: str, results: Path) -> None:
    dist.init_process_group("cpu:gloo" if how == "async_save" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sources = [equitar.Source(name, f"{folder}/{name}/*.tar", root=f"{folder}/{name}") for name in names.split(",")]
    loader = equitar.Loader(equitar.debiased(sources, batch_size=GLOBAL_BATCH // world_size))
    model = torch.nn.Linear(2, 2)
    result: dict[str, Any] = {}
    batches: Iterator[Any] = iter(())
    if "save" in how:
        batches = iter(loader)
        for _ in islice(batches, STEPS):
            pass
        state: dict[str, Any] = {"model": model.state_dict(), "loader": loader.state_dict()}
        if how == "async_save":
            saving: Any = async_save(state, checkpoint_id=checkpoint)
            saving.result()
        else:
            save(state, checkpoint_id=checkpoint)
    try:
        if how == "load":
            state = {"model": model.state_dict(), "loader": loader.state_dict()}
            load(state, checkpoint_id=checkpoint)
            loader.load_state_dict(state["loader"])
        elif how == "load_stateful":
            load({"loader": loader}, checkpoint_id=checkpoint)
    except PlanError as error:
        result["error"] = str(error)
    else:
        result["position"] = loader.epoch, loader.step
        result["batches"] = [batch["__key__"] for batch in (batches if "save" in how else loader)]
    (results / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    sources, names, checkpoint, how, results = sys.argv[1:]
    main(Path(sources), names, checkpoint, how, Path(results))
