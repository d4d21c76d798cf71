"""Samplers in ordinary loaders: epochs, states, labels, errors."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from equitar.errors import PlanError
from equitar.planning.repeat_factors import RepeatFactor
from equitar.samplers.label_rows import LabelRows
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler

Both = DebiasedBatchSampler | RepeatFactorSampler


class Boxes(Dataset[tuple[str, int]]):
    """A detection dataset with labels."""

    def __init__(self, name: str, labels: list[list[int]]) -> None:
        self.name, self.labels = name, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.name, index

    def label_presence(self) -> LabelRows:
        return LabelRows.of_sets(self.labels)


def boxes(name: str, size: int, rare: int = 4) -> Boxes:
    return Boxes(name, [[0, 1] if row < rare else [0] for row in range(size)])


def samplers(**changes: Any) -> list[Both]:
    place = {"rank": 0, "world_size": 1, **changes}
    return [
        DebiasedBatchSampler({"a": 80, "b": 48}, batch_size=8, **place),
        RepeatFactorSampler(boxes("a", 60), 0.2, **place),
        RepeatFactorSampler(boxes("a", 60), 0.2, batch_size=4, **place),
    ]


def test_a_loader_gives_batches_of_one_part_of_a_concatenation() -> None:
    parts = [boxes("coco", 64), boxes("lvis", 40)]
    whole: ConcatDataset[tuple[str, int]] = ConcatDataset(parts)
    sampler = DebiasedBatchSampler(whole, batch_size=8, names=["coco", "lvis"], rank=0, world_size=1)
    loader = DataLoader(whole, batch_sampler=sampler, num_workers=2)
    names = [set(batch[0]) for batch in loader]
    assert names == [{name} for name in sampler.sources(0)]
    assert Counter(sampler.sources(0)) == {"coco": 8, "lvis": 5}
    assert len(loader) == 13


def test_both_at_once() -> None:
    parts = [boxes("coco", 64), boxes("lvis", 40)]
    whole: ConcatDataset[tuple[str, int]] = ConcatDataset(parts)
    sampler = DebiasedBatchSampler(whole, batch_size=4, repeat=RepeatFactor(0.25, cap=3), rank=0, world_size=1)
    batches = list(DataLoader(whole, batch_sampler=sampler))
    assert all(len(set(batch[0])) == 1 and len(set(batch[1].tolist())) == 4 for batch in batches)
    rare = Counter((name, row) for batch in batches for name, row in zip(batch[0], batch[1].tolist(), strict=True))
    assert {rare["coco", row] for row in range(4)} == {2}
    assert {rare["lvis", row] for row in range(4)} <= {1, 2}


def test_a_loader_repeats_rare_samples() -> None:
    data = boxes("lvis", 60)
    loader = DataLoader(data, batch_size=4, sampler=RepeatFactorSampler(data, 0.6, batch_size=4, rank=0, world_size=1))
    batches = [rows.tolist() for _, rows in loader]
    counts = Counter(row for rows in batches for row in rows)
    assert {counts[row] for row in range(4)} == {3}
    assert all(len(set(rows)) == 4 for rows in batches)


def test_a_dataset_sorted_by_class_comes_mixed_at_once() -> None:
    sampler = RepeatFactorSampler({"sorted": 10_000}, None, rank=0, world_size=2)
    assert len({index // 1000 for index in islice(sampler, 100)}) == 10


def test_with_a_number_to_shuffle_neighbours_stay_near() -> None:
    sampler = RepeatFactorSampler({"sorted": 10_000}, None, shuffle=50, rank=0, world_size=2)
    indices = np.array(list(islice(sampler, 50)))
    assert np.unique(indices // 100).size <= 3


@pytest.mark.parametrize("kind", range(3))
def test_the_epoch_advances_with_the_last_item(kind: int) -> None:
    sampler = samplers()[kind]
    first, second = list(sampler), list(islice(sampler, len(sampler)))
    third = list(sampler)
    assert len({str(order) for order in (first, second, third)}) == 3
    for epoch, passed in enumerate((first, second, third)):
        sampler.set_epoch(epoch)
        assert list(sampler) == passed


@pytest.mark.parametrize("kind", range(3))
def test_a_pass_that_is_broken_off_starts_again(kind: int) -> None:
    sampler = samplers()[kind]
    begun = list(islice(sampler, 3))
    assert list(sampler)[:3] == begun


@pytest.mark.parametrize("kind", range(3))
def test_set_epoch_counts_from_the_next_iterator(kind: int) -> None:
    sampler, other = samplers()[kind], samplers()[kind]
    under_way = iter(sampler)
    begun = [next(under_way)]
    sampler.set_epoch(7)
    other_first = list(other)
    assert begun + list(under_way) == other_first
    other.set_epoch(7)
    assert list(sampler) == list(other)


@pytest.mark.parametrize("kind", range(3))
def test_a_run_goes_on_where_its_state_says(kind: int) -> None:
    sampler, other = samplers()[kind], samplers()[kind]
    whole = [list(other), list(other)]
    list(islice(sampler, 9))  # a loader's workers took two more than were trained on
    state = pickle.loads(pickle.dumps(sampler.state_dict(7)))
    resumed = samplers()[kind]
    resumed.load_state_dict(state)
    assert list(resumed) == whole[0][7:]
    assert list(resumed) == whole[1]
    assert sampler.state_dict()["given"] == 9
    resumed.load_state_dict(state)
    list(islice(resumed, 1))
    assert resumed.state_dict(1)["given"] == 8  # counted from where it went on


@pytest.mark.parametrize("kind", range(3))
def test_a_state_of_something_else_is_refused(kind: int) -> None:
    state = samplers()[kind].state_dict()
    with pytest.raises(PlanError, match="other datasets, labels, seed or arguments"):
        samplers(seed=1)[kind].load_state_dict(state)
    with pytest.raises(PlanError, match="same global batch"):
        samplers(world_size=2)[kind].load_state_dict(state)
    with pytest.raises(PlanError, match="version 1; got 2"):
        samplers()[kind].load_state_dict({**state, "version": 2})


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", range(3))
def test_torchdata_resumes_them_although_workers_run_ahead(kind: int, num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        sampler = samplers()[kind]
        how = (
            {"batch_sampler": sampler}
            if isinstance(sampler, DebiasedBatchSampler)
            else {"sampler": sampler, "batch_size": 4}
        )
        return stateful.StatefulDataLoader(list(range(128)), num_workers=num_workers, **how)

    first, resumed = loader(), loader()
    whole = loader()
    epochs = [[batch.tolist() for batch in whole] for _ in range(2)]
    begun = [batch.tolist() for _, batch in zip(range(5), first, strict=False)]
    resumed.load_state_dict(first.state_dict())
    assert begun + [batch.tolist() for batch in resumed] == epochs[0]
    assert [batch.tolist() for batch in resumed] == epochs[1]


def test_single_samples_resume_on_other_ranks_between_steps() -> None:
    def sampler(rank: int, world_size: int) -> RepeatFactorSampler:
        data, batch_size = boxes("a", 64), 8 // world_size
        return RepeatFactorSampler(data, 0.2, batch_size=batch_size, rank=rank, world_size=world_size)

    alone = sampler(0, 1)
    whole = list(alone)
    alone.set_epoch(0)
    list(islice(alone, 16))
    shares = []
    for rank in range(4):
        share = sampler(rank, 4)
        share.load_state_dict(alone.state_dict())
        shares.append(list(share))
    rebuilt: list[int] = []
    for first in range(0, len(shares[0]), 2):
        rebuilt += [index for share in shares for index in share[first : first + 2]]
    assert rebuilt == whole[16:]
    list(islice(alone, 3))
    with pytest.raises(PlanError, match="between steps of 8 samples"):
        sampler(0, 4).load_state_dict(alone.state_dict())


@pytest.mark.parametrize("kind", range(3))
def test_samplers_pickle_and_go_on(kind: int) -> None:
    sampler = samplers()[kind]
    len(sampler)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


@pytest.mark.parametrize("kind", range(3))
def test_no_global_generator_is_touched(kind: int) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    list(samplers()[kind])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002


def test_labels_beside_the_datasets_and_functions_repeat_alike() -> None:
    labels = boxes("a", 60).label_presence()
    by_labels = RepeatFactorSampler({"a": 60}, 0.2, labels={"a": labels}, rank=0, world_size=1)
    factors = [max(1, (0.2 / (4 / 60)) ** 0.5) if row < 4 else 1 for row in range(60)]
    by_function = RepeatFactorSampler({"a": 60}, {"a": factors}.__getitem__, rank=0, world_size=1)
    assert list(by_labels) == list(by_function)


def test_labels_of_a_single_dataset_need_no_name() -> None:
    labels = boxes("a", 60).label_presence()
    alone = RepeatFactorSampler(range(60), 0.2, labels=labels, rank=0, world_size=1)
    named = RepeatFactorSampler(range(60), 0.2, labels={"0": labels}, rank=0, world_size=1)
    assert list(alone) == list(named)
    assert len(alone) > 60


def test_epochs_shorter_than_a_pass_go_on_along_it() -> None:
    sampler = DebiasedBatchSampler({"a": 80}, batch_size=8, steps=5, rank=0, world_size=1)
    seen = [index for _ in range(2) for batch in sampler for index in batch]
    assert sorted(seen) == list(range(80))


def test_a_dataset_without_a_batch_is_an_error_or_left_out() -> None:
    sizes = {"a": 100, "b": 40, "c": 7}
    with pytest.raises(PlanError, match=r"source 'c' has 7 samples but one global batch needs 8 .*lower `batch_size`"):
        len(DebiasedBatchSampler(sizes, batch_size=8, rank=0, world_size=1))
    sampler = DebiasedBatchSampler(sizes, batch_size=8, small_sources="leave_out", rank=0, world_size=1)
    assert Counter(sampler.sources(0)) == {"a": 12, "b": 5}
    assert [(account.name, account.remainder) for account in sampler.account()] == [("a", 4), ("b", 0)]


def test_steps_of_an_accumulation_hold_one_dataset() -> None:
    sampler = DebiasedBatchSampler({"a": 64, "b": 64}, batch_size=4, accumulation_steps=4, rank=0, world_size=1)
    names = sampler.sources(0)
    assert all(len(set(names[first : first + 4])) == 1 for first in range(0, len(names), 4))
    batches = list(sampler)
    assert all(
        len({i for batch in batches[first : first + 4] for i in batch}) == 16 for first in range(0, len(names), 4)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RepeatFactorSampler({"a": 9}, 0.1), "source 'a' has none; give its dataset a `label_presence`"),
        (
            lambda: RepeatFactorSampler({"a": 9}, 0.1, labels={"a": LabelRows.of_sets([[0]])}),
            "source 'a' has 9 samples and 1 rows",
        ),
        (
            lambda: RepeatFactorSampler({"a": 1, "b": 1}, 0.1, labels=LabelRows.of_sets([[0]])),
            "`labels` must map names to labels, as there are 2 datasets",
        ),
        (lambda: RepeatFactorSampler({"a": 2}, lambda _: [1.0, -1.0]), "source 'a'; got numbers down to -1.0"),
        (lambda: RepeatFactorSampler({"a": 2}, lambda _: [1.0]), r"source 'a'; got shape \(1,\)"),
        (
            lambda: RepeatFactorSampler(boxes("a", 9), 0.1, rank=1),
            "`rank` and `world_size` go together; got 1 and None",
        ),
        (lambda: RepeatFactorSampler({"a": 9}, None, rank=2, world_size=2), r"`rank` must be in \[0, 2\); got 2"),
        (lambda: RepeatFactorSampler({"a": 9}, None, rank=-1, world_size=2), "`rank` .* got -1"),
        (lambda: DebiasedBatchSampler({"a": 9}, batch_size=2, rank=0, world_size=0), "`world_size` .* got 0"),
        (lambda: DebiasedBatchSampler({"a": 9}, batch_size=2, seed=1.5), "`seed` .* got 1.5"),  # type: ignore[arg-type]
        (lambda: DebiasedBatchSampler({"a": 9}, batch_size=2, names=["a"]), "`names` must be left out"),
        (
            lambda: DebiasedBatchSampler(boxes("a", 9), batch_size=2, names=["a", "b"]),
            "`names` must be 1 different names",
        ),
        (lambda: len(DebiasedBatchSampler({"a": 9}, batch_size=0, rank=0, world_size=1)), "`batch_size` .* got 0"),
        (lambda: len(DebiasedBatchSampler({}, batch_size=1, rank=0, world_size=1)), "at least one source"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def test_an_epoch_has_at_least_one_sample_for_each_rank() -> None:
    shares = [list(RepeatFactorSampler({"a": 3}, None, rank=rank, world_size=3)) for rank in range(3)]
    assert sorted(index for share in shares for index in share) == [0, 1, 2]
