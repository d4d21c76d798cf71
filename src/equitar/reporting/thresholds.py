"""What would another threshold do? One look at the labels of every row answers for all thresholds at once.

Whatever the threshold, r(c) falls with f(c). So there is one order of the classes in which the first label of a sample is the one
that gives it its factor, r(I): how many samples have which class first is all that a threshold needs to know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.errors import PlanError
from equitar.planning.plan import Plan
from equitar.planning.repeat_factors import (
    ONE,
    ClassCounts,
    RepeatFactor,
    class_factors,
    heuristic_frequencies,
    rarest_labels,
    thresholds_of,
)
from equitar.planning.supply import Once, Supply
from equitar.sidecars.catalog import Catalog, class_counts
from equitar.sidecars.selection import selection_of
from equitar.sidecars.store import Sidecars

_MOST_ROWS = 9  # of the table


class LabelledRows(NamedTuple):
    """What the rows of one source say.

    Attributes:
        counts: How many of them contain each class.
        first: How many have each class first, (classes,), selection counted.
        bare: How many have no label, selection counted.
        numbers: How many have 0, 1, 2, ... labels.
        heaviest: Largest number by which selection multiplies a row.
    """

    counts: ClassCounts
    first: Float64
    bare: float
    numbers: Int64
    heaviest: float


class ThresholdOutcome(NamedTuple):
    """What a threshold would make of an epoch.

    Attributes:
        name: The threshold as one would write it.
        threshold: Its value; None if sources have different ones.
        copies: Samples in one pass of all sources, repeats counted: the expected number.
        steps: Steps of the epoch; None without a plan.
        problem: Why there would be no plan, in words; None if there is one, or none was asked for.
        repeated: Classes with a factor above 1, classes of the same name counted once.
        largest: Largest factor of a class that occurs.
        is_chosen: Whether this is the threshold that the report is about.
    """

    name: str
    threshold: float | None
    copies: float
    steps: int | None
    problem: str | None
    repeated: int
    largest: float
    is_chosen: bool


def labelled_rows(catalog: Catalog, how: RepeatFactor) -> list[LabelledRows | None]:
    """Return what the rows of each source say; None for a source without labels. Every sidecar is read once."""
    labelled = [one.label_counts is not None for one in catalog.summaries]
    counts = [
        class_counts(sidecars, summary, selection_of(sidecars.source), how)
        for sidecars, summary, known in zip(catalog.sidecars, catalog.summaries, labelled, strict=True)
        if known
    ]
    # Factors as large as they get tell every frequency apart, and know what is ignored.
    orders = iter(zip(counts, class_factors(counts, replace(how, threshold=1.0, cap=None)), strict=True))
    return [
        _rows(sidecars, *next(orders)) if known else None
        for sidecars, known in zip(catalog.sidecars, labelled, strict=True)
    ]


def _rows(sidecars: Sidecars, counts: ClassCounts, factors: Int64) -> LabelledRows:
    selection = selection_of(sidecars.source)
    first, numbers, bare, heaviest = np.zeros(len(counts.ids)), [np.zeros(1, np.int64)], 0.0, 0.0
    for path, sidecar in zip(sidecars.shards.paths, sidecars.all(), strict=True):
        assert sidecar.presence is not None, "a source has labels in all shards or in none"
        presence, weight = sidecar.presence, np.ones(sidecar.num_rows)
        if selection is not None:
            weight = selection(path, sidecar)
            presence, weight = presence.kept(weight > 0), weight[weight > 0]
        found = rarest_labels(presence, counts.ids, -factors.astype(np.float64))
        first += np.bincount(found[found >= 0], weight[found >= 0], minlength=len(first))
        bare += float(weight[found < 0].sum())
        numbers.append(np.bincount(np.diff(presence.indptr)))
        heaviest = max(heaviest, float(weight.max(initial=0)))
    return LabelledRows(counts, first, bare, summed(numbers), heaviest)


def summed(columns: Sequence[Int64]) -> Int64:
    """Return the sums of columns of different lengths, (length of the longest,)."""
    sums = np.zeros(max(map(len, columns)), np.int64)
    for one in columns:
        sums[: len(one)] += one
    return sums


def outlooks(
    rows: Sequence[LabelledRows | None],
    supplies: Sequence[Supply],
    how: RepeatFactor,
    *,
    chosen: float | Literal["median"] | None,
    plan: Callable[[Sequence[Supply]], Plan] | None,
) -> tuple[ThresholdOutcome, ...]:
    """Return what thresholds would do, from none to one above most classes.

    Args:
        rows: What the rows of each source say.
        supplies: The sources as they are planned with, in the same order.
        how: What else is said about repeats, apart from the threshold.
        chosen: The threshold that is planned with; None if it is no threshold.
        plan: Makes the plan of an epoch; None leaves steps out.
    """
    counts = [one.counts for one in rows if one is not None]
    found = np.concatenate([np.zeros(0), *heuristic_frequencies(counts, how)])
    found = found[found > 0]
    asked: set[float | Literal["median"]] = {0.0, *candidate_thresholds(found), "median"} if len(found) else {0.0}
    asked |= set() if chosen is None else {chosen}
    middle = float(np.median(found)) if len(found) else 0.0
    return tuple(
        _outlook(rows, supplies, replace(how, threshold=one), plan, is_chosen=one == chosen)
        for one in sorted(asked, key=lambda one: middle if one == "median" else one)
    )


def candidate_thresholds(frequency: Float64) -> list[float]:
    """Return thresholds of one and three times powers of ten: from above the rarest class to above most classes.

    >>> ladder(np.array([2e-4, 1e-3, 2e-3, 0.5]))
    [0.0003, 0.001, 0.003, 0.01, 0.03]
    """
    steps = [float(f"{lead}e{power}") for power in range(-9, 1) for lead in (1, 3) if (lead, power) != (3, 0)]
    usual = min(1.0, 10 * float(np.median(frequency)))
    last = next(at for at, one in enumerate(steps) if one >= usual)
    return [one for one in steps[: last + 1] if one > frequency.min()][-_MOST_ROWS:]


def _outlook(
    rows: Sequence[LabelledRows | None],
    supplies: Sequence[Supply],
    how: RepeatFactor,
    plan: Callable[[Sequence[Supply]], Plan] | None,
    *,
    is_chosen: bool,
) -> ThresholdOutcome:
    counts = [one.counts for one in rows if one is not None]
    factors = class_factors(counts, how)
    of_rows = iter(factors)
    found = [
        supply if one is None else _supply(one, next(of_rows), supply, how)
        for one, supply in zip(rows, supplies, strict=True)
    ]
    steps, problem = None, None
    if plan is not None and not (how.threshold and None in rows):  # repeats need labels in every source
        try:
            steps = plan(found).num_steps
        except PlanError as error:
            problem = str(error)
    values = set(thresholds_of(counts, heuristic_frequencies(counts, how), how))
    of_classes = _by_class(counts, factors)
    return ThresholdOutcome(
        name=how.threshold if isinstance(how.threshold, str) else f"{how.threshold:g}",
        threshold=values.pop() if len(values) == 1 else None,
        copies=sum(one.total for one in found) / ONE,
        steps=steps,
        problem=problem,
        repeated=int((of_classes > ONE).sum()),
        largest=float(of_classes.max(initial=ONE)) / ONE,
        is_chosen=is_chosen,
    )


def _supply(rows: LabelledRows, factors: Int64, supply: Supply, how: RepeatFactor) -> Supply:
    """Return what a plan would know of a source with these factors of its classes; its rows are not asked for."""
    if how.rounding == "ceil":
        factors = -(-factors // ONE) * ONE
    total = round(float(rows.first @ factors) + rows.bare * how.without_labels)
    bare = how.without_labels if rows.bare else 0
    largest = max(int(factors[rows.first > 0].max(initial=0)), bare)
    return replace(
        supply,
        shard_ids=np.zeros(1, np.uint64),
        num_rows=np.array([supply.num_rows.sum()]),
        sums=np.array([total]),
        largest=int(largest * rows.heaviest),
        factors=Once(supply.num_rows),
    )


def _by_class(counts: Sequence[ClassCounts], factors: Sequence[Int64]) -> Int64:
    """Return the factor of every class, the largest of its sources; classes of the same name are one, those without samples have 1."""
    found: dict[object, int] = {}
    for source, (one, of_ids) in enumerate(zip(counts, factors, strict=True)):
        names = one.names or [(source, label) for label in one.ids.tolist()]
        for name, factor in zip(names, of_ids.tolist(), strict=True):
            found[name] = max(found.get(name, 0), factor)
    return np.array([*found.values()], np.int64)
