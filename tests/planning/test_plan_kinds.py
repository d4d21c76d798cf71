"""Batches of one source each, and of all sources by share: the promises that are the same for both."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import Case, by_rank, drawn, emitted, feasible_cases, read

EPOCHS = st.integers(0, 6)
EITHER = feasible_cases("debiased") | feasible_cases("mixed")


@drawn(27)
@given(EITHER, EPOCHS)
def test_every_batch_has_exactly_batch_size_samples_that_exist_and_are_selected(case: Case, epoch: int) -> None:
    plan = case.plan(epoch)
    shards = {stock.name: stock.shards for stock in case.stocks}
    for step in range(plan.num_steps):
        for batch in by_rank(plan, case, step):
            assert len(batch) == case.batch_size
            assert all(item.row >= 0 and shards[item.name][item.shard][item.row] > 0 for item in batch)


@drawn(43)
@given(EITHER, EPOCHS)
def test_no_sample_comes_twice_in_a_global_batch(case: Case, epoch: int) -> None:
    for batch in emitted(case.plan(epoch), case):
        assert len({item.sample for item in batch}) == len(batch) == case.global_batch


@drawn(16)
@given(EITHER, EPOCHS, st.randoms(use_true_random=False))
def test_a_step_asked_alone_and_in_any_order_is_that_of_the_whole_epoch(case: Case, epoch: int, random: Random) -> None:
    in_order = emitted(case.plan(epoch), case)
    steps = list(range(len(in_order)))
    random.shuffle(steps)
    again = case.plan(epoch)
    for step, batch in zip(steps, emitted(again, case, steps), strict=True):
        assert batch == in_order[step]
    for step in steps[:3]:
        assert emitted(case.plan(epoch), case, [step]) == [in_order[step]]


@drawn(22)
@given(EITHER, EPOCHS, st.data())
def test_other_worlds_of_the_same_global_batch_read_the_same_global_batches(
    case: Case, epoch: int, data: st.DataObject
) -> None:
    plan = case.plan(epoch)
    size = case.global_batch
    ranks = data.draw(st.sampled_from([divisor for divisor in range(1, size + 1) if size % divisor == 0]))
    for step, batch in enumerate(emitted(plan, case)):
        parts = [read(plan, step, rank * size // ranks, (rank + 1) * size // ranks) for rank in range(ranks)]
        assert [item for part in parts for item in part] == batch


@drawn(20)
@given(EITHER, EPOCHS, st.data())
def test_the_order_in_which_sources_are_listed_changes_nothing(case: Case, epoch: int, data: st.DataObject) -> None:
    other = replace(case, stocks=tuple(data.draw(st.permutations(case.stocks))))
    assert case.plan(epoch).digest == other.plan(epoch).digest
    assert emitted(case.plan(epoch), case) == emitted(other.plan(epoch), other)
