"""What other thresholds would do to an epoch: one look at the labels of every row answers for all of them at once.

Whatever the threshold, r(c) falls with f(c). So there is one order of the classes in which the first label of a sample is the one
that gives it its factor, r(I): how many samples have which class first is all that a threshold needs to know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
from equitar.sidecars.catalog import Catalog, ShardRows, labels_of

_MOST_ROWS = 9  # of the table


@dataclass(slots=True, kw_only=True)
class LabelledRows:
    """The labels of the rows of one source."""

    counts: ClassCounts
    falling: Float64  # (classes,), the rarer the smaller: which label of a row is the first
    first: Float64  # how many rows have each class first, (classes,), selection counted
    unlabelled: float = 0.0  # how many have no label, selection counted
    numbers: Int64 = field(default_factory=lambda: np.zeros(1, np.int64))  # how many have 0, 1, 2, ... labels
    heaviest: float = 0.0  # largest number by which the selection multiplies a row


class ThresholdOutcome(NamedTuple):
    """What a threshold would make of an epoch.

    Attributes:
        name: The threshold as it is written.
        threshold: Its value; None if sources have different ones.
        copies: Samples in one pass of all sources, repeats counted: the expected number.
        steps: Steps of the epoch; None without a plan.
        problem: Why there is no plan; None if there is one, or no steps were asked for.
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


class LabelledRowCounter:
    """Counts which label comes first in each row while supplies are made."""

    def __init__(self, catalog: Catalog, factor: RepeatFactor) -> None:
        """Take the order of the classes from their counts in the catalog."""
        labelled = [source for source in range(len(catalog.sources)) if catalog.has_labels(source)]
        counts = [catalog.class_counts(source, factor) for source in labelled]
        # Factors as large as they get tell every frequency apart, and know what is ignored.
        largest = class_factors(counts, replace(factor, threshold=1.0, cap=None))
        self.rows: list[LabelledRows | None] = [None] * len(catalog.sources)  # None for a source without labels
        for source, of_source, factors in zip(labelled, counts, largest, strict=True):
            falling = -factors.astype(np.float64)
            self.rows[source] = LabelledRows(counts=of_source, falling=falling, first=np.zeros(len(factors)))

    def needs(self, source: int) -> bool:
        """Return whether a source has labels."""
        return self.rows[source] is not None

    def visit(self, rows: ShardRows) -> None:
        """Count the rows of one shard."""
        sums = self.rows[rows.source]
        if sums is None:
            return
        presence, weight = labels_of(rows.sidecar), np.ones(rows.sidecar.num_rows)
        if rows.share is not None:
            presence, weight = presence.kept(rows.share > 0), rows.share[rows.share > 0]
        first = rarest_labels(presence, sums.counts.ids, sums.falling)
        sums.first += np.bincount(first[first >= 0], weight[first >= 0], minlength=len(sums.first))
        sums.unlabelled += float(weight[first < 0].sum())
        sums.numbers = summed([sums.numbers, np.bincount(np.diff(presence.indptr))])
        sums.heaviest = max(sums.heaviest, float(weight.max(initial=0)))


def summed(columns: Sequence[Int64]) -> Int64:
    """Return the sums of columns of different lengths, (length of the longest,)."""
    sums = np.zeros(max(map(len, columns)), np.int64)
    for column in columns:
        sums[: len(column)] += column
    return sums


def threshold_outcomes(
    rows: Sequence[LabelledRows | None],
    supplies: Sequence[Supply],
    factor: RepeatFactor,
    *,
    chosen: float | Literal["median"] | None,
    plan: Callable[[Sequence[Supply]], Plan] | None,
) -> tuple[ThresholdOutcome, ...]:
    """Return what thresholds would do, from 0 to one above most classes.

    Args:
        rows: The labels of the rows of each source.
        supplies: The sources as they are planned with, in the same order.
        factor: Everything about repeats apart from the threshold.
        chosen: The threshold that is planned with; None if it is not a threshold.
        plan: Makes the plan of an epoch; None leaves steps out.
    """
    counts = [of_source.counts for of_source in rows if of_source is not None]
    frequency = np.concatenate([np.zeros(0), *heuristic_frequencies(counts, factor)])
    frequency = frequency[frequency > 0]
    thresholds: set[float | Literal["median"]] = {0.0}
    thresholds |= {*candidate_thresholds(frequency), "median"} if len(frequency) else set()
    thresholds |= set() if chosen is None else {chosen}
    median = float(np.median(frequency)) if len(frequency) else 0.0
    return tuple(
        _outcome(rows, supplies, replace(factor, threshold=threshold), plan, is_chosen=threshold == chosen)
        for threshold in sorted(thresholds, key=lambda threshold: median if threshold == "median" else threshold)
    )


