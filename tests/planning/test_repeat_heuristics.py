"""Heuristics by name, caps, exceptions, and frequencies over sources."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.errors import LabelError, PlanError
from equitar.planning.repeat_factors import ONE, RepeatFactor, Scope, count_classes
from equitar.samplers.dataset_plan import factors_by_labels
from equitar.samplers.label_rows import LabelRows

NAMES = ("cat", "dog", "emu", "fox")
named_rows = st.lists(st.lists(st.sampled_from(NAMES), max_size=4), min_size=1, max_size=30)


def factors(sources: dict[str, LabelRows], how: RepeatFactor) -> dict[str, list[float]]:
    return {name: (scaled / ONE).tolist() for name, scaled in factors_by_labels(sources, how).items()}


def of_rows(rows: list[list[int]], how: RepeatFactor) -> list[float]:
    return factors({"only": LabelRows.of_sets(rows)}, how)["only"]


ONE_RARE: list[list[int]] = [[0]] * 9 + [[1]]


@pytest.mark.parametrize(
    ("how", "factor"),
    [
        (RepeatFactor(0.4), 2.0),
        (RepeatFactor(0.4, power=1), 4.0),
        (RepeatFactor(0.4, power=0), 1.0),
        (RepeatFactor(0.4, power=1, cap=3), 3.0),
        (RepeatFactor(0.4, ignore=[1]), 1.0),
        (RepeatFactor(0.4, min_count=2), 1.0),
        (RepeatFactor(0.4, min_count=1), 2.0),
        (RepeatFactor("median"), math.sqrt(5)),
        (RepeatFactor("median", power=1), 5.0),
        (RepeatFactor(0.4, heuristic="irfs"), 2.0),  # one box an image: both fractions are equal
        (RepeatFactor(heuristic=lambda frequency: 1 / (10 * frequency) + 2), 3.0),
        (RepeatFactor(heuristic=lambda frequency: 1 / frequency, cap=7), 7.0),
    ],
)
def test_the_rare_label_gets_its_factor(how: RepeatFactor, factor: float) -> None:
    assert of_rows(ONE_RARE, how)[-1] == pytest.approx(factor, abs=1e-6)


def test_quarter_and_half_of_the_threshold() -> None:
    assert of_rows([[0]] * 7 + [[1]], RepeatFactor(0.5))[-1] == pytest.approx(2.0)
    assert of_rows([[0]] * 7 + [[1]], RepeatFactor(0.25))[-1] == pytest.approx(1.414214, abs=1e-6)


def test_boxes_count_for_irfs_alone() -> None:
    rows = [[0] * 50, *[[1]] * 9]
    assert of_rows(rows, RepeatFactor(0.4))[0] == pytest.approx(2.0)
    many = math.sqrt(0.1 * 50 / 59)
    assert of_rows(rows, RepeatFactor(0.4, heuristic="irfs"))[0] == pytest.approx(math.sqrt(0.4 / many), abs=1e-6)


def test_samples_without_labels_come_once_or_not_at_all() -> None:
    rows: list[list[int]] = [[0], [], [1], [0], []]
    assert of_rows(rows, RepeatFactor(0.4)) == pytest.approx([1, 1, math.sqrt(2), 1, 1], abs=1e-6)
    dropped = of_rows(rows, RepeatFactor(0.4, empty="drop"))
    assert dropped == pytest.approx([1, 0, math.sqrt(0.4 * 3), 1, 0], abs=1e-6)  # a third of those that are left


@given(first=named_rows, second=named_rows, threshold=st.floats(0, 1))
def test_a_source_that_does_not_know_a_class_changes_nothing_for_it(
    first: list[list[str]], second: list[list[str]], threshold: float
) -> None:
    first_labels = LabelRows.of_sets(first, classes=NAMES)
    second_labels = LabelRows.of_sets(second, classes=NAMES)
    foreign = LabelRows.of_sets([["gnu"], [], ["gnu", "hen"]], classes=["gnu", "hen"])
    unnamed = LabelRows.of_sets([[0], [1], [1]])
    how = RepeatFactor(threshold)
    alone = factors({"one": first_labels, "two": second_labels}, how)
    together = factors({"one": first_labels, "two": second_labels, "foreign": foreign, "unnamed": unnamed}, how)
    assert {name: together[name] for name in alone} == alone


@given(first=named_rows, second=named_rows, threshold=st.floats(0, 1), scope=st.sampled_from(["all", "source"]))
def test_frequencies_are_over_the_sources_that_know_a_class(
    first: list[list[str]], second: list[list[str]], threshold: float, scope: Scope
) -> None:
    sets = {"one": first, "two": second}
    sources = {name: LabelRows.of_sets(rows, classes=NAMES) for name, rows in sets.items()}
    factors_of = factors(sources, RepeatFactor(threshold, scope=scope))
    for name, rows in sets.items():
        over = first + second if scope == "all" else rows
        for row, factor in zip(rows, factors_of[name], strict=True):
            naive = [math.sqrt(threshold / (sum(label in labels for labels in over) / len(over))) for label in row]
            assert factor == pytest.approx(max([1.0, *naive]), abs=1e-6)


def test_min_count_is_over_the_sources_that_know_a_class() -> None:
    sources = {
        "one": LabelRows.of_sets([["dog"]] * 5 + [["cat"]], classes=NAMES),
        "two": LabelRows.of_sets([["dog"]] * 5 + [["cat"]], classes=NAMES),
    }
    assert factors(sources, RepeatFactor(0.5, min_count=2))["one"][-1] > 1
    assert factors(sources, RepeatFactor(0.5, min_count=2, scope="source"))["one"][-1] == 1


def test_a_median_counts_a_shared_class_once() -> None:
    classes = ["a", "b", "c"]
    sources = {name: LabelRows.of_sets([["a"]] * 8 + [["b"]] * 4 + [["c"]], classes=classes) for name in "xy"}
    factors_of = factors({**sources, "z": LabelRows.of_sets([["a"]], classes=["a"])}, RepeatFactor("median"))
    assert factors_of["x"][-1] == pytest.approx(2.0)  # f(b) is the median of three


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": "mean"}, r"`threshold` .* got 'mean'"),
        ({"threshold": 1.5}, r"`threshold` .* got 1.5"),
        ({"heuristic": "lviz"}, r"`heuristic` .* got 'lviz'"),
        ({"threshold": 0.1, "heuristic": abs}, r"`threshold` must be left out .* got 0.1"),
        ({"min_count": -1}, r"`min_count` must be >= 0; got -1"),
        ({"empty": "repeat"}, r"`empty` .* got 'repeat'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepeatFactor(**arguments)


@pytest.mark.parametrize(
    "wrong", [lambda frequency: -frequency, lambda frequency: frequency[:1], lambda _: [np.nan, 1]]
)
def test_a_function_must_give_a_factor_for_each_label(wrong: Any) -> None:
    with pytest.raises(PlanError, match="`heuristic` must give a finite factor >= 0 for each of 2 labels"):
        of_rows(ONE_RARE, RepeatFactor(heuristic=wrong))


def test_an_ignored_label_must_occur() -> None:
    with pytest.raises(LabelError, match="no source has 'person'"):
        of_rows(ONE_RARE, RepeatFactor(0.1, ignore=["person"]))


def test_instances_and_samples_are_counted_over_parts() -> None:
    rows = LabelRows.of_sets([[5, 5, 2], [], [5]] * 10_000)
    counts = count_classes(rows.parts(), names=None, empty="drop")
    assert counts.num_instances is not None
    assert (counts.ids.tolist(), counts.num_samples.tolist(), counts.num_instances.tolist(), counts.total) == (
        [2, 5],
        [10_000, 20_000],
        [10_000, 30_000],
        20_000,
    )
