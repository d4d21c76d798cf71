"""Are partners others, of the same source, each equally often, and the same after resuming?"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equitar
from equitar.errors import PlanError, StageError
from equitar.loading.batches import own_copy
from equitar.loading.collate import partners
from helpers.shards import source_of, write_sources

Batch = list[tuple[str, list[str], float]]


def together(
    sample: dict[str, Any], others: list[dict[str, Any]], rng: np.random.Generator
) -> tuple[str, list[str], float]:
    return sample["__key__"], [partner["__key__"] for partner in others], rng.random()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[equitar.Source]:
    return write_sources(tmp_path_factory.mktemp("sources"), {"a": [30, 50, 20], "b": [40]})


def debiased(sources: list[equitar.Source], **arguments: Any) -> equitar.Batches:
    collate_fn = equitar.stages.with_partners(3, together, collate_fn=list)
    return equitar.debiased(sources, **{"batch_size": 8, "collate_fn": collate_fn, **arguments})


@given(key=st.integers(0, 2**64 - 1), length=st.integers(1, 40), data=st.data())
def test_a_partner_is_another_and_each_is_one_equally_often(key: int, length: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, length - 1))
    indices = partners(key, length, count)
    assert indices.shape == (length, count)
    for place, row in enumerate(indices.tolist()):
        assert place not in row
        assert len(set(row)) == count
    assert Counter(indices.ravel().tolist()) == dict.fromkeys(range(length) if count else (), count)


def test_every_pair_goes_together_about_equally_often() -> None:
    times = np.zeros((6, 6), np.int64)
    for key in range(6000):
        times[np.arange(6)[:, None], partners(key, 6, 2)] += 1
    assert np.diag(times).sum() == 0
    expected = 6000 * 2 / 5
    assert np.abs(times[~np.eye(6, dtype=bool)] - expected).max() < 5 * np.sqrt(expected)


def test_partners_have_the_source_of_the_batch(sources: list[equitar.Source]) -> None:
    batch: Batch
    for batch in debiased(sources):
        keys = {key for key, _, _ in batch}
        assert len({source_of(key) for key, others, _ in batch for key in (key, *others)}) == 1
        assert all(set(others) <= keys - {key} for key, others, _ in batch)
        assert len({drawn for *_, drawn in batch}) == 8  # each sample has draws of its own


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("steps", [1, 6, 16])
def test_partners_and_draws_are_the_same_after_resuming_with_any_number_of_workers(
    num_workers: int, steps: int, sources: list[equitar.Source]
) -> None:
    batches = debiased(sources, plan_workers=2, repeat=0.4)
    whole = list(own_copy(batches))
    loader = equitar.Loader(batches)
    assert list(islice(iter(loader), steps)) == whole[:steps]
    again = equitar.Loader(batches, num_workers=num_workers)
    again.load_state_dict(loader.state_dict())
    assert list(again) == whole[steps:]


def test_another_epoch_or_seed_has_other_partners(sources: list[equitar.Source]) -> None:
    loader = equitar.Loader(debiased(sources))
    first, second = list(loader), list(loader)
    assert first != second
    reseeded = debiased(sources, collate_fn=equitar.stages.with_partners(3, together, collate_fn=list, seed=1))
    other = list(reseeded)
    assert [[key for key, *_ in batch] for batch in other] == [[key for key, *_ in batch] for batch in first]
    assert other != first


def test_with_repeats_all_appear_so_many_times_more_often(sources: list[equitar.Source]) -> None:
    alone: Counter[str] = Counter()
    in_all: Counter[str] = Counter()
    for batch in debiased(sources, repeat=0.4):
        alone.update(key for key, _, _ in batch)
        in_all.update(key for key, others, _ in batch for key in (key, *others))
    assert max(alone.values()) > 1
    assert in_all == {key: 4 * times for key, times in alone.items()}


def test_a_batch_without_enough_others_is_an_error() -> None:
    samples = [{"__key__": str(number)} for number in range(3)]
    with pytest.raises(StageError, match="must have more samples than partners; got 3 for 3"):
        equitar.stages.with_partners(3, together)(samples)
    with pytest.raises(StageError, match="must have `__key__`"):
        equitar.stages.with_partners(1, together)([{"txt": "a"}, {"txt": "b"}])


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_a_count_or_seed_that_is_none_is_refused_before_a_batch_comes(count: Any) -> None:
    with pytest.raises(PlanError, match=f"`count` must be an integer >= 0; got {count}"):
        equitar.stages.with_partners(count, together)
    with pytest.raises(PlanError, match=f"`seed` must be an integer >= 0; got {count}"):
        equitar.stages.with_partners(1, together, seed=count)
