"""Shares of an epoch: exact, whole, and named when they do not fit the sources."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.errors import PlanError
from equitar.planning.quotas import QuotaSpec, WeightPhase, largest_remainder, spread, weight_phases
from equitar.planning.supply import Supply
from equitar.planning.weights import Passes, Temperature, canonical_changes
from helpers import oracle
from helpers.strategies import drawn


def once(name: str, rows: int) -> Supply:
    return Supply.once(name, [f"{name}.tar"], np.array([rows]))


def shared(
    supplies: list[Supply], *, weights: Any, steps: int | None, size: int, left_out: Any = ()
) -> list[WeightPhase]:
    spec = QuotaSpec(weights=canonical_changes(weights), steps=steps, left_out=left_out, max_passes=None)
    return weight_phases(supplies, spec, global_batch=size, key=0)


def quotas(supplies: list[Supply], *, weights: Any = None, steps: int | None = None, size: int = 10) -> list[int]:
    (part,) = shared(supplies, weights=weights, steps=steps, size=size)
    return list(part.quotas)


@drawn(60)
@given(st.lists(st.fractions(0, 100, max_denominator=1000), min_size=1, max_size=6).filter(any), st.integers(0, 500))
def test_quotas_are_floor_or_ceiling_of_their_share_and_sum_to_the_total(shares: list[Fraction], total: int) -> None:
    parts = largest_remainder(shares, total)
    assert sum(parts) == total
    assert parts == oracle.share_out(shares, total)
    for share, quota in zip(shares, parts, strict=True):
        assert abs(quota - share * total / sum(shares)) < 1


@drawn(60)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=6).filter(any))
def test_items_are_spread_as_if_they_were_laid_out_and_sorted(quota: list[int]) -> None:
    for first in range(sum(quota) + 1):
        assert spread(quota, first) == oracle.spread_out(quota, first)


@drawn(60)
@given(st.lists(st.integers(1, 1 << 40), min_size=2, max_size=5), st.floats(0, 1), st.integers(0, 1000))
def test_what_is_spread_grows_and_stays_near_its_share(quota: list[int], part: float, more: int) -> None:
    total = sum(quota)
    first = min(total, int(part * total))
    here, later = spread(quota, first), spread(quota, min(total, first + more))
    assert sum(here) == first
    assert all(a <= b for a, b in zip(here, later, strict=True))
    for have, each in zip(here, quota, strict=True):
        assert abs(have - Fraction(each * first, total)) <= 1 + Fraction(len(quota), 2)


def test_nothing_asked_for_is_a_pass_of_each_source() -> None:
    assert quotas([once("a", 105), once("b", 47)]) == [10, 4]


def test_steps_without_weights_are_shared_out_by_size() -> None:
    assert quotas([once("a", 300), once("b", 100)], steps=8) == [6, 2]


def test_weights_without_steps_share_out_what_all_passes_hold() -> None:
    assert quotas([once("a", 300), once("b", 100)], weights={"a": 1, "b": 1}) == [20, 20]
    assert quotas([once("a", 300), once("b", 100)], weights={"b": 3, "a": 1}) == [10, 30]


def test_a_weight_of_zero_draws_a_source_never() -> None:
    assert quotas([once("a", 300), once("b", 100)], weights={"a": 0, "b": 1}) == [0, 40]


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, [36, 4]), (2.0, [30, 10])])
def test_a_temperature_evens_sizes_out(temperature: float, expected: list[int]) -> None:
    assert quotas([once("a", 900), once("b", 100)], weights=Temperature(temperature), steps=40) == expected


def test_passes_say_how_often_a_source_is_gone_through() -> None:
    assert quotas([once("a", 100), once("b", 100)], weights=Passes({"a": 2.5, "b": 0.5})) == [25, 5]
    assert quotas([once("a", 100), once("b", 100)], weights=Passes({"a": 2.5, "b": 0.5}), steps=60) == [50, 10]


def test_weights_change_at_their_steps() -> None:
    changes = [(0, {"a": 1, "b": 0}), (6, {"a": 1, "b": 3})]
    phases = shared([once("a", 100), once("b", 100)], weights=changes, steps=10, size=10)
    assert phases == [WeightPhase(0, (6, 0), (True, False)), WeightPhase(6, (1, 3), (True, True))]
    assert [(part.start, part.stop) for part in phases] == [(0, 6), (6, 10)]


def test_weights_may_name_what_is_left_out() -> None:
    (part,) = shared([once("a", 90)], weights={"a": 1, "b": 1}, steps=5, size=10, left_out={"b"})
    assert part.quotas == (5,)


NAN = float("nan")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1}, "`weights` must have one number for each of the sources a, b; 'b' has none"),
        ({"a": 1, "b": 1, "c": 1}, "`weights` must have one number for each of the sources a, b; 'c' is not a source"),
        ({"a": -1, "b": 1}, "`weights` must be finite numbers >= 0; got -1 for source 'a'"),
        ({"a": NAN, "b": 1}, "`weights` must be finite numbers >= 0; got nan for source 'a'"),
        ({"a": 1, "b": float("inf")}, "`weights` must be finite numbers >= 0; got inf for source 'b'"),
        ({"a": 0, "b": 0}, "`weights` must be positive for at least one source that has samples"),
        (Passes({"a": 1}), "`passes` must have one number for each of the sources a, b; 'b' has none"),
        (Passes({"a": 1, "b": -2}), "`passes` must be finite numbers >= 0; got -2 for source 'b'"),
        ([], r"changes of `weights` must begin at step 0 and increase below 20 steps; got steps \[\]"),
        ([(1, {"a": 1, "b": 1})], r"must begin at step 0 .* got steps \[1\]"),
        ([(0, {"a": 1, "b": 1}), (0, {"a": 1, "b": 1})], r"got steps \[0, 0\]"),
        ([(0, {"a": 1, "b": 1}), (20, {"a": 1, "b": 1})], r"below 20 steps; got steps \[0, 20\]"),
        (0.5, "`weights` must map the name of each source to a number; got 0.5"),
    ],
)
def test_weights_that_do_not_fit_are_named(weights: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        quotas([once("a", 100), once("b", 100)], weights=weights)


@pytest.mark.parametrize("temperature", [0.5, 0, -1, NAN, float("inf")])
def test_a_temperature_below_one_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="`temperature` must be a finite number >= 1"):
        Temperature(temperature)
