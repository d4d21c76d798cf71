"""What other thresholds would cost and bring: one look at the labels of every row answers for all of them at once.

Whatever the threshold, r(c) falls with f(c). So there is one order of the classes in which the first label of a sample is the one
that gives it its factor, r(I). How many samples have which class first is all that the length of a pass needs; how many copies each
class gets is summed up for every threshold in the same look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
from equitar.presence import positions_of
from equitar.reporting.balance import Balance, balance_of, group_of_classes, joined_classes, summed_by_class
from equitar.sidecars.catalog import Catalog, ShardRows, labels_of

Threshold: TypeAlias = float | Literal["median"]
_MOST_ROWS = 9  # of the table


@dataclass(slots=True, kw_only=True)
class LabelledRows:
    """The labels of the rows of one source."""

    counts: ClassCounts
    falling: Float64  # (classes,), the rarer the smaller: which label of a row is the first
    factors: Int64  # r(c) at each threshold, (thresholds, classes), in units of 2**-20 copies, rounded as rows are
    is_rare: NDArray[np.bool_]  # which classes are rare over all sources, (classes,)
    first: Float64  # how many rows have each class first, (classes,), selection counted
    rare_first: Float64  # of these, how many hold a rare class, (classes,)
    others: (
        Float64  # sum of r(I) over the rows that have a class, but not first, (thresholds, classes), selection counted
    )
    unlabelled: float = 0.0  # how many have no label, selection counted
    numbers: Int64 = field(default_factory=lambda: np.zeros(1, np.int64))  # how many have 0, 1, 2, ... labels
    heaviest: float = 0.0  # largest number by which the selection multiplies a row

    def copies(self, threshold: int) -> Float64:
        """Return the copies of samples with each class at a threshold, by its index, (classes,)."""
        result: Float64 = (self.first * self.factors[threshold] + self.others[threshold]) / ONE
        return result


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
        balance: How evenly the pass emits the classes; None if no sample has one.
    """

    name: str
    threshold: float | None
    copies: float
    steps: int | None
    problem: str | None
    repeated: int
    largest: float
    is_chosen: bool
    balance: Balance | None


