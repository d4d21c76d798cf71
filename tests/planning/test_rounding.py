"""How factors become whole copies: floor or ceil, the mean exact, and what Bernoulli and ceil do instead."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from equitar.arrays import Int64
from equitar.errors import PlanError
from equitar.planning.line import Line, most_copies
from equitar.planning.repeat_factors import ONE, ClassCounts, RepeatFactor, class_factors, sample_factors
from equitar.planning.supply import Supply
from equitar.presence import Presence
from helpers import oracle
from helpers.strategies import PLAIN, Case, Item, Stock, drawn, emitted, stocks

KEYS = st.integers(0, (1 << 64) - 1)


def line_of(stock: Stock, key: int, at_least: int = 0) -> Line:
    return Line(stock.supply(), key=key, at_least=at_least)


@drawn(60)
@given(stocks("a"), KEYS)
def test_each_row_gets_the_floor_or_the_ceiling_of_its_factor(stock: Stock, key: int) -> None:
    line = line_of(stock, key)
    for shard, rows in enumerate(stock.shards):
        for copies, factor in zip(line.copies(shard).tolist(), rows, strict=True):
            assert factor // ONE <= copies <= -(-factor // ONE)


@drawn(60)
@given(stocks("a"), KEYS)
def test_a_line_is_as_long_as_the_sum_of_the_factors_and_so_are_its_shards(stock: Stock, key: int) -> None:
    line = line_of(stock, key)
    assert line.length == sum(int(line.copies(shard).sum()) for shard in range(len(stock.shards)))
    assert stock.total // ONE <= line.length <= -(-stock.total // ONE)
    for shard, rows in enumerate(stock.shards):
        assert sum(rows) // ONE <= int(line.copies(shard).sum()) <= -(-sum(rows) // ONE)


@drawn(60)
@given(stocks("a", rows=(1, 300)), KEYS, st.fractions(0, 8))
def test_a_line_is_stretched_to_what_is_asked_and_no_further(stock: Stock, key: int, passes: Fraction) -> None:
    if not stock.total:
        return
    asked = int(passes * stock.total / ONE)
    line = line_of(stock, key, asked)
    assert asked <= line.length <= max(asked, stock.copies) + 1
    factor = oracle.passes_of(stock.total, asked)
    for shard, rows in enumerate(stock.shards):
        for copies, exact in zip(line.copies(shard).tolist(), rows, strict=True):
            fewest, most = oracle.bounds(exact, factor)
            assert fewest <= copies <= most
            assert copies <= most_copies(stock.supply(), asked)


@drawn(10)
@given(st.lists(st.integers(0, 4 * ONE), min_size=1, max_size=12), KEYS)
def test_the_mean_over_passes_is_the_factor(factors: list[int], key: int) -> None:
    supply = Supply.of("a", ["0", "1"], [np.array(factors), np.array(factors[:1])])
    passes = 400
    lines = [Line(supply, key=(key + number * 0x9E37) % (1 << 64), at_least=0) for number in range(passes)]
    mean = np.mean([line.copies(0) for line in lines], axis=0)
    assert np.abs(mean - np.array(factors) / ONE).max() < 5 * 0.5 / passes**0.5


def copies_over_passes(supply: Supply, passes: int) -> Int64:
    """Return the copies of each row of the first shard in each pass, (passes, rows)."""
    return np.array([Line(supply, key=number * 7919, at_least=0).copies(0) for number in range(passes)])


def test_one_sample_of_ten_with_its_class_at_a_threshold_of_0225_comes_one_and_a_half_times() -> None:
    rows = Presence.of([[1], *[[0]] * 9])
    counts = ClassCounts(ids=np.array([0, 1]), num_samples=np.array([9, 1]), total=10)
    (factors,) = class_factors([counts], RepeatFactor(0.225))
    supply = Supply.of("a", ["0"], [sample_factors(rows, counts.ids, factors)])
    copies = copies_over_passes(supply, 2000)
    assert copies[:, 0].mean() == pytest.approx(1.5, abs=0.05)
    assert set(copies[:, 0].tolist()) == {1, 2}
    assert (copies[:, 1:] == 1).all()
    assert set(copies.sum(axis=1).tolist()) <= {10, 11}


def test_rows_of_equal_factor_are_rounded_up_in_an_order_of_each_pass() -> None:
    copies = copies_over_passes(Supply.of("a", ["0"], [np.full(40, 3 * ONE // 2)]), 1000)
    assert (np.abs(copies.mean(axis=0) - 1.5) < 0.08).all()
    up = copies - 1.5
    together = (up[:, :-1] * up[:, 1:]).mean(axis=0) / 0.25  # correlation of neighbours in the file
    assert (np.abs(together) < 0.2).all()  # along the file's own order it would be -1


def test_the_rounding_of_a_pass_depends_on_the_shards_paths_not_on_the_order_in_which_they_are_listed() -> None:
    factors = [np.full(size, 5 * ONE // 4) for size in (9, 4, 14)]
    line = Line(Supply.of("a", ["x", "y", "z"], factors), key=5, at_least=0)
    other = Line(Supply.of("a", ["z", "x", "y"], [factors[2], factors[0], factors[1]]), key=5, at_least=0)
    assert [line.copies(shard).tolist() for shard in (0, 1, 2)] == [other.copies(shard).tolist() for shard in (1, 2, 0)]
    places, other_places = line.at(np.arange(line.length)), other.at(np.arange(line.length))
    assert np.array_equal(places.row, other_places.row)
    assert np.array_equal(
        places.shard, np.array([1, 2, 0])[np.argsort([1, 2, 0])][np.array([2, 0, 1])[other_places.shard]]
    )


@drawn(40)
@given(stocks("a", kinds=["once", "long tail", "some whole", "halves"], rounding="bernoulli"), KEYS)
def test_bernoulli_gives_floor_or_ceiling_too(stock: Stock, key: int) -> None:
    line = line_of(stock, key)
    for shard, rows in enumerate(stock.shards):
        for copies, factor in zip(line.copies(shard).tolist(), rows, strict=True):
            assert factor // ONE <= copies <= -(-factor // ONE)


def test_bernoulli_draws_each_sample_alone_so_lengths_are_binomial() -> None:
    rows, passes = 200, 1500
    supply = Supply.of("a", ["0"], [np.full(rows, 5 * ONE // 4)], "bernoulli")
    copies = copies_over_passes(supply, passes)
    lengths = copies.sum(axis=1)
    mean, variance = rows * 1.25, rows * 0.25 * 0.75
    assert abs(lengths.mean() - mean) < 5 * (variance / passes) ** 0.5
    assert lengths.var() == pytest.approx(variance, rel=5 * (2 / passes) ** 0.5)
    assert (np.abs(copies.mean(axis=0) - 1.25) < 5 * (0.1875 / passes) ** 0.5).all()
    lines = Line(supply, key=3, at_least=0)
    assert lines.length == int(lines.copies(0).sum())


def test_systematic_lengths_do_not_vary_where_bernoulli_lengths_do() -> None:
    factors = [np.full(200, 5 * ONE // 4)]
    assert set(copies_over_passes(Supply.of("a", ["0"], factors), 50).sum(axis=1).tolist()) == {250}


def test_factors_that_were_rounded_up_are_laid_as_they_are() -> None:
    factors = [np.array([1, 3, 2, 5]) * ONE, np.array([4, 1]) * ONE]
    line = Line(Supply.of("a", ["0", "1"], factors, "ceil"), key=11, at_least=0)
    assert [line.copies(0).tolist(), line.copies(1).tolist()] == [[1, 3, 2, 5], [4, 1]]


@st.composite
def bernoulli_cases(draw: st.DrawFn) -> Case:
    kinds = ["once", "long tail", "some whole", "halves"]
    return Case(
        kind=draw(st.sampled_from(["debiased", "mixed"])),
        stocks=tuple(draw(stocks(name, kinds=kinds, rows=(40, 300), rounding="bernoulli")) for name in "ab"),
        batch_size=draw(st.integers(1, 4)),
        world_size=draw(st.integers(1, 3)),
        workers=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 1 << 30)),
        shuffle=draw(st.integers(0, 30)),
        weights=None,
        steps=draw(st.none() | st.integers(20, 60)),
    )


@drawn(20)
@given(bernoulli_cases(), st.integers(0, 5))
def test_bernoulli_copies_never_meet_in_a_global_batch(case: Case, epoch: int) -> None:
    try:
        plan = case.plan(epoch)
    except PlanError:
        event("refused")
        return
    event("feasible")
    for batch in emitted(plan, case):
        assert len({item.sample for item in batch}) == case.global_batch


def test_a_share_below_one_is_drawn_without_an_empty_pass() -> None:
    stock = Stock(name="a", shards=((ONE // 3,) * 12,), rounding="bernoulli")
    for seed in range(600):
        case = replace(PLAIN, stocks=(stock,), seed=seed)
        emitted(case.plan(), case)


def test_a_share_below_one_is_drawn_without_more_copies_than_the_account_tells() -> None:
    stock = Stock(name="a", shards=((ONE // 8,) * 60,), rounding="bernoulli")
    for seed in range(300):
        case = replace(PLAIN, stocks=(stock,), seed=seed)
        plan = case.plan()
        items: list[Item] = [item for batch in emitted(plan, case) for item in batch]
        assert max(item.copy for item in items) < plan.account[0].most


def test_a_source_without_repeats_needs_no_more_under_bernoulli() -> None:
    stock = Stock(name="a", shards=((ONE,) * 5,), rounding="bernoulli")
    replace(PLAIN, stocks=(stock,), batch_size=4).plan()
