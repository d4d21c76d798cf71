"""Do samplers keep the promises of the plan? Drawn datasets, worlds, weights and repeats, held against plain counting."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from equitar.errors import PlanError
from equitar.planning.repeat_factors import ONE
from equitar.samplers.distributed import DistributedSamplerWrapper, Ragged
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler
from helpers.strategies import Case, Stock, cases, drawn, feasible_cases


def factors_of(stock: Stock) -> list[int]:
    return [factor for shard in stock.shards for factor in shard]


def lengths_of(case: Case) -> dict[str, int]:
    return {stock.name: len(factors_of(stock)) for stock in reversed(case.stocks)}  # not in the order of the names


def repeats_of(case: Case) -> Callable[[str], list[float]]:
    factors = {stock.name: [factor / ONE for factor in factors_of(stock)] for stock in case.stocks}
    return factors.__getitem__


def name_of(case: Case, index: int) -> str:
    lengths = lengths_of(case)
    return list(lengths)[bisect_right(list(accumulate(lengths.values())), index)]


def debiased(case: Case, rank: int) -> DebiasedBatchSampler:
    return DebiasedBatchSampler(
        lengths_of(case),
        batch_size=case.batch_size,
        repeat=repeats_of(case),
        weights=case.weights,
        steps=case.steps,
        same_source_across=case.same_source_across,
        seed=case.seed,
        shuffle=case.shuffle if case.workers % 2 else None,
        rank=rank,
        world_size=case.world_size,
    )


def repeating(case: Case, rank: int) -> RepeatFactorSampler:
    assert not isinstance(case.weights, Sequence)
    return RepeatFactorSampler(
        lengths_of(case),
        repeats_of(case),
        batch_size=case.batch_size,
        weights=case.weights,
        steps=case.steps,
        seed=case.seed,
        shuffle=case.shuffle if case.workers % 2 else None,
        rank=rank,
        world_size=case.world_size,
    )


def check_counts(case: Case, emitted: list[int]) -> None:
    """Each sample as often as its factor says: rounded, and apart from at most a global batch left over."""
    quota, counts = case.quota(), Counter(emitted)
    first = 0
    for stock in reversed(case.stocks):
        factors = factors_of(stock)
        mine = [counts[first + row] for row in range(len(factors))]
        assert sum(mine) == quota[stock.name]
        if case.steps is None and case.weights is None:
            assert all(have <= ceil(factor / ONE) for have, factor in zip(mine, factors, strict=True))
            missing = sum(max(0, floor(factor / ONE) - have) for have, factor in zip(mine, factors, strict=True))
            assert missing <= case.global_batch
        first += len(factors)


@drawn(60)
@given(case=feasible_cases("debiased"), epoch=st.integers(0, 5))
def test_every_global_batch_is_of_one_dataset_and_holds_no_sample_twice(case: Case, epoch: int) -> None:
    ranks = [debiased(case, rank) for rank in range(case.world_size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    columns = [list(sampler) for sampler in ranks]
    assert {len(column) for column in columns} == {len(sampler) for sampler in ranks} == {len(ranks[0])}
    names = ranks[-1].sources(epoch)
    of_shards = case.plan(epoch)
    drawn_sources = of_shards.sources(0)
    assert drawn_sources is not None
    assert names == [of_shards.names[source] for source in drawn_sources.tolist()], (
        "shards of these sizes draw the same sources"
    )
    for name, batches in zip(names, zip(*columns, strict=True), strict=True):
        whole = [index for batch in batches for index in batch]
        assert [len(batch) for batch in batches] == [case.batch_size] * case.world_size
        assert len(set(whole)) == len(whole)
        assert {name_of(case, index) for index in whole} == {name}
    check_counts(case, [index for column in columns for batch in column for index in batch])


@drawn(40)
@given(case=feasible_cases("mixed"), epoch=st.integers(0, 3))
def test_repeats_come_by_their_factors_and_never_twice_in_a_global_batch(case: Case, epoch: int) -> None:
    ranks = [repeating(case, rank) for rank in range(case.world_size)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    columns = [list(sampler) for sampler in ranks]
    assert {len(column) for column in columns} == {len(ranks[0])}
    for first in range(0, len(ranks[0]), case.batch_size):
        whole = [index for column in columns for index in column[first : first + case.batch_size]]
        assert len(set(whole)) == len(whole) == case.global_batch
    check_counts(case, [index for column in columns for index in column])


@drawn(60)
@given(case=(cases("debiased") | cases("mixed")).filter(lambda case: any(stock.total for stock in case.stocks)))
def test_what_cannot_be_planned_is_an_error_before_the_first_step(case: Case) -> None:
    sampler = debiased(case, 0) if case.kind == "debiased" else repeating(case, 0)
    if case.is_feasible():
        assert len(sampler) > 0
    else:
        with pytest.raises(PlanError):
            iter(sampler)


@drawn(30)
@given(case=feasible_cases("debiased"), part=st.floats(0, 1), splits=st.sampled_from([1, 2, 3]))
def test_a_resumed_epoch_gives_what_remained_on_any_number_of_ranks(case: Case, part: float, splits: int) -> None:
    whole = [list(debiased(case, rank)) for rank in range(case.world_size)]
    first = debiased(case, 0)
    steps = round(part * len(first))
    for _, _ in zip(range(steps), first, strict=False):
        pass
    state = first.state_dict(steps)
    before = [[index for batch in step for index in batch] for step in zip(*whole, strict=True)]
    world_size = next(size for size in (splits, 1) if case.global_batch % size == 0)
    after = []
    for rank in range(world_size):
        again = DebiasedBatchSampler(
            lengths_of(case),
            batch_size=case.global_batch // world_size,
            repeat=repeats_of(case),
            weights=case.weights,
            steps=case.steps,
            seed=case.seed,
            shuffle=case.shuffle if case.workers % 2 else None,
            rank=rank,
            world_size=world_size,
        )
        again.load_state_dict(state)
        after.append(list(again))
    if steps < len(first):
        assert [[index for batch in step for index in batch] for step in zip(*after, strict=True)] == before[steps:]
    assert first.state_dict(len(first))["epoch"] == 1


WRAPPED = ("random", "generator", "weighted", "subset", "batches", "numpy")


class FromNumpy(Sampler[int]):
    """Draws from numpy's global generator, as users do."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.length).tolist())  # noqa: NPY002


