"""Several epochs in a row: passes, what is left over, crossing into the next pass, and samples that come back."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from hypothesis import event, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from equitar.planning.passes import Segment, segments_of
from equitar.planning.quotas import spread
from equitar.planning.repeat_factors import ONE
from helpers import oracle
from helpers.strategies import (
    PLAIN,
    Case,
    Item,
    Kind,
    Stock,
    by_rank,
    drawn,
    emitted,
    feasible_cases,
    made_feasible,
    stocks,
)

Sample = tuple[str, int, int]


@st.composite
def short_cases(draw: DrawFn, kind: Kind) -> Case:
    """Draw a case whose epochs are mostly shorter than a pass of its sources."""
    case = draw(feasible_cases(kind))
    names = "abc"[: draw(st.integers(1, 3))]
    kinds = ["once", "halves", "selection", "selected repeats"]
    large = tuple(draw(stocks(name, kinds=kinds, rows=(60, 200))) for name in names)
    batch_size, world_size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    part = draw(st.floats(0.3, 0.95))  # of a pass in an epoch
    steps = max(1, int(part * sum(stock.copies for stock in large) / batch_size / world_size))
    small = replace(
        case, stocks=large, weights=None, batch_size=batch_size, world_size=world_size, steps=min(steps, 120)
    )
    return made_feasible(small) or case


def segments(case: Case, epoch: int) -> Sequence[Segment]:
    """Return how a mixed plan cuts an epoch: only the plan knows where sources that share their steps cross together."""
    dealer = case.plan(epoch)._world(0).dealers[0]
    assert dealer is not None
    return dealer._runs.segments


def copies_by_pass(case: Case, epochs: int) -> dict[tuple[str, int], list[Item]]:
    """Return the copies of each pass of each source that the first epochs emit, in order."""
    result: dict[tuple[str, int], list[Item]] = defaultdict(list)
    for epoch in range(epochs):
        batches = emitted(case.plan(epoch), case)
        if case.kind == "mixed":
            for segment in segments(case, epoch):
                steps = batches[segment.start : segment.start + segment.num_steps]
                for item in (item for batch in steps for item in batch):
                    source = [stock.name for stock in case.stocks].index(item.name)
                    result[item.name, segment.parts[source].pass_number].append(item)
            continue
        for stock in case.stocks:
            mine = [batch for batch in batches if batch[0].name == stock.name]
            for part in debiased_walk(case, stock, epoch) if mine else []:
                result[stock.name, part.pass_number] += [item for batch in mine[: part.num_batches] for item in batch]
                mine = mine[part.num_batches :]
            assert not mine
    return result


def debiased_walk(case: Case, stock: Stock, epoch: int) -> list[oracle.Segment]:
    return oracle.walk(
        epoch,
        per_pass=case.in_pass(stock) // case.global_batch,
        per_epoch=case.quota()[stock.name] // case.global_batch,
        most=max(1, case.most()[stock.name]),
    )


def missing_copies(stock: Stock, items: list[Item], copies: int) -> int:
    """Return how many copies fewer than its repeats say the samples have, one by one."""
    counts = Counter(item.sample for item in items)
    passes = oracle.passes_of(stock.total, copies)
    return sum(
        max(0, oracle.bounds(factor, passes)[0] - counts[stock.name, shard, row])
        for shard, rows in enumerate(stock.shards)
        for row, factor in enumerate(rows)
    )


def lost_at_most(case: Case, stock: Stock) -> int:
    """Return how many copies an epoch that crosses may leave at the end of a pass, beside what a pass leaves anyway.

    A part of an epoch has 0 or at least m steps, so fewer than m steps are lost, or fewer than 2 m where several sources cross
    together. Where an epoch has fewer than 2 m steps it cannot be cut: it is lost where it does not fit as a whole.
    """
    quota, turns = case.quota()[stock.name], case.quota()[stock.name] // case.global_batch
    if case.kind == "debiased":
        most = max(1, case.most()[stock.name])
        return (most - 1 if turns >= 2 * most else turns - 1) * case.global_batch
    num_steps = sum(case.quota().values()) // case.global_batch
    return ceil(2 * max(1, *case.most().values()) * quota / num_steps) + 3


def check_passes(case: Case, epochs: int) -> None:
    copies_of_pass, quota = copies_by_pass(case, epochs), case.quota()
    for stock in case.stocks:
        numbers = sorted(number for name, number in copies_of_pass if name == stock.name)
        if not numbers:
            continue
        assert numbers == list(range(len(numbers)))  # none is skipped
        wanted = max(quota[stock.name], case.in_pass(stock))
        passes = oracle.passes_of(stock.total, wanted)
        for number in numbers:
            items = copies_of_pass[stock.name, number]
            assert len(set(items)) == len(items)  # no copy comes twice in a pass, whatever the epochs
            counts = Counter(item.sample for item in items)
            for (_, shard, row), count in counts.items():
                assert count <= oracle.bounds(stock.shards[shard][row], passes)[1]
            if number == numbers[-1] and quota[stock.name] < case.in_pass(stock):
                continue  # not over yet
            lost = wanted - len(items)
            assert 0 <= lost <= (lost_at_most(case, stock) if quota[stock.name] < case.in_pass(stock) else 0)
            assert missing_copies(stock, items, wanted) <= lost + case.global_batch


@drawn(15)
@given(short_cases("debiased"), st.integers(2, 6))
def test_over_epochs_each_sample_comes_as_often_in_a_pass_as_its_repeats_say(case: Case, epochs: int) -> None:
    check_passes(case, epochs)


@drawn(10)
@given(short_cases("mixed"), st.integers(2, 6))
def test_mixed_over_epochs_each_sample_comes_as_often_in_a_pass_as_its_repeats_say(case: Case, epochs: int) -> None:
    check_passes(case, epochs)


@drawn(12)
@given(short_cases("debiased"), st.integers(2, 6))
def test_an_epoch_that_crosses_a_pass_keeps_copies_in_different_global_batches(case: Case, epochs: int) -> None:
    crossed = 0
    for epoch in range(epochs):
        crossed += any(len(debiased_walk(case, stock, epoch)) > 1 for stock in case.stocks if case.quota()[stock.name])
        for batch in emitted(case.plan(epoch), case):
            assert len({item.sample for item in batch}) == case.global_batch
    event("crosses" if crossed else "never crosses")


@drawn(10)
@given(short_cases("mixed"), st.integers(2, 6))
def test_mixed_epochs_that_cross_a_pass_keep_copies_in_different_global_batches(case: Case, epochs: int) -> None:
    event("crosses" if any(len(segments(case, epoch)) > 1 for epoch in range(epochs)) else "never crosses")
    for epoch in range(epochs):
        for batch in emitted(case.plan(epoch), case):
            assert len({item.sample for item in batch}) == case.global_batch


@drawn(10)
@given(short_cases("debiased"), st.integers(2, 5))
def test_ranks_that_draw_alone_go_through_the_passes_together(case: Case, epochs: int) -> None:
    case = replace(case, same_source_across="rank")
    copies_of_pass: dict[tuple[str, int], list[Item]] = defaultdict(list)
    for epoch in range(epochs):
        plan = case.plan(epoch)
        steps = [by_rank(plan, case, step) for step in range(plan.num_steps)]
        for rank in range(case.world_size):
            for stock in case.stocks:
                mine = [of_ranks[rank] for of_ranks in steps if of_ranks[rank][0].name == stock.name]
                for part in debiased_walk(case, stock, epoch) if mine else []:
                    copies_of_pass[stock.name, part.pass_number] += [
                        item for batch in mine[: part.num_batches] for item in batch
                    ]
                    mine = mine[part.num_batches :]
    for items in copies_of_pass.values():
        assert len(set(items)) == len(items)  # each copy of a pass goes to one rank


@drawn(200)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 12), st.integers(1, 7), st.integers(0, 400))
def test_any_epoch_lies_where_walking_there_epoch_by_epoch_leads(
    per_pass: int, per_epoch: int, most: int, size: int, epoch: int
) -> None:
    most = min(most, per_epoch)
    segments_of_epoch = segments_of(
        epoch,
        num_steps=per_epoch,
        in_pass=[per_pass * size],
        most=most,
        taken=lambda step: [step * size],
        begin=[(0, 0)],
    )
    expected = oracle.walk(epoch, per_pass=per_pass, per_epoch=per_epoch, most=most)
    assert [(part.parts[0].pass_number, part.parts[0].first, part.num_steps) for part in segments_of_epoch] == [
        (part.pass_number, part.first * size, part.num_batches) for part in expected
    ]
    assert [part.parts[0].num_copies for part in segments_of_epoch] == [part.num_batches * size for part in expected]


def even(quota: Sequence[int], size: int) -> Callable[[int], list[int]]:
    return lambda step: spread(quota, step * size)


@st.composite
def mixtures(draw: DrawFn) -> tuple[list[int], list[int], int, int, int]:
    """Draw quotas and passes of sources that share their steps: (quota, in_pass, num_steps, batch, most)."""
    most, size = draw(st.integers(1, 8)), draw(st.integers(1, 20))
    num_steps = draw(st.integers(most, 60))
    cuts = sorted(draw(st.lists(st.integers(0, num_steps * size), max_size=4)))
    edges = [0, *cuts, num_steps * size]
    quota = [stop - start for start, stop in itertools.pairwise(edges)]
    in_pass = [1 + int(each * draw(st.floats(0.7, 5))) for each in quota]
    return quota, in_pass, num_steps, size, most


@drawn(60)
@given(mixtures(), st.integers(0, 20))
def test_segments_tile_an_epoch_and_passes_follow_each_other(
    mixture: tuple[list[int], list[int], int, int, int], start: int
) -> None:
    quota, in_pass, num_steps, size, most = mixture
    ends: list[tuple[int, int] | None] = [None] * len(quota)  # (pass, copy) at which each source goes on
    for epoch in range(start, start + 6):
        segments_of_epoch = segments_of(
            epoch, num_steps=num_steps, in_pass=in_pass, most=most, taken=even(quota, size), begin=[(0, 0)] * len(quota)
        )
        assert [part.start for part in segments_of_epoch] == [
            sum(earlier.num_steps for earlier in segments_of_epoch[:i]) for i in range(len(segments_of_epoch))
        ]
        assert sum(part.num_steps for part in segments_of_epoch) == num_steps
        assert all(part.num_steps >= most for part in segments_of_epoch)
        for source, each in enumerate(quota):
            parts = [segment.parts[source] for segment in segments_of_epoch]
            assert sum(part.num_copies for part in parts) == each
            if each >= in_pass[source]:
                assert {part.pass_number for part in parts} == {epoch}
                continue
            for pass_number, first, copies in parts:
                assert first + copies <= in_pass[source]
                if copies:
                    assert ends[source] in (None, (pass_number, first)) or first == 0
                    goes_on = ends[source]
                    if goes_on is not None and goes_on != (pass_number, first):
                        assert pass_number == goes_on[0] + 1
                        lost_steps = (in_pass[source] - goes_on[1] - 3) * num_steps / each
                        assert lost_steps < 2 * most
                    ends[source] = (pass_number, first + copies)


@drawn(8)
@given(st.integers(20, 300), st.integers(2, 16), st.integers(1, 5), st.integers(1, 7), st.integers(0, 1 << 30))
def test_what_a_pass_leaves_over_changes_from_pass_to_pass(
    rows: int, batch_size: int, shards: int, seed: int, workers: int
) -> None:
    rows += rows % batch_size == 0
    sizes = [rows // shards + (shard < rows % shards) for shard in range(shards)]
    stock = Stock(name="a", shards=tuple((ONE,) * size for size in sizes))
    case = replace(SMALL, stocks=(stock,), batch_size=batch_size, seed=seed, workers=workers % 6)
    every = {("a", shard, row) for shard, size in enumerate(sizes) for row in range(size)}
    left_over = set()
    for epoch in range(8):
        emitted_now = [item.sample for batch in emitted(case.plan(epoch), case) for item in batch]
        assert len(set(emitted_now)) == len(emitted_now)
        assert len(every - set(emitted_now)) == rows % batch_size
        left_over.add(frozenset(every - set(emitted_now)))
    assert len(left_over) > 1


SMALL = replace(PLAIN, stocks=(Stock(name="a", shards=((ONE,) * 5, (ONE,) * 11, (ONE,) * 7)),), batch_size=5)


def test_over_many_passes_no_row_is_left_out_more_than_others() -> None:
    left_out: Counter[Sample] = Counter({("a", s, r): 0 for s, size in enumerate((5, 11, 7)) for r in range(size)})
    epochs = 400
    for epoch in range(epochs):
        here = {item.sample for batch in emitted(SMALL.plan(epoch), SMALL) for item in batch}
        left_out.update(sample for sample in left_out if sample not in here)
    share = 3 / 23  # 23 rows, batches of 5
    spread_of = (epochs * share * (1 - share)) ** 0.5
    assert sum(left_out.values()) == 3 * epochs
    assert all(abs(count - epochs * share) < 5 * spread_of for count in left_out.values())


def test_epochs_of_two_passes_give_each_sample_twice_or_what_its_repeats_make_of_it() -> None:
    stock = Stock(name="a", shards=((ONE,) * 30, (3 * ONE // 2,) * 20))  # 60 copies a pass
    case = replace(SMALL, stocks=(stock,), steps=24)  # 120 copies
    counts = Counter(item.sample for batch in emitted(case.plan(3), case) for item in batch)
    assert {counts["a", 0, row] for row in range(30)} <= {1, 2}  # one copy may be left over
    assert {counts["a", 1, row] for row in range(20)} <= {2, 3}
    assert sum(counts["a", 0, row] == 2 for row in range(30)) >= 29


@st.composite
def several_passes(draw: DrawFn) -> Case:
    """Draw one source without repeats that is seen up to six times an epoch."""
    sizes = draw(st.lists(st.integers(1, 100), min_size=1, max_size=5))
    rows, passes = sum(sizes), draw(st.floats(1.1, 6))
    batch_size, world_size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    case = replace(
        SMALL,
        stocks=(Stock(name="a", shards=tuple((ONE,) * size for size in sizes)),),
        batch_size=batch_size,
        world_size=world_size,
        workers=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 1 << 30)),
        steps=max(1, int(rows * passes / batch_size / world_size)),
    )
    return (
        case if case.is_feasible() else replace(case, batch_size=1, world_size=1, steps=max(rows, int(rows * passes)))
    )


@drawn(20)
@given(several_passes())
def test_a_sample_comes_back_only_after_about_a_whole_pass_of_its_consumer(case: Case) -> None:
    """Give or take a window. Only the sample at which the circle of a single run begins and ends may come sooner."""
    (stock,), quota = case.stocks, case.quota()["a"]
    rounds = ceil(quota * ONE / stock.total)
    plan = case.plan()
    dealer = plan._world(0).dealers[0]
    assert dealer is not None
    runs, _ = dealer._runs.runs(0)
    if runs.world_size != case.world_size or rounds == 1:
        event("less than a pass, or one run")
        return
    lanes: dict[tuple[int, int], list[list[Item]]] = defaultdict(list)
    for step in range(plan.num_steps):
        for rank, batch in enumerate(by_rank(plan, case, step)):
            lanes[step % max(1, case.workers) if runs.num_lanes > 1 else 0, rank].append(batch)
    measured = 0
    for batches in lanes.values():
        longest = 2 * runs.smallest - 1  # batches of a window: a copy moves by fewer than that
        apart = (len(batches) * case.batch_size // rounds - rounds) // case.batch_size - 2 * longest
        last_seen: dict[Sample, int] = {}
        sooner: set[Sample] = set()
        for turn, batch in enumerate(batches):
            for item in batch:
                if item.sample in last_seen and apart > 0:
                    measured += 1
                    sooner |= {item.sample} if turn - last_seen[item.sample] < apart else set()
                last_seen[item.sample] = turn
        assert len(sooner) <= (len(lanes) == 1)
    event("measured" if measured else "too short to measure")


@drawn(12)
@given(several_passes())
def test_until_the_last_window_of_its_first_round_no_consumer_sees_a_sample_again(case: Case) -> None:
    (stock,), quota = case.stocks, case.quota()["a"]
    rounds = ceil(quota * ONE / stock.total)
    plan = case.plan()
    dealer = plan._world(0).dealers[0]
    assert dealer is not None
    runs, _ = dealer._runs.runs(0)
    shortest = int(runs.demand[runs.demand > 0].min())
    batches = shortest * runs.batch_size // rounds // runs.batch_size - 2 * runs.smallest
    event("measured" if rounds > 1 and batches > 0 else "too short to measure")
    items = [item for batch in emitted(plan, case, range(max(0, batches * runs.num_lanes))) for item in batch]
    counts = Counter(item.sample for item in items)
    assert max(counts.values(), default=0) <= 2
    assert sum(count == 2 for count in counts.values()) <= runs.num_lanes * runs.world_size  # one on each cut


def test_an_epoch_too_short_to_be_cut_loses_fewer_than_2m_batches_at_the_end_of_a_pass() -> None:
    # 28 copies, global batches of 2: 14 batches a pass, 5 an epoch, at most m = 3 copies of a sample.
    stock = Stock(name="a", shards=((3 * ONE, *(ONE,) * 25),))
    case = replace(SMALL, stocks=(stock,), batch_size=2, steps=5)
    copies_of_pass = copies_by_pass(case, 3)
    assert [number for _, number in copies_of_pass] == [0, 1]
    assert case.most()["a"] == 3
    assert 14 - len(copies_of_pass["a", 0]) // 2 == 4  # an epoch of 5 has no two parts of at least 3


def test_fewer_than_2m_steps_are_lost_where_mixed_sources_cross_one_after_another() -> None:
    quota, in_pass, most, num_steps = [28, 264, 300], [100, 477, 514], 6, 37
    taken = even(quota, 16)
    last = [0, 0, 0]
    for epoch in range(12):
        for segment in segments_of(
            epoch, num_steps=num_steps, in_pass=in_pass, most=most, taken=taken, begin=[(0, 0)] * 3
        ):
            for source, (_, first, copies) in enumerate(segment.parts):
                if first == 0 and last[source]:
                    assert (in_pass[source] - last[source]) * num_steps / quota[source] < 2 * most
                last[source] = first + copies
