"""One rank of a world: resumes from states of other worlds, writes down states of its own, and meets the others at every step.

Started by torchrun as ``elastic.py SOURCES RESULTS JOBS``. JOBS is a JSON list; every job is one Loader: its workers, the state it
goes on from (a name below RESULTS, or none), the steps it takes, and the name under which its batches and state are kept.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist

import equitar
from helpers.shards import Drops

GLOBAL_BATCH = 12


class Job(TypedDict):
    """What one Loader is to do."""

    name: str
    workers: int
    resume: str | None
    steps: int | None  # None: to the end of the epoch
    epochs: int
    persistent: bool  # whether workers are
    kill: bool  # the last rank kills itself after these steps


def batches_of(sources: Path) -> equitar.Batches:
    listed = [
        equitar.Source(folder.name, str(folder / "*.tar"), root=str(folder)) for folder in sorted(sources.iterdir())
    ]
    batch_size = GLOBAL_BATCH // dist.get_world_size()
    return equitar.debiased(listed, batch_size=batch_size, repeat=0.3, shuffle=40, stages=[Drops(3)])


def met(loader: equitar.Loader, steps: int | None) -> list[Any]:
    """Return the batches of some steps; all ranks are at each of them, or the run breaks."""
    given = []
    for batch in islice(loader, steps):
        number = torch.tensor([float(batch["__step__"])])
        dist.all_reduce(number)
        assert number.item() == batch["__step__"] * dist.get_world_size()
        given.append(batch)
    return given


def run(job: Job, batches: equitar.Batches, results: Path) -> None:
    rank = dist.get_rank()
    loader = equitar.Loader(batches, num_workers=job["workers"], persistent_workers=job["persistent"])
    if job["resume"] is not None:
        loader.load_state_dict(json.loads((results / f"{job['resume']}.state").read_text(encoding="utf-8")))
    given = [batch for _ in range(job["epochs"]) for batch in met(loader, job["steps"])]
    if job["steps"] is not None and rank == 0:
        (results / f"{job['name']}.state").write_text(json.dumps(loader.state_dict()), encoding="utf-8")
    dist.barrier()
    if job["kill"] and rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    (results / f"{job['name']}.{rank}").write_bytes(pickle.dumps(given))


def main() -> None:
    sources, results = Path(sys.argv[1]), Path(sys.argv[2])
    jobs: list[Job] = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for job in jobs:
        run(job, batches_of(sources), results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
