"""Batches that hold all sources by share: the promises, over drawn sources, worlds, weights and epochs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from equitar.errors import PlanError
from equitar.planning.quotas import stratified, widest_gap
from equitar.planning.repeat_factors import ONE
from equitar.planning.runs import EpochRuns, Run
from equitar.planning.shuffle import window_of
from equitar.planning.step_plan import StepPlan
from equitar.planning.weights import Passes, Temperature
from helpers import oracle
from helpers.strategies import PLAIN, Case, Item, Stock, by_rank, cases, drawn, emitted, feasible_cases, read, refusal

EPOCHS = st.integers(0, 6)


def laid(plan: StepPlan) -> EpochRuns:
    """Return how a mixed plan is laid: a property of windows must know where they are."""
    dealer = plan._world(0).dealers[0]
    assert dealer is not None
    return dealer._runs


def has_copies(case: Case) -> bool:
    """Whether any source gives anything."""
    return any(stock.copies for stock in case.stocks)


@drawn(20)
@given(feasible_cases("mixed"), EPOCHS, st.integers(0, 5))
def test_the_number_of_steps_is_known_and_the_same_for_any_workers_and_epoch(
    case: Case, epoch: int, workers: int
) -> None:
    num_steps = sum(case.quota().values()) // case.global_batch
    assert case.plan(0).num_steps == num_steps
    assert replace(case, workers=workers).plan(epoch).num_steps == num_steps


@drawn(8)
@given(feasible_cases("mixed"), EPOCHS)
def test_each_source_gives_as_many_samples_as_its_share_says(case: Case, epoch: int) -> None:
    plan = case.plan(epoch)
    counts = Counter(item.name for batch in emitted(plan, case) for item in batch)
    assert {stock.name: counts[stock.name] for stock in case.stocks} == case.quota()
    assert {account.name: account.quota for account in plan.account} == case.quota()


@drawn(12)
@given(feasible_cases("mixed"), EPOCHS)
def test_each_source_has_its_share_of_every_window_of_every_consumer(case: Case, epoch: int) -> None:
    plan, quota = case.plan(epoch), case.quota()
    total, segments = sum(quota.values()), laid(plan).segments
    batches = [by_rank(plan, case, step) for step in range(plan.num_steps)]
    for number, segment in enumerate(segments):
        runs, _ = laid(plan).runs(number)
        steps_of_lane: list[list[int]] = [[] for _ in range(runs.num_lanes)]
        for step in range(segment.start, segment.start + segment.num_steps):
            steps_of_lane[step % case.spec(0).lanes if runs.num_lanes > 1 else 0].append(step)
        for steps in steps_of_lane:
            largest = max(case.shuffle // case.batch_size, runs.smallest)
            begin = 0
            while begin < len(steps):
                first, last = window_of(begin, demand=len(steps), smallest=runs.smallest, largest=largest)
                assert first == begin
                for rank in range(runs.world_size):
                    mine = range(case.world_size) if runs.world_size == 1 else (rank,)
                    items = [
                        item for step in steps[first:last] for consumer in mine for item in batches[step][consumer]
                    ]
                    counts = Counter(item.name for item in items)
                    for name, copies in quota.items():
                        assert abs(counts[name] - Fraction(copies * len(items), total)) <= 3
                begin = last


@drawn(15)
@given(feasible_cases("mixed"), EPOCHS)
def test_each_sample_comes_as_often_as_its_repeats_say(case: Case, epoch: int) -> None:
    plan, quota = case.plan(epoch), case.quota()
    batches = emitted(plan, case)
    for stock in case.stocks:
        items = [item for batch in batches for item in batch if item.name == stock.name]
        if quota[stock.name] < stock.copies or not items:
            continue  # less than a pass: see test_plan_passes
        passes = oracle.passes_of(stock.total, quota[stock.name])
        counts = Counter(item.sample for item in items)
        assert len(set(items)) == len(items)  # no copy comes twice
        missing = 0
        for shard, rows in enumerate(stock.shards):
            for row, factor in enumerate(rows):
                fewest, most = oracle.bounds(factor, passes)
                assert counts[stock.name, shard, row] <= most
                missing += max(0, fewest - counts[stock.name, shard, row])
        assert missing <= 1  # rounding may lay one copy more than are asked for


@drawn(80)
@given(cases("mixed"), EPOCHS)
def test_a_plan_is_feasible_exactly_if_no_sample_has_more_copies_than_there_are_steps(case: Case, epoch: int) -> None:
    assume(has_copies(case))
    feasible, refused = case.is_feasible(), refusal(case, epoch)
    event("feasible" if feasible else "refused")
    if feasible:
        assert refused is None, refused
    else:
        assert refused is not None


@drawn(25)
@given(cases("mixed"), st.lists(st.tuples(EPOCHS, st.integers(0, 5)), min_size=2, max_size=5))
def test_legality_depends_neither_on_workers_nor_on_the_epoch(case: Case, others: list[tuple[int, int]]) -> None:
    assume(has_copies(case))
    refusals = {refusal(replace(case, workers=workers), epoch) for epoch, workers in others}
    event("refused" if refusals != {None} else "feasible")
    assert len(refusals) == 1


@drawn(20)
@given(cases("mixed", kinds=["some whole", "long tail"]), st.integers(1, 8))
def test_the_error_names_the_largest_smaller_batch_size_that_works(case: Case, factor: int) -> None:
    assume(has_copies(case))
    case = replace(case, batch_size=case.batch_size * factor)
    refused = refusal(case)
    assume(refused is not None)
    advice = re.search(r"lower `batch_size` to at most (\d+)$", refused or "")
    works = int(advice[1]) if advice else 0
    event("a smaller one works" if works else "none works")
    assert works == 0 or refusal(replace(case, batch_size=works)) is None
    for size in (works + 1, *range(works + 2, case.batch_size, 1 + case.batch_size // 8)):
        assert refusal(replace(case, batch_size=size)) is not None


@drawn(8)
@given(feasible_cases("mixed"), EPOCHS)
def test_the_same_seed_and_epoch_give_the_same_order_and_the_next_epoch_another(case: Case, epoch: int) -> None:
    first = emitted(case.plan(epoch), case)
    assert emitted(case.plan(epoch), case) == first
    assert case.plan(epoch).digest == case.plan(epoch + 1).digest
    if len({item.sample for batch in first for item in batch}) > 15:
        # A shard that is not shuffled begins at one of its 16 samples or more: two epochs may meet, six in a row do not.
        assert any(emitted(case.plan(epoch + later), case) != first for later in range(1, 7))


def in_one_shard(name: str, *factors: int) -> Stock:
    return Stock(name=name, shards=(tuple(factor * ONE for factor in factors),))


SMALL = replace(PLAIN, kind="mixed", stocks=(in_one_shard("a", *[1] * 50),), batch_size=5)


def test_four_copies_of_one_sample_of_forty_lie_in_four_batches() -> None:
    case = replace(SMALL, stocks=(in_one_shard("a", 4, *[1] * 39),), batch_size=8)
    for epoch in range(20):
        batches = emitted(case.plan(epoch), case)
        assert sum(("a", 0, 0) in {item.sample for item in batch} for batch in batches) >= 2
        assert all(len({item.sample for item in batch}) == 8 for batch in batches)


def test_copies_that_lie_far_apart_among_a_larger_source_do_not_meet() -> None:
    # One sample in 34 is of `b`: the three copies of its first one reach over more than two ranks.
    case = replace(SMALL, stocks=(in_one_shard("a", *[1] * 97), in_one_shard("b", 3)), batch_size=4, world_size=5)
    for seed in range(20):
        seeded = replace(case, seed=seed)
        assert all(len({item.sample for item in batch}) == 20 for batch in emitted(seeded.plan(), seeded))


def test_single_samples_of_1000_100_and_10_come_by_share() -> None:
    case = replace(
        SMALL,
        stocks=(in_one_shard("a", *[1] * 1000), in_one_shard("b", *[1] * 100), in_one_shard("c", *[1] * 10)),
        batch_size=1,
    )
    items: list[Item] = [item for batch in emitted(case.plan(), case) for item in batch]
    assert Counter(item.name for item in items) == {"a": 1000, "b": 100, "c": 10}
    first = Counter(item.name for item in items[:555])
    assert (first["a"], first["b"], first["c"]) == pytest.approx((500, 50, 5), abs=3)


@pytest.mark.parametrize(("copies", "rows", "others", "ranks"), [(3, 7, 8, 3), (3, 11, 7, 5), (4, 6, 8, 3)])
def test_no_sample_comes_twice_in_a_global_batch_of_many_sources(
    copies: int, rows: int, others: int, ranks: int
) -> None:
    few = (in_one_shard(name, 1) for name in "bcdefghijklm"[:others])
    case = replace(SMALL, stocks=(in_one_shard("a", *[copies] * rows), *few), batch_size=1, world_size=ranks)
    assert case.is_feasible()
    for seed in range(6):
        seeded = replace(case, seed=seed)
        assert all(len({item.sample for item in batch}) == ranks for batch in emitted(seeded.plan(), seeded))


@pytest.mark.parametrize("passes", [2.0, 0.5])
def test_passes_tell_how_often_a_source_is_gone_through(passes: float) -> None:
    plan = replace(SMALL, weights=Passes({"a": passes})).plan()
    assert plan.account[0].quota == 50 * passes


def test_an_empty_source_is_an_error_by_temperature_too() -> None:
    with pytest.raises(PlanError, match="source 'b' has no samples"):
        replace(SMALL, stocks=(*SMALL.stocks, in_one_shard("b")), weights=Temperature(1.0)).plan()


@pytest.mark.parametrize(
    "stock", [in_one_shard("a"), Stock(name="a", shards=((ONE // 3,),))], ids=["no rows", "a third of one"]
)
def test_sources_without_a_single_copy_are_refused(stock: Stock) -> None:
    with pytest.raises(PlanError, match=r"source 'a' has|the sources have fewer"):
        replace(SMALL, stocks=(stock,)).plan()


# ---- composition --------------------------------------------------------------------------------------------------------


def shares_of(case: Case) -> dict[str, Fraction]:
    """Return the share of each source in a batch of a rank."""
    quota = case.quota()
    return {name: Fraction(case.batch_size * copies, sum(quota.values())) for name, copies in quota.items()}


@drawn(60)
@given(feasible_cases("mixed"), EPOCHS)
def test_every_batch_of_every_rank_has_the_floor_or_ceiling_of_each_share(case: Case, epoch: int) -> None:
    plan, shares = case.plan(epoch), shares_of(case)
    for step in range(plan.num_steps):
        for batch in by_rank(plan, case, step):
            counts = Counter(item.name for item in batch)
            assert all(floor(share) <= counts[name] <= ceil(share) for name, share in shares.items())


@drawn(60)
@given(feasible_cases("mixed", kinds=["some whole", "long tail", "halves"]), EPOCHS)
def test_no_copies_meet_in_a_stratified_global_batch(case: Case, epoch: int) -> None:
    for batch in emitted(case.plan(epoch), case):
        samples = [item.sample for item in batch]
        assert len(set(samples)) == len(samples) == case.global_batch


@drawn(15)
@given(feasible_cases("mixed"), EPOCHS, st.floats(0, 1))
def test_a_stratified_plan_is_resumed_at_any_step(case: Case, epoch: int, part: float) -> None:
    plan, whole = case.plan(epoch), emitted(case.plan(epoch), case)
    first = int(part * plan.num_steps)
    assert emitted(plan, case, range(first, plan.num_steps)) == whole[first:]
    fresh = case.plan(epoch)
    assert [
        [item for batch in by_rank(fresh, case, step) for item in batch] for step in range(first, plan.num_steps)
    ] == whole[first:]


@drawn(15)
@given(feasible_cases("mixed"), EPOCHS)
def test_an_independent_composition_emits_the_same_samples_but_for_the_ends_of_passes(case: Case, epoch: int) -> None:
    alone = replace(case, composition="independent")
    counts = [
        Counter(item.name for batch in emitted(each.plan(epoch), each) for item in batch) for each in (case, alone)
    ]
    assert counts[0] == counts[1]
    for batch in emitted(alone.plan(epoch), alone):
        assert len({item.sample for item in batch}) == case.global_batch


def test_shares_of_6_3_and_1_in_batches_of_16() -> None:
    stocks = tuple(in_one_shard(name, *[1] * 2000) for name in "abc")
    case = replace(SMALL, stocks=stocks, batch_size=16, weights={"a": 6, "b": 3, "c": 1}, steps=200, shuffle=500)
    lacking = {}
    for composition in ("stratified", "independent"):
        batches = emitted(replace(case, composition=composition).plan(), case)
        lacking[composition] = sum("c" not in {item.name for item in batch} for batch in batches)
    assert lacking["stratified"] == 0
    assert lacking["independent"] > 20


@pytest.mark.parametrize("ranks", [2, 4])
def test_copies_on_the_cuts_of_ranks_with_runs_of_their_own_do_not_meet(ranks: int) -> None:
    stocks = (
        in_one_shard("a", *[6] * 13 * ranks),
        in_one_shard("b", *[1] * 46 * ranks),
        in_one_shard("c", *[4, 1, 1] * 6 * ranks),
    )  # one window
    case = replace(SMALL, stocks=stocks, batch_size=8, world_size=ranks, shuffle=10_000)
    assert laid(case.plan()).runs(0)[0].world_size == ranks
    shared = 0
    for seed in range(30):
        seeded = replace(case, seed=seed)
        runs = laid(seeded.plan())
        shared += sum(len(runs.shared(Run(0, 0, rank))[1]) for rank in range(ranks - 1))
        assert all(len({item.sample for item in batch}) == 8 * ranks for batch in emitted(seeded.plan(), seeded))
    assert shared > 10


def test_a_part_of_a_batch_has_all_sources_too() -> None:
    stocks = (in_one_shard("a", *[1] * 800), in_one_shard("b", *[1] * 800))
    case = replace(SMALL, stocks=stocks, batch_size=32, shuffle=320)
    plan = case.plan()
    halves = [Counter(item.name for item in read(plan, step, 0, 16)) for step in range(plan.num_steps)]
    assert all(2 <= half["a"] <= 14 for half in halves)


@drawn(40)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 60), st.data())
def test_stratified_quotas_are_exact_and_floor_or_ceiling_in_every_batch(
    sizes: list[int], batches: int, data: Any
) -> None:
    quotas = [*sizes, -sum(sizes) % batches]
    counts = [stratified(quotas, first, batches) for first in range(batches + 1)]
    assert counts[-1] == quotas
    for before, after in pairwise(counts):
        batch = [last - first for first, last in zip(before, after, strict=True)]
        assert sum(batch) == sum(quotas) // batches
        assert all(
            quota // batches <= count <= -(-quota // batches) for quota, count in zip(quotas, batch, strict=True)
        )
    first, length = data.draw(st.integers(0, batches - 1)), data.draw(st.integers(1, batches))
    last = min(batches, first + length)
    gap = widest_gap(last - first, batches)
    taken = [after - before for before, after in zip(counts[first], counts[last], strict=True)]
    assert all(count >= quota // gap for quota, count in zip(quotas, taken, strict=True))