class LabelledRowCounter:
    """Counts, while supplies are made, what thresholds would make of the rows: from 0 to one above most classes."""

    def __init__(self, catalog: Catalog, factor: RepeatFactor, chosen: Threshold | None) -> None:
        """Take the classes and their order from their counts in the catalog.

        Args:
            catalog: The sources.
            factor: Everything about repeats apart from the threshold.
            chosen: The threshold that is planned with; None if it is not a threshold.
        """
        self._chosen = chosen
        labelled = [source for source in range(len(catalog.sources)) if catalog.has_labels(source)]
        self._counts = [catalog.class_counts(source, factor) for source in labelled]
        names, self._columns = joined_classes([catalog.sources[source].name for source in labelled], self._counts)
        num_samples = [of_source.num_samples for of_source in self._counts]
        self._samples = summed_by_class(len(names), self._columns, num_samples).astype(np.int64)
        self._factors = [
            replace(factor, threshold=threshold) for threshold in _thresholds_to_show(self._counts, factor, chosen)
        ]
        by_threshold = [class_factors(self._counts, each) for each in self._factors]
        # Factors as large as they get tell every frequency apart, and know what is ignored.
        largest = class_factors(self._counts, replace(factor, threshold=1.0, cap=None))
        self.rows: list[LabelledRows | None] = [None] * len(catalog.sources)  # None for a source without labels
        for index, source in enumerate(labelled):
            factors = np.array([of_sources[index] for of_sources in by_threshold])
            num_classes = factors.shape[1]
            self.rows[source] = LabelledRows(
                counts=self._counts[index],
                falling=-largest[index].astype(np.float64),
                factors=-(-factors // ONE) * ONE if factor.rounding == "ceil" else factors,
                is_rare=group_of_classes(self._samples[self._columns[index]]) == 0,
                first=np.zeros(num_classes),
                rare_first=np.zeros(num_classes),
                others=np.zeros(factors.shape),
            )

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
        row_of = np.repeat(np.arange(presence.num_rows), np.diff(presence.indptr))  # (entries,)
        labels = positions_of(sums.counts.ids, presence.ids)  # (entries,)
        holds_rare = np.zeros(presence.num_rows, bool)
        holds_rare[row_of[sums.is_rare[labels]]] = True
        sums.rare_first += np.bincount(first[holds_rare], weight[holds_rare], minlength=len(sums.first))
        is_other = labels != first[row_of]
        of_rows, of_labels = row_of[is_other], labels[is_other]
        for threshold, factors in enumerate(sums.factors if len(of_rows) else ()):
            copies = np.bincount(of_labels, (factors[first] * weight)[of_rows], minlength=len(sums.first))
            sums.others[threshold] += copies
        sums.unlabelled += float(weight[first < 0].sum())
        sums.numbers = summed([sums.numbers, np.bincount(np.diff(presence.indptr))])
        sums.heaviest = max(sums.heaviest, float(weight.max(initial=0)))

    def outcomes(
        self, supplies: Sequence[Supply], plan: Callable[[Sequence[Supply]], Plan] | None
    ) -> tuple[ThresholdOutcome, ...]:
        """Return what thresholds would do, in increasing order, once all rows were looked at.

        Args:
            supplies: The sources as they are planned with, in the order of the catalog.
            plan: Makes the plan of an epoch; None leaves steps out.
        """
        return tuple(self._outcome(index, supplies, plan) for index in range(len(self._factors)))

    def _outcome(
        self, index: int, supplies: Sequence[Supply], plan: Callable[[Sequence[Supply]], Plan] | None
    ) -> ThresholdOutcome:
        factor = self._factors[index]
        repeated = [
            supply if of_source is None else _supply(of_source, of_source.factors[index], supply, factor)
            for of_source, supply in zip(self.rows, supplies, strict=True)
        ]
        steps, problem = None, None
        if plan is not None and not (factor.threshold and None in self.rows):  # repeats need labels in every source
            try:
                steps = plan(repeated).num_steps
            except PlanError as error:
                problem = str(error)
        values = set(thresholds_of(self._counts, heuristic_frequencies(self._counts, factor), factor))
        of_classes = _by_class(self._counts, class_factors(self._counts, factor))
        return ThresholdOutcome(
            name=factor.threshold if isinstance(factor.threshold, str) else f"{factor.threshold:g}",
            threshold=values.pop() if len(values) == 1 else None,
            copies=sum(supply.total for supply in repeated) / ONE,
            steps=steps,
            problem=problem,
            repeated=int((of_classes > ONE).sum()),
            largest=float(of_classes.max(initial=ONE)) / ONE,
            is_chosen=factor.threshold == self._chosen,
            balance=self._balance(index, repeated),
        )

    def _balance(self, index: int, repeated: Sequence[Supply]) -> Balance | None:
        """Return how evenly a pass emits the classes at a threshold, by its index."""
        labelled = [of_source for of_source in self.rows if of_source is not None]
        occurs = self._samples > 0
        if not occurs.any():
            return None
        copies = summed_by_class(len(occurs), self._columns, [of_source.copies(index) for of_source in labelled])
        return balance_of(
            self._samples[occurs],
            copies[occurs],
            rare_copies=sum(float(of_source.rare_first @ of_source.factors[index]) for of_source in labelled) / ONE,
            total=sum(
                supply.total for supply, of_source in zip(repeated, self.rows, strict=True) if of_source is not None
            )
            / ONE,
        )


def summed(columns: Sequence[Int64]) -> Int64:
    """Return the sums of columns of different lengths, (length of the longest,)."""
    sums = np.zeros(max(map(len, columns)), np.int64)
    for column in columns:
        sums[: len(column)] += column
    return sums


def _thresholds_to_show(
    counts: Sequence[ClassCounts], factor: RepeatFactor, chosen: Threshold | None
) -> list[Threshold]:
    """Return thresholds, in increasing order."""
    frequency = np.concatenate([np.zeros(0), *heuristic_frequencies(counts, factor)])
    frequency = frequency[frequency > 0]
    thresholds: set[Threshold] = {0.0}
    thresholds |= {*candidate_thresholds(frequency), "median"} if len(frequency) else set()
    thresholds |= set() if chosen is None else {chosen}
    median = float(np.median(frequency)) if len(frequency) else 0.0
    return sorted(thresholds, key=lambda threshold: median if threshold == "median" else threshold)


def candidate_thresholds(frequency: Float64) -> list[float]:
    """Return thresholds of one and three times powers of ten: from above the rarest class to above most classes.

    >>> candidate_thresholds(np.array([2e-4, 1e-3, 2e-3, 0.5]))
    [0.0003, 0.001, 0.003, 0.01, 0.03]
    """
    steps = [float(f"{lead}e{power}") for power in range(-9, 1) for lead in (1, 3) if (lead, power) != (3, 0)]
    usual = min(1.0, 10 * float(np.median(frequency)))
    last = next(index for index, step in enumerate(steps) if step >= usual)
    return [step for step in steps[: last + 1] if step > frequency.min()][-_MOST_ROWS:]


def _supply(rows: LabelledRows, factors: Int64, supply: Supply, factor: RepeatFactor) -> Supply:
    """Return what a plan would know of a source with these factors of its classes; its rows are not asked for."""
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
