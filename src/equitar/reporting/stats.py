"""What is in the sources, and what do repeats make of it? Counts from summaries, and expected copies from sidecars.

A sample is emitted r(I) times on average, so a class gets the sum of r(I) over the samples that contain it: more than its own
factor for a common class that keeps company with rare ones. That sum needs the labels of every row; it is taken shard by shard.
Without repeats and selections the summaries say it all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.planning.repeat_factors import ONE, ClassCounts, RepeatFactor, class_factors
from equitar.presence import positions_of
from equitar.sidecars.catalog import Catalog, Repeat, catalog_of, class_counts, row_factors
from equitar.sidecars.selection import selection_of
from equitar.sidecars.sidecar import Sidecar
from equitar.sidecars.store import Sidecars
from equitar.sidecars.summary import Summary
from equitar.sources import Source, listed_sources

if TYPE_CHECKING:
    from equitar.loading.batches import Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """What one source holds, and what an epoch takes of it.

    Attributes:
        name: The source.
        shards: Its shards.
        samples: Its samples, after selection.
        bytes: Length of its shards.
        labels: Labels of these samples, a label counted once a sample; None if it was indexed without.
        classes: Classes that one of these samples has; None without labels.
        passes: How often an epoch goes through it.
        copies: Samples that an epoch emits, repeats counted: the expected number.
        share_before: Its share of all samples.
        share_after: Its share of what an epoch emits.
    """

    name: str
    shards: int
    samples: int
    bytes: int
    labels: int | None
    classes: int | None
    passes: float
    copies: float
    share_before: float
    share_after: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassStats:
    """All classes that a sample has, rarest first; classes of the same name are one class.

    Attributes:
        names: Name of each, or ``source/id`` where ids have no names.
        samples: Samples that contain it, (classes,), >= 1.
        frequency: The same as a share of the samples of all sources that know the class, (classes,).
        factors: Its repeat factor r(c), the largest of its sources, (classes,); None if `repeat` is a function.
        copies: Copies of samples with it in an epoch, (classes,): the expected number.
        without_samples: Classes of the vocabularies that no sample has.
    """

    names: tuple[str, ...]
    samples: Int64
    frequency: Float64
    factors: Float64 | None
    copies: Float64
    without_samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stats:
    """Sources and classes before and after repeating.

    Attributes:
        sources: The sources, by name.
        classes: Their classes; None if no source has labels.
        repeat: How samples are repeated, in words; None if they are not.
    """

    sources: tuple[SourceStats, ...]
    classes: ClassStats | None
    repeat: str | None

    @property
    def samples(self) -> int:
        """Samples of all sources."""
        return sum(one.samples for one in self.sources)

    @property
    def copies(self) -> float:
        """Samples that an epoch emits, repeats counted."""
        return sum(one.copies for one in self.sources)


class _Sums(NamedTuple):
    """What a source sums to; None without labels.

    Attributes:
        samples: Its samples, after selection.
        total: Sum of r(I) of these, in copies.
        counts: How many of them contain each label.
        copies: Sum of r(I) of those that contain it, (classes,), in copies.
    """

    samples: int
    total: float
    counts: ClassCounts | None
    copies: Float64 | None


def stats(sources: Source | Sequence[Source] | Batches, *, repeat: Repeat = None) -> Stats:
    """Return what sources hold, and what repeats make of it.

    Args:
        sources: Indexed sources, of which an epoch is one pass; or what `debiased`, `mixed` or `exact` returned: then
            passes and repeats are those of its plan.
        repeat: As for `debiased`; None repeats nothing, or as batches do.

    Raises:
        SourceError, SidecarError: If shards or sidecars are not as they must be, or repeats find no labels.
        PlanError: If batches have no plan.
    """
    if isinstance(sources, Source | Sequence):
        catalog = catalog_of(listed_sources(sources))
        return stats_of(catalog, repeat, [1.0] * len(catalog.sources))
    from equitar.loading.batches import execution_of  # noqa: PLC0415  (torch, which sources alone do not need)

    request = execution_of(sources).request
    catalog = request.resolved.catalog
    passes = {one.name: one.passes for one in sources.plan(0, num_workers=0).account}
    rounds = [passes.get(source.name, 0.0) for source in catalog.sources]  # a source may have been left out
    return stats_of(catalog, request.repeat if repeat is None else repeat, rounds)


def stats_of(catalog: Catalog, repeat: Repeat, passes: Sequence[float]) -> Stats:
    """Return what the sources of a catalog hold, and what repeats make of it in so many passes of each."""
    how = RepeatFactor.of(repeat)
    rows = row_factors(catalog, how)
    sums = [_sums(*one, how) for one in zip(catalog.sidecars, catalog.summaries, rows, strict=True)]
    counted = [
        (source.name, one.counts, one.copies * times)
        for source, one, times in zip(catalog.sources, sums, passes, strict=True)
        if one.counts is not None and one.copies is not None
    ]
    factors = None
    if how is None:
        factors = [np.ones(len(counts.ids)) for _, counts, _ in counted]
    elif isinstance(how, RepeatFactor):
        factors = [one / ONE for one in class_factors([counts for _, counts, _ in counted], how)]
    return Stats(
        sources=_of_sources(catalog, sums, passes),
        classes=_joined(counted, factors) if counted else None,
        repeat=_in_words(how) if how is not None else None,
    )


def _sums(
    sidecars: Sidecars,
    summary: Summary,
    rows: Callable[[int, Sidecar], Int64],
    how: RepeatFactor | Callable[..., Any] | None,
) -> _Sums:
    """Return the sums of one source: from its summary where every row counts once, else from every sidecar."""
    counts, selection = None, selection_of(sidecars.source)
    if summary.label_counts is not None:
        counts = class_counts(sidecars, summary, selection, how if isinstance(how, RepeatFactor) else None)
    if how is None and selection is None:
        num = int(summary.num_samples.sum())
        return _Sums(num, num, counts, None if counts is None else counts.num_samples / 1)
    kept, total, copies = 0, 0, np.zeros(0 if counts is None else len(counts.ids))
    for shard, sidecar in enumerate(sidecars.all()):
        presence, factors = sidecar.presence, rows(shard, sidecar)
        kept, total = kept + int((factors > 0).sum()), total + int(factors.sum())
        if presence is not None and counts is not None:
            used = np.repeat(factors, np.diff(presence.indptr))  # (entries,), factor of the row of each
            label = positions_of(counts.ids, presence.ids[used > 0])  # rows that are left out may have other labels
            copies += np.bincount(label, used[used > 0], minlength=len(copies)) / ONE
    return _Sums(kept if counts is None else counts.total, total / ONE, counts, None if counts is None else copies)


def _of_sources(catalog: Catalog, sums: Sequence[_Sums], passes: Sequence[float]) -> tuple[SourceStats, ...]:
    before = max(1, sum(one.samples for one in sums))
    after = sum(one.total * times for one, times in zip(sums, passes, strict=True)) or 1.0
    return tuple(
        SourceStats(
            name=source.name,
            shards=len(summary.paths),
            samples=one.samples,
            bytes=int(summary.shard_sizes.sum()),
            labels=None if one.counts is None else int(one.counts.num_samples.sum()),
            classes=None if one.counts is None else int((one.counts.num_samples > 0).sum()),
            passes=times,
            copies=one.total * times,
            share_before=one.samples / before,
            share_after=one.total * times / after,
        )
        for source, summary, one, times in zip(catalog.sources, catalog.summaries, sums, passes, strict=True)
    )


def _joined(counted: Sequence[tuple[str, ClassCounts, Float64]], factors: Sequence[Float64] | None) -> ClassStats:
    """Return the classes of all sources; those of one name are one class."""
    place: dict[str, int] = {}  # of each class in the columns below
    where = []  # (classes,) each, places of the classes of a source
    for source, counts, _ in counted:
        names = counts.names or [f"{source}/{one}" for one in counts.ids.tolist()]
        where.append(np.array([place.setdefault(name, len(place)) for name in names], np.int64))
    samples, known = np.zeros(len(place), np.int64), np.zeros(len(place), np.int64)
    copies, factor = np.zeros(len(place)), np.zeros(len(place))
    for at, (_, counts, emitted) in zip(where, counted, strict=True):
        np.add.at(samples, at, counts.num_samples)
        np.add.at(known, at, counts.total)
        np.add.at(copies, at, emitted)
    for at, one in zip(where, factors or (), strict=False):
        np.maximum.at(factor, at, one)
    order = np.argsort(samples, kind="stable")
    order = order[samples[order] > 0]
    all_names = list(place)
    return ClassStats(
        names=tuple(all_names[one] for one in order.tolist()),
        samples=samples[order],
        frequency=samples[order] / known[order],
        factors=None if factors is None else factor[order],
        copies=copies[order],
        without_samples=len(place) - len(order),
    )


def _in_words(how: object) -> str:
    if not isinstance(how, RepeatFactor):
        return "by a function"
    of_frequency = "a function of f(c)" if callable(how.heuristic) else f"threshold {_short(how.threshold)}"
    words = [of_frequency]
    words += ["instance-aware"] if how.heuristic == "irfs" else []
    words += [f"power {how.power:g}"] if how.power != 0.5 else []
    words += [f"cap {how.cap:g}"] if how.cap is not None else []
    words += [f"{len(how.ignore)} classes ignored"] if how.ignore else []
    words += [f"classes of fewer than {how.min_count} samples ignored"] if how.min_count else []
    words += ["samples without labels dropped"] if how.empty == "drop" else []
    words += [f"rounding {how.rounding}"] if how.rounding != "systematic" else []
    return ", ".join(words)


def _short(threshold: float | str) -> str:
    return threshold if isinstance(threshold, str) else f"{threshold:g}"
