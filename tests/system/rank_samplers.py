"""What one rank of `test_samplers_on_ranks.py` does: two epochs of each sampler through loaders with persistent workers.

Rank 0 writes to the file it is given: for each sampler and epoch, the batches of every rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, RandomSampler, Sampler, WeightedRandomSampler

import equitar
from equitar.ranks import let_collectives_end

SIZES = {"coco": 150, "lvis": 61}
LABELS = {"coco": [[0]] * 150, "lvis": [[0, 1] if row < 5 else [0] for row in range(61)]}


def loaders() -> dict[str, DataLoader[Any]]:
    rows: Any = list(range(sum(SIZES.values())))
    labels = {
        name: equitar.samplers.LabelRows.of_sets(sets, classes=["common", "rare"]) for name, sets in LABELS.items()
    }
    torch.manual_seed(distributed.get_rank())  # seeded apart, as training scripts do
    workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    repeats = equitar.RepeatFactorSampler(SIZES, 0.3, labels=labels, batch_size=4)
    wrapped = {
        "random": equitar.DistributedSamplerWrapper(RandomSampler(rows), seed=1),
        "weighted": equitar.DistributedSamplerWrapper(WeightedRandomSampler([1.0 + row for row in rows], 500), seed=1),
    }
    return {
        "debiased": DataLoader(rows, batch_sampler=equitar.DebiasedBatchSampler(SIZES, batch_size=4), **workers),
        "both": DataLoader(
            rows,
            batch_sampler=equitar.DebiasedBatchSampler(SIZES, batch_size=4, repeat=0.3, labels=labels),
            **workers,
        ),
        "repeats": DataLoader(rows, batch_size=4, sampler=repeats, **workers),
        **{name: DataLoader(rows, batch_size=5, sampler=sampler, **workers) for name, sampler in wrapped.items()},
    }


class Own(Sampler[int]):
    """Draws something else on every rank."""

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        return iter([distributed.get_rank()] * 4)


def refusals() -> list[str]:
    """Return what is said to ranks that differ."""
    others: list[Sampler[Any]] = [
        equitar.DistributedSamplerWrapper(Own()),
        equitar.RepeatFactorSampler({"a": 90 + distributed.get_rank()}, None),
        equitar.DebiasedBatchSampler({"a": 90}, batch_size=2, seed=distributed.get_rank()),
    ]
    return [refusal(sampler) for sampler in others]


def refusal(sampler: Sampler[Any]) -> str:
    try:
        list(sampler)
    except equitar.errors.PlanError as error:
        return str(error)
    return "nothing"


def main() -> None:
    distributed.init_process_group("gloo")
    batches: dict[str, list[Any]] = {}
    for name, loader in loaders().items():
        batches[name] = []
        for _ in range(2):
            mine = [batch.tolist() for batch in loader]
            assert len(mine) == len(loader)
            everywhere: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(everywhere, mine)
            let_collectives_end()  # the next loader forks
            batches[name].append(everywhere)
    batches["refusals"] = refusals()
    if distributed.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(batches))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
