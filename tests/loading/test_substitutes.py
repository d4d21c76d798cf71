"""What may stand in for a dropped sample: of the same source, selected, and never twice in a global batch."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from equitar.planning.step_plan import StepPlan
from helpers.strategies import Case, Item, Kind, drawn, emitted, feasible_cases, made_feasible, read, stocks

EPOCHS = st.integers(0, 6)
Sample = tuple[str, int, int]


def stand_ins(plan: StepPlan, step: int, slot: int, name: str, tries: int) -> list[Sample]:
    return [(name, shard, row) for shard, row in islice(plan.substitutes(step, slot), tries)]


def check_step(case: Case, plan: StepPlan, step: int, tries: int) -> int:
    """Check the substitutes of all slots of a step; return how many there are."""
    size, num_offered = case.global_batch, 0
    groups = [range(size)]
    if case.same_source_across == "rank":  # then a rank's batch stands for itself
        groups = [range(first, first + case.batch_size) for first in range(0, size, case.batch_size)]
    shards = {stock.name: stock.shards for stock in case.stocks}
    for slots in groups:
        batch: list[Item] = read(plan, step, slots[0], slots[-1] + 1)
        taken = {item.sample for item in batch}
        for slot, item in zip(slots, batch, strict=True):
            offered = stand_ins(plan, step, slot, item.name, tries)
            num_offered += len(offered)
            assert all(shards[name][shard][row] > 0 for name, shard, row in offered)
            for sample in offered:
                assert sample not in taken  # neither in the global batch, nor offered to another slot or twice
                taken.add(sample)
    return num_offered


@pytest.mark.parametrize("kind", ["debiased", "mixed"])
@drawn(15)
@given(st.data(), EPOCHS)
def test_no_two_slots_of_a_global_batch_can_end_with_the_same_sample(
    kind: Kind, data: st.DataObject, epoch: int
) -> None:
    case = data.draw(feasible_cases(kind))
    plan = case.plan(epoch)
    steps = data.draw(st.lists(st.integers(0, plan.num_steps - 1), min_size=1, max_size=2))
    num_substitutes = [check_step(case, plan, step, tries=3) for step in steps]
    event("some" if all(num_substitutes) else "none at some step")


@pytest.mark.parametrize("kind", ["debiased", "mixed"])
@drawn(20)
@given(st.data(), EPOCHS)
def test_not_even_the_last_ones_tried_can_meet(kind: Kind, data: st.DataObject, epoch: int) -> None:
    """Small sources with repeats on several ranks: there, what a pass leaves over is tried too."""
    case = Case(
        kind=kind,
        stocks=(data.draw(stocks("a", kinds=["halves", "some whole"], rows=(12, 40))),),
        batch_size=data.draw(st.integers(1, 3)),
        world_size=data.draw(st.integers(2, 4)),
        workers=data.draw(st.integers(0, 2)),
        seed=data.draw(st.integers(0, 1 << 30)),
        shuffle=0,
        weights=None,
        steps=None,
    )
    feasible = made_feasible(case)
    assume(feasible is not None)
    assert feasible is not None
    plan = feasible.plan(epoch)
    for step in range(0, plan.num_steps, 1 + plan.num_steps // 8):
        check_step(feasible, plan, step, tries=1 << 20)


@drawn(15)
@given(st.data(), EPOCHS)
def test_with_agree_rank_no_two_slots_of_a_batch_can_end_with_the_same_sample(data: st.DataObject, epoch: int) -> None:
    case = data.draw(feasible_cases("debiased", same_source_across="rank"))
    plan = case.plan(epoch)
    check_step(case, plan, data.draw(st.integers(0, plan.num_steps - 1)), tries=3)


@pytest.mark.parametrize("kind", ["debiased", "mixed"])
@drawn(10)
@given(st.data(), EPOCHS)
def test_substitutes_are_the_same_whatever_was_asked_before(kind: Kind, data: st.DataObject, epoch: int) -> None:
    case = data.draw(feasible_cases(kind))
    plan = case.plan(epoch)
    steps = data.draw(st.lists(st.integers(0, plan.num_steps - 1), min_size=2, max_size=4))
    slots = [data.draw(st.integers(0, case.global_batch - 1)) for _ in steps]
    before = emitted(plan, case, steps)
    asked = [list(islice(plan.substitutes(step, slot), 4)) for step, slot in zip(steps, slots, strict=True)]
    assert emitted(plan, case, steps) == before  # asking for them moves nothing
    fresh = [list(islice(case.plan(epoch).substitutes(step, slot), 4)) for step, slot in zip(steps, slots, strict=True)]
    assert fresh == asked


@drawn(15)
@given(st.data(), EPOCHS)
def test_every_substitute_is_tried_once_and_then_they_end(data: st.DataObject, epoch: int) -> None:
    case = data.draw(feasible_cases("debiased"))
    plan = case.plan(epoch)
    step, slot = data.draw(st.integers(0, plan.num_steps - 1)), data.draw(st.integers(0, case.global_batch - 1))
    every = list(plan.substitutes(step, slot))
    assert len(set(every)) == len(every)
    event("none at all" if not every else "some")