def wrapped(kind: str, length: int) -> Any:
    data = range(length)
    if kind == "generator":
        return RandomSampler(data, generator=torch.Generator())
    if kind == "weighted":
        return WeightedRandomSampler([1.0 + index for index in data], 2 * length, replacement=True)
    if kind == "subset":
        return SubsetRandomSampler(range(0, length, 2))
    if kind == "batches":
        return BatchSampler(RandomSampler(data, generator=torch.Generator()), 3, drop_last=False)
    return FromNumpy(length) if kind == "numpy" else RandomSampler(data)


@drawn(80)
@given(
    kind=st.sampled_from(WRAPPED),
    length=st.integers(1, 40),
    world_size=st.integers(1, 5),
    ragged=st.sampled_from(["pad", "drop", "keep"]),
    seed=st.integers(0, 1 << 40),
)
def test_shares_over_ranks_are_one_draw(kind: str, length: int, world_size: int, ragged: Ragged, seed: int) -> None:
    epochs = []
    for epoch in range(2):
        shares = []
        for rank in range(world_size):
            torch.manual_seed(rank)  # ranks are seeded apart in practice
            sampler = wrapped(kind, length)
            wrapper = DistributedSamplerWrapper(sampler, seed=seed, ragged=ragged, rank=rank, world_size=world_size)
            wrapper.set_epoch(epoch)
            shares.append(list(wrapper))
            assert len(wrapper) == len(shares[-1])
        assert len({len(share) for share in shares}) == 1 or ragged == "keep"
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        longest = max(map(len, shares))
        union = [share[step] for step in range(longest) for share in shares if step < len(share)]
        draw_length = len(wrapped(kind, length))
        draw = union[:draw_length]
        if ragged == "pad":
            assert union[draw_length:] == (draw * world_size)[: len(union) - draw_length]
        assert draw_length - len(draw) < world_size if ragged == "drop" else len(draw) == draw_length
        if kind in ("random", "generator", "numpy") and ragged != "drop":
            assert sorted(draw) == list(range(length))
        epochs.append(draw)
    if length > 12 and kind != "batches":
        assert epochs[0] != epochs[1]
