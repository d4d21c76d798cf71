"""Batches of one source each: the promises, over drawn sources, worlds, weights and epochs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from equitar.errors import PlanError
from equitar.planning import schedule
from equitar.planning.repeat_factors import ONE
from equitar.planning.weights import Temperature
from helpers import oracle
from helpers.strategies import (
    PLAIN,
    Case,
    Item,
    Stock,
    by_rank,
    cases,
    drawn,
    emitted,
    feasible_cases,
    made_feasible,
    read,
    refusal,
)

EPOCHS = st.integers(0, 6)


def source_of(batch: Iterable[Item]) -> str:
    (name,) = {item.name for item in batch}
    return name


@drawn(15)
@given(feasible_cases("debiased"), EPOCHS)
def test_every_rank_draws_the_same_source_at_each_step(case: Case, epoch: int) -> None:
    plan = case.plan(epoch)
    for step in range(plan.num_steps):
        assert len({source_of(batch) for batch in by_rank(plan, case, step)}) == 1


@drawn(60)
@given(feasible_cases("debiased"), EPOCHS, st.integers(0, 5))
def test_the_number_of_steps_is_known_and_the_same_for_any_workers_and_epoch(
    case: Case, epoch: int, workers: int
) -> None:
    num_steps = sum(sum(part.quotas) for part in case.stretches())
    assert case.plan(0).num_steps == num_steps
    assert replace(case, workers=workers).plan(epoch).num_steps == num_steps
    assert case.steps is None or num_steps == case.steps


@drawn(20)
@given(feasible_cases("debiased"), EPOCHS, st.sampled_from([2, 5, 16, schedule.STEPS_PER_BLOCK]))
def test_each_source_is_drawn_as_often_as_its_share_says(case: Case, epoch: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "STEPS_PER_BLOCK", block)
        plan = case.plan(epoch)
        sources = plan.sources(0)
        assert sources is not None
        for part in case.stretches():
            stop = part.start + sum(part.quotas)
            counts = np.bincount(sources[part.start : stop], minlength=len(case.stocks))
            assert counts.tolist() == part.quotas
            for first in range(part.start, stop, block):  # what is owed so far is paid block by block
                counts = np.bincount(sources[part.start : first], minlength=len(case.stocks))
                assert counts.tolist() == oracle.spread_out(part.quotas, first - part.start)
        for step in range(0, plan.num_steps, 7):
            assert source_of(read(plan, step, 0, 1)) == plan.names[sources[step]]


@drawn(15)
@given(feasible_cases("debiased"), st.sampled_from([2, 5, 16]))
def test_blocks_of_the_schedule_leave_no_seam(case: Case, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "STEPS_PER_BLOCK", block)
        batches = emitted(case.plan(), case)
    assert all(len({item.sample for item in batch}) == case.global_batch for batch in batches)
    check_copies(case, batches, epoch=0)


def check_copies(case: Case, batches: list[list[Item]], epoch: int) -> None:
    """Check the copies of an epoch against the repeats of its samples, segment by segment."""
    quota, most = case.quota(), case.most()
    of_source: dict[str, list[list[Item]]] = {stock.name: [] for stock in case.stocks}
    for batch in batches:
        of_source[source_of(batch)].append(batch)
    for stock in case.stocks:
        mine = of_source[stock.name]
        assert len(mine) * case.global_batch == quota[stock.name]
        if not mine:
            continue
        per_pass = case.in_pass(stock) // case.global_batch
        passes = oracle.passes_of(stock.total, max(quota[stock.name], case.in_pass(stock)))
        for _, _, num_batches in oracle.walk(
            epoch, per_pass=per_pass, per_epoch=len(mine), most=max(1, most[stock.name])
        ):
            items = [item for batch in mine[:num_batches] for item in batch]
            mine = mine[num_batches:]
            assert len(set(items)) == len(items)  # no copy comes twice in a pass
            counts = Counter(item.sample for item in items)
            for (_, shard, row), count in counts.items():
                assert count <= oracle.bounds(stock.shards[shard][row], passes)[1]
            missing = sum(
                max(0, oracle.bounds(factor, passes)[0] - counts[stock.name, shard, row])
                for shard, rows in enumerate(stock.shards)
                for row, factor in enumerate(rows)
            )
            if num_batches >= per_pass:
                assert missing <= case.global_batch


@drawn(20)
@given(feasible_cases("debiased"), EPOCHS)
def test_each_sample_comes_as_often_as_its_repeats_say_apart_from_a_global_batch(case: Case, epoch: int) -> None:
    check_copies(case, emitted(case.plan(epoch), case), epoch)


@drawn(150)
@given(cases("debiased"), EPOCHS)
def test_a_plan_is_feasible_exactly_if_no_sample_has_more_copies_than_its_source_has_steps(
    case: Case, epoch: int
) -> None:
    feasible, refused = case.is_feasible(), refusal(case, epoch)
    event("feasible" if feasible else "refused")
    if feasible:
        assert refused is None, refused
    else:
        assert refused is not None


@drawn(30)
@given(cases("debiased"), st.lists(st.tuples(EPOCHS, st.integers(0, 5)), min_size=2, max_size=5))
def test_legality_depends_neither_on_workers_nor_on_the_epoch(case: Case, others: list[tuple[int, int]]) -> None:
    refusals = {refusal(replace(case, workers=workers), epoch) for epoch, workers in others}
    event("refused" if refusals != {None} else "feasible")
    assert len(refusals) == 1


@drawn(35)
@given(cases("debiased", kinds=["once", "some whole", "long tail"]))
def test_the_error_names_the_largest_smaller_batch_size_that_works(case: Case) -> None:
    refused = refusal(case)
    assume(refused is not None)
    advice = re.search(r"lower `batch_size` to at most (\d+)$", refused or "")
    works = [size for size in range(1, case.batch_size) if refusal(replace(case, batch_size=size)) is None]
    event("a smaller one works" if works else "none works")
    if works:
        assert advice is not None
        assert int(advice[1]) == works[-1]
    else:
        assert advice is None
        assert any(
            reason in (refused or "") for reason in ("no smaller `batch_size` helps", "has no samples", "keeps none")
        )


@drawn(8)
@given(feasible_cases("debiased"), EPOCHS)
def test_the_same_seed_and_epoch_give_the_same_order_and_the_next_epoch_another(case: Case, epoch: int) -> None:
    first = emitted(case.plan(epoch), case)
    assert emitted(case.plan(epoch), case) == first
    assert case.plan(epoch).digest == case.plan(epoch + 1).digest
    if len({tuple(sorted(batch)) for batch in first}) > 15:  # by chance alone, equal in 1 of 15! cases
        assert emitted(case.plan(epoch + 1), case) != first


@drawn(15)
@given(feasible_cases("debiased"), EPOCHS)
def test_the_account_tells_what_comes_out(case: Case, epoch: int) -> None:
    plan = case.plan(epoch)
    counts = Counter(item.sample for batch in emitted(plan, case) for item in batch)
    for stock, account in zip(case.stocks, plan.account, strict=True):
        of_source = {sample: count for sample, count in counts.items() if sample[0] == stock.name}
        assert account.name == stock.name
        assert account.rows == sum(map(len, stock.shards))
        assert account.copies == stock.copies
        assert account.quota == sum(of_source.values()) == case.quota()[stock.name]
        crosses = account.quota < case.in_pass(stock)  # then a sample may come in both passes (the last test below)
        assert max(of_source.values(), default=0) <= account.most * (1 + crosses)
        assert 0 <= account.remainder < case.global_batch
        assert account.passes == pytest.approx(account.quota * ONE / max(1, stock.total))


@drawn(10)
@given(feasible_cases("debiased", same_source_across="rank"), EPOCHS)
def test_with_agree_rank_each_rank_draws_alone_and_all_else_holds(case: Case, epoch: int) -> None:
    plan = case.plan(epoch)
    batches = [by_rank(plan, case, step) for step in range(plan.num_steps)]
    own = [plan.sources(rank) for rank in range(case.world_size)]
    items: dict[str, list[Item]] = {stock.name: [] for stock in case.stocks}
    for step, of_ranks in enumerate(batches):
        for rank, batch in enumerate(of_ranks):
            mine = own[rank]
            assert mine is not None
            assert source_of(batch) == plan.names[mine[step]]
            assert len({item.sample for item in batch}) == len(batch) == case.batch_size
            items[batch[0].name] += batch
    for rank in range(case.world_size):
        drawn_by_rank = Counter(source_of(of_ranks[rank]) for of_ranks in batches)
        assert {name: drawn_by_rank[name] * case.global_batch for name in items} == case.quota()
    check_union_of_ranks(case, items)
    if case.world_size > 1 and plan.num_steps > 40 and min(case.quota().values()) > 20 * case.global_batch:
        assert any(len({source_of(batch) for batch in of_ranks}) > 1 for of_ranks in batches) or len(case.stocks) == 1


def check_union_of_ranks(case: Case, items: dict[str, list[Item]]) -> None:
    """Check that all ranks together emit the copies of a pass."""
    for stock in case.stocks:
        mine, in_pass = items[stock.name], case.in_pass(stock)
        assert len(mine) == case.quota()[stock.name]
        if len(mine) < in_pass or not mine:
            continue
        passes = oracle.passes_of(stock.total, len(mine))
        counts = Counter(item.sample for item in mine)
        assert len(set(mine)) == len(mine)
        assert all(count <= oracle.bounds(stock.shards[a][b], passes)[1] for (_, a, b), count in counts.items())


@drawn(7)
@given(feasible_cases("debiased"), st.integers(0, 15))
def test_leaving_out_short_sources_gives_the_plan_without_them(case: Case, few: int) -> None:
    by_size = made_feasible(replace(case, weights=None, steps=None))
    assume(by_size is not None)
    assert by_size is not None
    case = by_size
    tiny = Stock(name="tiny", shards=((ONE,) * min(few, case.global_batch - 1),))
    with_tiny = replace(case, stocks=(*case.stocks, tiny), small_sources="leave_out")
    plan, without = with_tiny.plan(1), replace(case, small_sources="leave_out").plan(1)
    assert "tiny" not in plan.names
    assert emitted(plan, with_tiny) == emitted(without, case)


def once(name: str, num_rows: int) -> Stock:
    return Stock(name=name, shards=((ONE,) * num_rows,))


SMALL = replace(PLAIN, stocks=(once("a", 50),), batch_size=4)


def test_sources_of_100_40_and_7_samples_give_12_5_and_no_batches_of_8() -> None:
    case = replace(SMALL, stocks=(once("a", 100), once("b", 40), once("c", 7)), batch_size=8)
    with pytest.raises(PlanError, match=r"source 'c' has 7 samples but one global batch needs 8.*to at most 7"):
        case.plan()
    plan = replace(case, small_sources="leave_out").plan()
    assert {account.name: account.quota // 8 for account in plan.account} == {"a": 12, "b": 5}


def test_equal_shares_of_1000_and_10_hold_to_the_end_and_tell_the_passes() -> None:
    case = replace(SMALL, stocks=(once("a", 1000), once("b", 10)), batch_size=1, weights={"a": 1, "b": 1}, steps=2000)
    plan = case.plan()
    sources = plan.sources(0)
    assert sources is not None
    assert np.bincount(sources).tolist() == [1000, 1000]
    assert [account.passes for account in plan.account] == [1.0, 100.0]
    assert set(sources[-20:].tolist()) == {0, 1}


def test_a_weight_is_a_share_of_the_steps_whatever_the_sizes() -> None:
    case = replace(SMALL, stocks=(once("a", 10), once("b", 100)), batch_size=1, weights={"a": 10, "b": 1}, steps=110)
    assert [account.quota for account in case.plan().account] == [100, 10]


def test_every_epoch_and_every_seed_draws_the_sources_in_another_order() -> None:
    case = replace(SMALL, stocks=(once("a", 200), once("b", 120)))
    orders = set()
    for seed in range(4):
        for epoch in range(4):
            sources = replace(case, seed=seed).plan(epoch).sources(0)
            assert sources is not None
            orders.add(tuple(sources.tolist()))
    assert len(orders) == 16


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_more_consumers_than_shards_all_do_the_same_steps(world_size: int, workers: int) -> None:
    stock = Stock(name="a", shards=((ONE,) * 3, (ONE,) * 5, (ONE,) * 7))
    case = replace(SMALL, stocks=(stock,), batch_size=2, world_size=world_size, workers=workers)
    plan = case.plan()
    batches = emitted(plan, case)
    assert plan.num_steps == 15 // (2 * world_size)
    keys = [item.sample for batch in batches for item in batch]
    assert len(set(keys)) == len(keys) > 15 - case.global_batch


def test_a_factor_of_one_and_a_half_at_four_thirds_of_a_pass_is_two_copies() -> None:
    Case.plan(replace(SMALL, stocks=(Stock(name="a", shards=((3 * ONE // 2,) * 6,)),), batch_size=3, steps=4))
    case = replace(SMALL, stocks=(Stock(name="a", shards=((3 * ONE // 2,) * 4,)),), steps=2)
    assert case.most() == {"a": 2}


def test_as_many_copies_as_batches_are_feasible_also_where_the_passes_are_no_binary_fraction() -> None:
    # 4 samples of factor 1.5, 2 batches of 4: each sample comes exactly twice, m = Q = 2.
    case = replace(SMALL, stocks=(Stock(name="a", shards=((3 * ONE // 2,) * 4,)),), steps=2)
    assert case.is_feasible()
    case.plan()


@pytest.mark.parametrize("given_by", ["steps", "temperature"])
def test_an_empty_source_is_an_error_however_shares_are_given(given_by: str) -> None:
    case = replace(SMALL, stocks=(once("a", 50), once("b", 0)))
    case = replace(case, steps=5) if given_by == "steps" else replace(case, weights=Temperature(1.0))
    with pytest.raises(PlanError, match="source 'b' has no samples"):
        case.plan()


LEFT_OUT = replace(
    SMALL,  # at 8, `a` has 5 copies and is left out; at 4 it is back, with 4 copies of a sample but a single batch
    stocks=(
        Stock(name="a", shards=((4 * ONE, ONE),)),
        Stock(name="b", shards=((4 * ONE, *(ONE,) * 12),)),
    ),
    batch_size=8,
    small_sources="leave_out",
)


def test_the_error_names_a_batch_size_that_works_also_where_it_brings_a_source_back() -> None:
    with pytest.raises(PlanError) as refused:
        LEFT_OUT.plan()
    advice = re.search(r"to at most (\d+)$", str(refused.value))
    assert advice is not None
    assert refusal(replace(LEFT_OUT, batch_size=int(advice[1]))) is None


def test_the_error_names_a_batch_size_that_works_where_all_sources_are_too_short() -> None:
    case = replace(SMALL, stocks=(once("a", 3),), small_sources="leave_out")
    assert refusal(replace(case, batch_size=3)) is None
    with pytest.raises(PlanError, match="lower `batch_size` to at most 3"):
        case.plan()


def test_the_digest_does_not_depend_on_the_order_of_the_weights() -> None:
    case = replace(SMALL, stocks=(once("a", 50), once("b", 50)), steps=9)
    a_first, b_first = replace(case, weights={"a": 1, "b": 2}), replace(case, weights={"b": 2, "a": 1})
    assert emitted(a_first.plan(), a_first) == emitted(b_first.plan(), b_first)
    assert a_first.plan().digest == b_first.plan().digest


def test_steps_that_are_no_integer_are_refused() -> None:
    with pytest.raises(PlanError, match=r"`steps` must be an integer >= 1; got 2\.5"):
        replace(SMALL, steps=2.5).plan()  # type: ignore[arg-type]


def test_epochs_far_away_are_planned_as_quickly() -> None:
    case = replace(SMALL, workers=2)
    assert len(emitted(case.plan(1_000_000), case, [11])[0]) == 4


def test_lists_of_weights_change_the_shares_at_their_steps() -> None:
    weights = [(0, {"a": 1, "b": 0}), (10, {"a": 0, "b": 1}), (15, {"a": 1, "b": 1})]
    case = replace(SMALL, stocks=(once("a", 200), once("b", 200)), weights=weights, steps=35)
    sources = case.plan().sources(0)
    assert sources is not None
    edges = [0, 10, 15, 35]
    parts = [np.bincount(sources[a:b], minlength=2).tolist() for a, b in pairwise(edges)]
    assert parts == [[10, 0], [0, 5], [10, 10]]


def test_an_epoch_that_crosses_a_pass_has_at_most_the_copies_of_both() -> None:
    case = replace(SMALL, stocks=(once("a", 40),), steps=7)  # 10 batches a pass
    for epoch in range(6):
        counts = Counter(item.sample for batch in emitted(case.plan(epoch), case) for item in batch)
        assert max(counts.values()) <= 2 * case.plan(epoch).account[0].most
