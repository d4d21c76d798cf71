"""Any sampler on many ranks: what is refused, what is restored, and where a run goes on."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from equitar.errors import PlanError
from equitar.samplers.distributed import DistributedSamplerWrapper
from equitar.samplers.samplers import RepeatFactorSampler


def shares(sampler: Any, world_size: int, *, epoch: int = 0, **how: Any) -> list[list[Any]]:
    result = []
    for rank in range(world_size):
        wrapper: DistributedSamplerWrapper[Any] = DistributedSamplerWrapper(
            sampler, rank=rank, world_size=world_size, **how
        )
        wrapper.set_epoch(epoch)
        result.append(list(wrapper))
    return result


@pytest.mark.parametrize(
    ("ragged", "expected"),
    [
        ("pad", [[0, 3, 6], [1, 4, 0], [2, 5, 1]]),
        ("drop", [[0, 3], [1, 4], [2, 5]]),
        ("keep", [[0, 3, 6], [1, 4], [2, 5]]),
    ],
)
def test_the_ragged_end_is_as_the_table_says(ragged: str, expected: list[list[int]]) -> None:
    assert shares(SequentialSampler(range(7)), 3, ragged=ragged) == expected


def test_one_sample_is_enough_for_many_ranks() -> None:
    assert shares(SequentialSampler(range(1)), 3) == [[0], [0], [0]]
    assert shares(SequentialSampler(range(1)), 3, ragged="keep") == [[0], [], []]
    assert shares(SequentialSampler(range(3)), 3) == [[0], [1], [2]]


def test_nothing_drawn_is_nothing_for_all() -> None:
    assert shares(SequentialSampler([]), 2) == [[], []]


def test_weights_hold_over_ranks_and_epochs_differ() -> None:
    weighted = WeightedRandomSampler([1.0] * 50 + [9.0] * 50, 1000)
    first, second = (shares(weighted, 2, epoch=epoch) for epoch in range(2))
    heavy = sum(index >= 50 for share in first for index in share)
    assert 850 < heavy < 950
    assert first != second
    assert first == shares(weighted, 2, epoch=0)


def test_epochs_advance_by_themselves_and_broken_ones_begin_again() -> None:
    sampler = DistributedSamplerWrapper(RandomSampler(range(20)), rank=0, world_size=2)
    passes = [list(islice(sampler, 10)), list(islice(sampler, 4)), list(sampler), list(sampler)]
    assert passes[2][:4] == passes[1]
    assert len({str(drawn) for drawn in (passes[0], passes[2], passes[3])}) == 3
    sampler.set_epoch(0)
    assert list(sampler) == passes[0]


@pytest.mark.parametrize("world_size", [1, 2, 4, 5])
def test_a_run_goes_on_with_what_remained_on_any_number_of_ranks(world_size: int) -> None:
    data = RandomSampler(range(60))
    stopped = DistributedSamplerWrapper(data, rank=1, world_size=4)
    list(islice(stopped, 9))
    state = pickle.loads(pickle.dumps(stopped.state_dict(5)))
    drawn = list(DistributedSamplerWrapper(data, rank=0, world_size=1))
    rest = []
    for rank in range(world_size):
        again = DistributedSamplerWrapper(data, rank=rank, world_size=world_size)
        again.load_state_dict(state)
        rest.append(list(again))
        assert again.state_dict()["epoch"] == 1
    assert [index for step in zip(*rest, strict=True) for index in step] == drawn[20:]


def test_a_state_of_another_draw_is_refused() -> None:
    state = DistributedSamplerWrapper(RandomSampler(range(9)), rank=0, world_size=1).state_dict()
    with pytest.raises(PlanError, match=r"\(1, 0, 8\); got \(1, 0, 9\)"):
        DistributedSamplerWrapper(RandomSampler(range(8)), rank=0, world_size=1).load_state_dict(state)


def test_every_generator_is_as_it_was() -> None:
    generator = torch.Generator().manual_seed(5)
    states = torch.get_rng_state(), generator.get_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    sampler = BatchSampler(RandomSampler(range(30), generator=generator), 4, drop_last=True)
    list(DistributedSamplerWrapper(sampler, rank=0, world_size=2))
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], generator.get_state())
    assert states[2:] == (random.getstate(), str(np.random.get_state()))  # noqa: NPY002


def test_batches_are_shared_as_they_are() -> None:
    sampler = DistributedSamplerWrapper(
        BatchSampler(RandomSampler(range(24)), 3, drop_last=False), rank=1, world_size=2
    )
    loader: DataLoader[Any] = DataLoader(list(range(24)), batch_sampler=sampler, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [4, 4]
    assert epochs[0] != epochs[1]


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Liar(Endless):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Counting(Sampler[int]):
    """Changes with its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch, self.epoch + 4))


def test_the_epoch_reaches_a_sampler_that_counts_it() -> None:
    sampler = DistributedSamplerWrapper(Counting(), rank=1, world_size=2)
    assert [list(sampler) for _ in range(3)] == [[1, 3], [2, 4], [3, 5]]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Endless(), "Endless has none"),
        (
            DistributedSampler(TensorDataset(torch.zeros(4)), num_replicas=2, rank=0),
            "DistributedSampler gives each its share already",
        ),
        (RepeatFactorSampler({"a": 4}, None), "RepeatFactorSampler gives each its share already"),
        (
            DistributedSamplerWrapper(SequentialSampler(range(2))),
            "DistributedSamplerWrapper gives each its share already",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(sampler: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        DistributedSamplerWrapper(sampler)


def test_a_length_that_is_not_kept_is_an_error() -> None:
    with pytest.raises(PlanError, match="Liar says 3 and gave 2 in epoch 0"):
        list(DistributedSamplerWrapper(Liar(), rank=0, world_size=1))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ragged": "cut"}, "got 'cut'"),
        ({"seed": -1}, "got -1"),
        ({"world_size": 2}, "go together; got None and 2"),
        ({"rank": 2, "world_size": 2}, r"`rank` must be in \[0, 2\); got 2"),
        ({"rank": -1, "world_size": 2}, "`rank` must be an integer >= 0; got -1"),
        ({"rank": 0, "world_size": 0}, "`world_size` must be an integer >= 1; got 0"),
    ],
)
def test_wrong_arguments_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        DistributedSamplerWrapper(SequentialSampler(range(2)), **how)


def test_the_multiset_of_a_subset_drawn_twice_over() -> None:
    sampler = SubsetRandomSampler([7, 7, 9, 11])
    assert Counter(index for share in shares(sampler, 2) for index in share) == {7: 2, 9: 1, 11: 1}
