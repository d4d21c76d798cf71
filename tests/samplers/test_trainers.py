"""Samplers under trainers: whoever would share them out again is refused, and breaking off epoch after epoch is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler

from equitar.errors import PlanError
from equitar.samplers.distributed import DistributedSamplerWrapper
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler

ROWS: Any = list(range(120))
SIZES = {"a": 90, "b": 30}


def of_samples(world_size: int) -> Sampler[int]:
    return RepeatFactorSampler(SIZES, None, rank=0, world_size=world_size)


def of_batches(world_size: int) -> Sampler[list[int]]:
    return DebiasedBatchSampler(SIZES, batch_size=5, rank=0, world_size=world_size)


def wrapped(world_size: int) -> Sampler[int]:
    return DistributedSamplerWrapper(RandomSampler(ROWS), rank=0, world_size=world_size)


KINDS = {"samples": of_samples, "wrapped": wrapped, "batches": of_batches}


def loader_of(sampler: Sampler[Any], num_workers: int = 0) -> DataLoader[Any]:
    if isinstance(sampler, DebiasedBatchSampler):
        return DataLoader(ROWS, batch_sampler=sampler, num_workers=num_workers)
    return DataLoader(ROWS, batch_size=5, sampler=sampler, num_workers=num_workers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split_batches", [False, True])
def test_accelerate_does_not_share_a_sampler_out_again(kind: str, split_batches: bool) -> None:
    shard = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    batches: Any = loader_of(KINDS[kind](2)).batch_sampler
    batches.batch_size = 6
    batches = shard(batches, num_processes=2, split_batches=split_batches)
    with pytest.raises(PlanError, match="do not pass the DataLoader to `accelerator"):
        list(batches)


def test_what_accelerate_prepares_is_refused_at_its_first_batch() -> None:
    prepare = pytest.importorskip("accelerate.data_loader").prepare_data_loader
    loader = prepare(loader_of(of_batches(2)), num_processes=2, process_index=1, put_on_device=False)
    with pytest.raises(
        PlanError, match="BatchSamplerShard would share out again what this sampler gives to one of 2 ranks"
    ):
        next(iter(loader))


@pytest.mark.parametrize("kind", ["samples", "wrapped"])
def test_lightning_does_not_share_a_sampler_out_again(kind: str) -> None:
    wrapper = pytest.importorskip("lightning.fabric.utilities.distributed").DistributedSamplerWrapper
    with pytest.raises(PlanError, match="set `use_distributed_sampler=False`"):
        list(wrapper(KINDS[kind](2), num_replicas=2, rank=0))


class Proxy(DistributedSampler[Any]):
    """Shares a sampler out as ignite does."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler, num_replicas=2, rank=0)
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(list(self.sampler)), 0, None, 2)


def test_other_distributed_samplers_are_refused_by_what_they_are() -> None:
    with pytest.raises(PlanError, match=r"Proxy would share out again .* or do not wrap it"):
        list(Proxy(of_samples(2)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_for_one_rank_may_be_shared_out_by_a_trainer(kind: str) -> None:
    shard = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    shares = [list(shard(loader_of(KINDS[kind](1)).batch_sampler, 2, rank)) for rank in range(2)]
    assert sorted(row for share in shares for batch in share for row in batch) == ROWS


# ---- Passes that are broken off -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_third_pass_that_ends_at_the_same_item_warns(kind: str, num_workers: int) -> None:
    sampler = KINDS[kind](1)
    loader = loader_of(sampler, num_workers)
    for _ in range(3):
        list(islice(loader, 4))
    with pytest.warns(UserWarning, match="begins the same epoch again; give it `steps=`, or call its `set_epoch`"):
        list(islice(loader, 4))
    list(islice(loader, 4))  # once


@pytest.mark.parametrize("between", [lambda sampler: sampler.set_epoch(1), list], ids=["set_epoch", "a whole pass"])
def test_passes_that_are_not_a_habit_do_not_warn(between: Callable[[Any], object]) -> None:
    sampler = of_batches(1)
    for _ in range(3):
        list(islice(sampler, 4))
        between(sampler)
    list(islice(sampler, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_state_was_loaded_its_epoch_can_be_named_without_losing_the_place(kind: str) -> None:
    whole, sampler, again = (KINDS[kind](1) for _ in range(3))
    expected = list(whole)
    list(islice(sampler, 7))
    again.load_state_dict(sampler.state_dict())  # type: ignore[attr-defined]
    again.set_epoch(0)  # type: ignore[attr-defined]  # as SetEpoch of Lightning does
    assert list(again) == expected[7:]
    again.set_epoch(0)  # type: ignore[attr-defined]
    assert list(again) == expected


@pytest.mark.filterwarnings("ignore::FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(lightning|torchmetrics)")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_nested", [False, True])
def test_set_epoch_of_lightning_reaches_samplers(
    kind: str,
    num_workers: int,
    is_nested: bool,
    tmp_path: Path,
) -> None:
    pytest.importorskip("lightning")
    from equitar.lightning import SetEpoch
    from system.lightning_run import Net as Module
    from system.lightning_run import quiet_trainer

    class Rows(Module):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            rows = batch["rows"] if is_nested else batch
            self.seen.append((self.current_epoch, index, rows.tolist()))
            return (self.weight**2).sum()

    sampler = KINDS[kind](1)
    loader = loader_of(sampler, num_workers)
    net = Rows()
    trainer = quiet_trainer(tmp_path, [SetEpoch()], limit_train_batches=4, enable_checkpointing=False)
    trainer.fit(net, {"rows": loader} if is_nested else loader)
    alone: Any = KINDS[kind](1)
    expected = []
    for epoch in range(3):
        alone.set_epoch(epoch)
        batches = alone if kind == "batches" else torch.utils.data.BatchSampler(alone, 5, drop_last=False)
        expected += [(epoch, index, batch) for index, batch in enumerate(islice(batches, 4))]
    assert net.seen == expected
