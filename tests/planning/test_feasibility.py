"""What cannot be kept is refused before the first step, with what was found, where, and what to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from equitar.errors import PlanError
from equitar.planning.feasibility import largest_that_fits
from equitar.planning.plan import Plan, PlanSpec
from equitar.planning.recipes import Debiased
from equitar.planning.repeat_factors import ONE
from equitar.planning.weights import Passes
from helpers.strategies import PLAIN, Case, Stock, drawn, feasible_cases, refusal


def stock(name: str, *factors: float) -> Stock:
    return Stock(name=name, shards=(tuple(int(factor * ONE) for factor in factors),))


SMALL = replace(PLAIN, stocks=(stock("a", *[1] * 40),), batch_size=4, world_size=2)
SPEC: dict[str, Any] = {"batch_size": 4, "world_size": 2, "lanes": 1, "seed": 0, "epoch": 0, "shuffle": 0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"stocks": (stock("cc", *[1] * 7), stock("lvis", *[1] * 100))},
            (
                r"source 'cc' has 7 samples but one global batch needs 8 \(2 ranks x 4\); use `small_sources=\"leave_out\"` "
                r"\(`--small-sources leave_out`\) or `mixed` \(`--mixed`\), or lower `batch_size` to at most 3$"
            ),
        ),
        (
            {"stocks": (stock("big", *[1] * 100), *(stock(f"s{number}", *[1] * 7) for number in range(3)))},
            r"'s0' has 7 samples but one global batch needs 8 \(2 ranks x 4\), and 2 more of 4 sources have too few; use ",
        ),
        (
            {"stocks": (stock("a", *[1] * 5), stock("b", *[1] * 5))},
            (
                r"source 'a' has 5 samples but one global batch needs 8 \(2 ranks x 4\), and 1 more of 2 sources have too "
                r"few; use `mixed` \(`--mixed`\), or lower `batch_size` to at most 2$"
            ),
        ),
        (
            {"stocks": (stock("lvis", 6, *[1] * 20),)},
            (
                r"source 'lvis' has up to 6 copies of a sample but 3 global batches an epoch \(2 ranks x 4\); "
                r"lower `batch_size` to at most 2$"
            ),
        ),
        (
            {"stocks": (stock("lvis", 3, 1),)},
            (
                r"source 'lvis' has 4 copies but one global batch needs 8 .*; no smaller `batch_size` helps: "
                r"repeat less \(`cap`, a lower threshold\) or leave the source out$"
            ),
        ),
        (
            {"stocks": (stock("a", *[1] * 40), stock("b"))},
            "source 'b' has no samples; leave it out or give it weight 0",
        ),
        (
            {"stocks": (stock("a", *[1] * 40), stock("b", *[1] * 40)), "weights": {"a": 99, "b": 1}, "steps": 10},
            "source 'b' has a weight but its share of the steps rounds to none; raise it or `steps`",
        ),
        ({"weights": {"a": 1}, "steps": 0}, "`steps` must be an integer >= 1; got 0"),
        ({"steps": True}, "`steps` must be an integer >= 1; got True"),
        ({"stocks": ()}, "a plan needs at least one source; got none"),
        (
            {"stocks": (stock("a", 1), stock("b", 1), stock("a", 1))},
            "names of sources must be unique; two are called 'a'",
        ),
        ({"weights": Passes({"a": 0.1})}, "source 'a' has a weight but its share of the steps rounds to none"),
    ],
)
def test_a_debiased_plan_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(SMALL, **changed).plan()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"stocks": (stock("a", *[1] * 3), stock("b", *[1] * 4))},
            (
                r"the sources have fewer than the 8 samples of one global batch \(2 ranks x 4\); "
                r"lower `batch_size` to at most 3$"
            ),
        ),
        (
            {"stocks": (stock("a", *[1] * 10), stock("b", 5, *[1] * 9))},
            (
                r"source 'b' has up to 5 copies of a sample but 3 global batches \(2 ranks x 4\); "
                r"lower `batch_size` to at most 2$"
            ),
        ),
        (
            {"stocks": (stock("a", *[1] * 40), stock("b"))},
            "source 'b' has no samples; leave it out or give it weight 0",
        ),
        ({"steps": -3}, "`steps` must be an integer >= 1; got -3"),
        ({"stocks": ()}, "a plan needs at least one source; got none"),
    ],
)
def test_a_mixed_plan_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(SMALL, kind="mixed", **changed).plan()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("world_size", 0),
        ("lanes", 0),
        ("seed", -1),
        ("epoch", -1),
        ("shuffle", -1),
        ("batch_size", 2.5),
    ],
)
def test_numbers_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=f"`{name}` must be an integer >= [01]; got {value}"):
        PlanSpec(**{**SPEC, name: value})


def test_true_is_no_batch_size() -> None:
    with pytest.raises(PlanError, match="`batch_size` must be an integer >= 1; got True"):
        PlanSpec(**{**SPEC, "batch_size": True})


def test_an_empty_source_of_weight_zero_stays_out() -> None:
    case = replace(SMALL, stocks=(*SMALL.stocks, stock("b")), weights={"a": 1, "b": 0})
    assert [account.quota for account in case.plan().account] == [40, 0]
    assert [account.quota for account in replace(case, kind="mixed").plan().account] == [40, 0]


@pytest.mark.parametrize(("factor", "is_feasible"), [(4, True), (4.01, False), (5, False)])
def test_as_many_copies_as_batches_are_the_most(factor: float, is_feasible: bool) -> None:
    case = replace(SMALL, stocks=(stock("a", factor, *[1] * 31),))  # 35 copies: 4 global batches of 8
    assert case.is_feasible() == is_feasible
    if is_feasible:
        case.plan()
    else:
        with pytest.raises(PlanError, match="5 copies of a sample but 4 global batches"):
            case.plan()


def test_a_source_that_just_fills_a_global_batch_is_legal() -> None:
    assert replace(SMALL, stocks=(stock("a", *[1] * 8),)).plan().num_steps == 1


def test_refusals_are_the_same_for_every_epoch_and_number_of_workers() -> None:
    case = replace(SMALL, stocks=(stock("a", 6, *[1] * 20),))
    messages = set()
    for epoch in range(4):
        for workers in (1, 2, 5):
            with pytest.raises(PlanError) as debiased:
                replace(case, workers=workers).plan(epoch)
            with pytest.raises(PlanError) as mixed:
                replace(case, workers=workers, kind="mixed").plan(epoch)
            messages.add((str(debiased.value), str(mixed.value)))
    assert len(messages) == 1


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_batch_size_that_is_advised_for_held_batches_is_the_largest_that_works(world_size: int) -> None:
    recipe = Debiased(
        weights=None,
        steps=None,
        max_passes=None,
        restart_each_epoch=False,
        same_source_across="world",
        small_sources="error",
        accumulation_steps=3,
    )
    supply = stock("a", *[1] * 20).supply()

    def plan(batch_size: int) -> Plan:
        return recipe.plan([supply], PlanSpec(**{**SPEC, "batch_size": batch_size, "world_size": world_size}))

    largest = 20 // 3 // world_size
    assert plan(largest).num_steps == 3
    for batch_size in (largest + 1, 20):
        with pytest.raises(PlanError, match=rf"needs {batch_size * world_size * 3} .*to at most {largest}$"):
            plan(batch_size)


@drawn(100)
@given(st.integers(0, 5000), st.integers(1, 5000))
def test_the_largest_batch_size_is_found_in_few_tries(largest: int, too_large: int) -> None:
    largest = min(largest, too_large - 1)
    tries: list[int] = []

    def fits(size: int) -> bool:
        tries.append(size)
        return size <= largest

    assert largest_that_fits(fits, too_large) == largest
    assert len(tries) <= 64 + 80


@drawn(100)
@given(st.sets(st.integers(1, 63)), st.integers(65, 5000))
def test_up_to_64_every_batch_size_is_tried(fitting: set[int], too_large: int) -> None:
    assert largest_that_fits(fitting.__contains__, too_large) == max(fitting, default=0)


@drawn(12)
@given(feasible_cases("debiased", kinds=["once", "long tail"]), st.integers(2, 40))
def test_the_batch_size_that_is_advised_is_that_of_a_full_search(case: Case, factor: int) -> None:
    case = replace(case, weights=None, steps=None, batch_size=case.batch_size * factor)
    refused = refusal(case)
    assume(refused is not None)
    assume("has no samples" not in (refused or ""))  # which no batch size helps, and another message says
    sizes = range(case.batch_size - 1, 0, -1)
    largest = next((size for size in sizes if refusal(replace(case, batch_size=size)) is None), None)
    advice = "no smaller `batch_size` helps" if largest is None else f"lower `batch_size` to at most {largest}"
    assert advice in (refused or "")


def test_the_batch_size_is_advised_after_few_plans_for_many_sources() -> None:
    rows = [300 + 7 * number for number in range(500)]
    case = replace(SMALL, stocks=tuple(stock(f"s{number:03}", *[1] * length) for number, length in enumerate(rows)))
    plans = 0

    def fits(size: int) -> bool:
        nonlocal plans
        plans += 1
        return 2 * size <= min(rows)

    assert largest_that_fits(fits, 4096) == 150
    assert plans < 60
    with pytest.raises(PlanError, match=r"to at most 150$"):
        replace(case, batch_size=4096).plan()
