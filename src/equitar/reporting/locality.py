"""Locality of batches: of how many shards and classes the samples of a batch are, beside what a random draw would give.

A batch reads samples that lie near each other, so as to open few shards. That costs nothing where shards were written in a random
order; where they were not, a batch holds few classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.planning.plan import Plan, PlannedSamples
from equitar.planning.repeat_factors import ClassCounts
from equitar.planning.supply import Supply
from equitar.presence import positions_of
from equitar.reporting.balance import joined_classes

_RANKS, _STEPS = 2, 16  # batches that are looked at, of each source
_MOST_BATCHES = 256  # of all sources, but one of each


class Locality(NamedTuple):
    """What batches of one rank hold, as means over some batches of the epoch.

    Attributes:
        source: The source of the batches; None where batches are mixed.
        batches: How many batches were looked at.
        shards: Shards that the samples of a batch come from.
        random_shards: Shards that as many random samples of a pass would come from.
        classes: Classes that the samples of a batch have; None where labels are not known.
        random_classes: Classes that as many random samples would have; None where it takes a look at every row to know.
    """

    source: str | None
    batches: int
    shards: float
    random_shards: float
    classes: float | None
    random_classes: float | None


class SourceClasses(NamedTuple):
    """The classes of one source, as places among those of all sources.

    Attributes:
        shares: Share of the copies in a pass that have each class, (classes,); None if it is not known.
        of_rows: Gives the classes of some rows of a shard, in any order, from its index and the rows.
    """

    shares: Float64 | None
    of_rows: Callable[[int, Int64], Int64]


@dataclass(frozen=True, slots=True)
class _ClassesOfRows:
    """Gives the classes of rows of a source, as places among those of all sources."""

    labels: Callable[[int, Int64], Int64]
    ids: Int64  # the vocabulary of the source, increasing, (classes,)
    columns: Int64  # where its classes are among all, (classes,)

    def __call__(self, shard: int, rows: Int64) -> Int64:
        return self.columns[positions_of(self.ids, self.labels(shard, rows))]


def source_classes(
    names: Sequence[str],
    counts: Sequence[ClassCounts | None],
    shares: Sequence[Float64 | None],
    labels: Callable[[int, int, Int64], Int64],
) -> list[SourceClasses | None]:
    """Return the classes of each source as a draw of copies from one pass meets them; None where they are not known.

    Args:
        names: The sources.
        counts: The classes of each; None where they are not known.
        shares: The share of the copies in a pass of each that have each of its classes; None where it is not known.
        labels: Gives the labels of some rows, (rows,), of a shard of a source.
    """
    known = [(source, of_source) for source, of_source in enumerate(counts) if of_source is not None]
    classes, columns = joined_classes([names[source] for source, _ in known], [of_source for _, of_source in known])
    result: list[SourceClasses | None] = [None] * len(names)
    for (source, of_source), column in zip(known, columns, strict=True):
        own, among_all = shares[source], np.zeros(len(classes))
        if own is not None:
            among_all[column] = own
        of_rows = _ClassesOfRows(partial(labels, source), of_source.ids, column)
        result[source] = SourceClasses(None if own is None else among_all, of_rows)
    return result


def batch_locality(
    plan: Plan, supplies: Sequence[Supply], classes: Sequence[SourceClasses | None]
) -> tuple[Locality, ...]:
    """Return of how many shards and classes batches are: for each source that is drawn, or once where batches are mixed.

    Args:
        plan: The plan of an epoch.
        supplies: What it was made from, in any order.
        classes: The classes of each of these; None where they are not known.
    """
    place_of = {supply.name: place for place, supply in enumerate(supplies)}
    places = [place_of[name] for name in plan.names]
    shares = [supplies[place].sums / max(1, supplies[place].total) for place in places]
    of_sources = [classes[place] for place in places]
    result = []
    for source, batches in _batches_to_look_at(plan):
        numbers = []
        for step, rank in batches:
            samples = plan.samples(step, *plan.share(step, rank, plan.spec.world_size))
            numbers.append((*_shards_of(samples, shares), *_classes_of(samples, of_sources)))
        means = np.mean(numbers, axis=0).tolist()
        of_classes = (None if np.isnan(mean) else mean for mean in means[2:])
        result.append(Locality(source, len(batches), *means[:2], *of_classes))
    return tuple(result)


def _batches_to_look_at(plan: Plan) -> Iterator[tuple[str | None, list[tuple[int, int]]]]:
    """Yield each source, None for all, with steps and ranks of some of its batches, evenly over the epoch."""
    ranks = range(min(_RANKS, plan.spec.world_size))
    schedules = [plan.sources(rank) for rank in ranks]
    is_mixed = schedules[0] is None
    most = max(1, min(_STEPS, _MOST_BATCHES // (len(ranks) * len(plan.names))))
    for index, name in enumerate([None] if is_mixed else plan.names):
        batches = []
        for rank, schedule in zip(ranks, schedules, strict=True):
            steps = np.arange(plan.num_steps) if schedule is None else np.flatnonzero(schedule == index)
            chosen = steps[np.unique(np.linspace(0, len(steps) - 1, most).astype(np.int64))] if len(steps) else steps
            batches += [(step, rank) for step in chosen.tolist()]
        if batches:
            yield name, sorted(batches)


def _shards_of(samples: PlannedSamples, shares: Sequence[Float64]) -> tuple[float, float]:
    """Return the number of shards that samples come from, and that of random samples of the same sources."""
    drawn = np.bincount(samples.source, minlength=len(shares)).tolist()
    held = np.unique(np.stack([samples.source, samples.shard]), axis=1)
    chances = (1 - (1 - share) ** number for share, number in zip(shares, drawn, strict=True))
    return held.shape[1], sum(float(chance.sum()) for chance in chances)


def _classes_of(samples: PlannedSamples, of_sources: Sequence[SourceClasses | None]) -> tuple[float, float]:
    """Return the same of classes; nan if those of a source are not known."""
    held, absent = [np.zeros(0, np.int64)], np.ones(1)
    for source in np.unique(samples.source).tolist():
        classes, is_own = of_sources[source], samples.source == source
        if classes is None:
            return np.nan, np.nan
        shares = np.full(1, np.nan) if classes.shares is None else classes.shares
        absent = absent * (1 - shares) ** int(is_own.sum())
        held += [
            classes.of_rows(shard, samples.row[is_own & (samples.shard == shard)])
            for shard in np.unique(samples.shard[is_own]).tolist()
        ]
    return len(np.unique(np.concatenate(held))), float((1 - absent).sum())