def candidate_thresholds(frequency: Float64) -> list[float]:
    """Return thresholds of one and three times powers of ten: from above the rarest class to above most classes.

    >>> candidate_thresholds(np.array([2e-4, 1e-3, 2e-3, 0.5]))
    [0.0003, 0.001, 0.003, 0.01, 0.03]
    """
    steps = [float(f"{lead}e{power}") for power in range(-9, 1) for lead in (1, 3) if (lead, power) != (3, 0)]
    usual = min(1.0, 10 * float(np.median(frequency)))
    last = next(index for index, step in enumerate(steps) if step >= usual)
    return [step for step in steps[: last + 1] if step > frequency.min()][-_MOST_ROWS:]


def _outcome(
    rows: Sequence[LabelledRows | None],
    supplies: Sequence[Supply],
    factor: RepeatFactor,
    plan: Callable[[Sequence[Supply]], Plan] | None,
    *,
    is_chosen: bool,
) -> ThresholdOutcome:
    counts = [of_source.counts for of_source in rows if of_source is not None]
    factors = class_factors(counts, factor)
    factors_left = iter(factors)
    repeated = [
        supply if of_source is None else _supply(of_source, next(factors_left), supply, factor)
        for of_source, supply in zip(rows, supplies, strict=True)
    ]
    steps, problem = None, None
    if plan is not None and not (factor.threshold and None in rows):  # repeats need labels in every source
        try:
            steps = plan(repeated).num_steps
        except PlanError as error:
            problem = str(error)
    values = set(thresholds_of(counts, heuristic_frequencies(counts, factor), factor))
    of_classes = _by_class(counts, factors)
    return ThresholdOutcome(
        name=factor.threshold if isinstance(factor.threshold, str) else f"{factor.threshold:g}",
        threshold=values.pop() if len(values) == 1 else None,
        copies=sum(supply.total for supply in repeated) / ONE,
        steps=steps,
        problem=problem,
        repeated=int((of_classes > ONE).sum()),
        largest=float(of_classes.max(initial=ONE)) / ONE,
        is_chosen=is_chosen,
    )


def _supply(rows: LabelledRows, factors: Int64, supply: Supply, factor: RepeatFactor) -> Supply:
    """Return what a plan would know of a source with these factors of its classes; its rows are not asked for."""
    if factor.rounding == "ceil":
        factors = -(-factors // ONE) * ONE
    total = round(float(rows.first @ factors) + rows.unlabelled * factor.without_labels)
    of_unlabelled = factor.without_labels if rows.unlabelled else 0
    largest = max(int(factors[rows.first > 0].max(initial=0)), of_unlabelled)
    return replace(
        supply,
        shard_ids=np.zeros(1, np.uint64),
        num_rows=np.array([supply.num_rows.sum()]),
        sums=np.array([total]),
        largest=int(largest * rows.heaviest),
        factors=Once(supply.num_rows),
    )


def _by_class(counts: Sequence[ClassCounts], factors: Sequence[Int64]) -> Int64:
    """Return the factor of every class: the largest of its sources; classes of one name are one, 1 for those without samples."""
    largest: dict[object, int] = {}
    for source, (of_source, of_ids) in enumerate(zip(counts, factors, strict=True)):
        names = of_source.names or [(source, label) for label in of_source.ids.tolist()]
        for name, factor in zip(names, of_ids.tolist(), strict=True):
            largest[name] = max(largest.get(name, 0), factor)
    return np.array([*largest.values()], np.int64)
