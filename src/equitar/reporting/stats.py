"""Statistics of sources and classes: counts from summaries, and expected copies from sidecars.

A sample is emitted r(I) times on average, so a class gets the sum of r(I) over the samples that contain it: more than its own
factor for a common class that shares samples with rare ones. That sum needs the labels of every row; it is taken shard by shard,
in the pass that the supplies of a plan are made in. Without repeats and selections the summaries are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.display import Overview, Table
from equitar.planning.repeat_factors import ONE, ClassCounts, IdOverlap, RepeatFactor, class_factors
from equitar.planning.supply import Supply
from equitar.presence import positions_of
from equitar.reporting.balance import joined_classes, summed_by_class
from equitar.reporting.locality import SourceClasses, source_classes
from equitar.sidecars.catalog import Catalog, Repeat, ShardRows, catalog_of, supplies_of
from equitar.sources import Source, listed_sources
from equitar.text import counted, listed
from equitar.urls import shown

if TYPE_CHECKING:
    from equitar.loading.batches import Batches

_CLASSES = 5  # of a short table
_URLS = 3  # patterns of a source that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """What one source holds, and what an epoch takes of it.

    Attributes:
        name: The source.
        listed: What its shards were listed by, without secrets.
        summary: Digest of its summary.
        shards: Its shards.
        bytes: Length of its shards.
        rows: Samples in its shards, before selection.
        samples: Its samples, after selection.
        labels: Labels of these samples, a label counted once a sample; None if it was indexed without.
        classes: Classes that one of these samples has; None without labels.
        unlabelled: Samples without a label; None if it was indexed without labels, or no row had to be looked at.
        pass_copies: Samples in one pass, repeats counted: the expected number.
        passes: How often an epoch goes through it.
        copies: Samples that an epoch emits, repeats counted: the expected number.
        share_before: Its share of all samples.
        share_after: Its share of what an epoch emits.
    """

    name: str
    listed: str
    summary: str
    shards: int
    bytes: int
    rows: int
    samples: int
    labels: int | None
    classes: int | None
    unlabelled: int | None
    pass_copies: float
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
        pass_copies: Copies of samples with it in one pass of all sources, (classes,): the expected number.
        copies: The same in an epoch, which may take more of one source than of another.
        without_samples: Classes of the vocabularies that no sample has.
    """

    names: tuple[str, ...]
    samples: Int64
    frequency: Float64
    factors: Float64 | None
    pass_copies: Float64
    copies: Float64
    without_samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Stats(Overview):
    """Sources and classes before and after repeating.

    Attributes:
        sources: The sources, by name.
        classes: Their classes; None if no source has labels.
        repeat: How samples are repeated, in words; None if they are not.
        id_overlap: Ids without class names that are different classes in several sources; None if there are none.
        ids: Whether label ids of several sources are pooled or separate, in words; None if fewer than two have labels.
    """

    sources: tuple[SourceStats, ...]
    classes: ClassStats | None
    repeat: str | None
    id_overlap: IdOverlap | None = None
    ids: str | None = None

    @property
    def samples(self) -> int:
        """Samples of all sources."""
        return sum(source.samples for source in self.sources)

    @property
    def copies(self) -> float:
        """Samples that an epoch emits, repeats counted."""
        return sum(source.copies for source in self.sources)

    def _overview(self) -> tuple[str, list[Table]]:
        repeat = f"repeats by {self.repeat}" if self.repeat else "no repeats"
        title = f"Stats: {counted(self.samples, 'sample')}, {self.copies:,.0f} copies in an epoch ({repeat})"
        sources: Table = [
            ("source", "samples", "share", "passes", "copies", "share after"),
            *(
                (
                    source.name,
                    f"{source.samples:,}",
                    f"{source.share_before:.1%}",
                    f"{source.passes:.2f}",
                    f"{source.copies:,.0f}",
                    f"{source.share_after:.1%}",
                )
                for source in self.sources
            ),
        ]
        return title, [sources, *([] if self.classes is None else [_class_table(self.classes)])]


def _class_table(classes: ClassStats) -> Table:
    """Return a table of the rarest classes."""
    head = (f"rarest of {len(classes.names):,} classes", "samples", "r(c)", "copies")
    factors = classes.factors
    return [
        head,
        *(
            (
                name,
                f"{classes.samples[row]:,}",
                "-" if factors is None else f"{factors[row]:.2f}",
                f"{classes.copies[row]:,.1f}",
            )
            for row, name in enumerate(classes.names[:_CLASSES])
        ),
    ]


@dataclass(slots=True, kw_only=True)
class _Sums:
    counts: ClassCounts | None  # how many selected samples contain each label; None without labels
    samples: int = 0  # rows with a factor above 0
    total: int = 0  # sum of r(I), in units of 2**-20 copies
    copies: Float64 = field(default_factory=lambda: np.zeros(0))  # sum of r(I) by label, (classes,), in copies
    unlabelled: int | None = None


class CopyCounter:
    """Counts copies by source and class while supplies are made."""

    def __init__(self, catalog: Catalog, repeat: Repeat) -> None:
        """Take the class counts from the catalog."""
        self._catalog, self._factor = catalog, RepeatFactor.of(repeat)
        for_labels = self._factor if isinstance(self._factor, RepeatFactor) else None
        self._sums = []
        for source, (summary, selection) in enumerate(zip(catalog.summaries, catalog.selections, strict=True)):
            sums = _Sums(counts=catalog.class_counts(source, for_labels) if catalog.has_labels(source) else None)
            if self._factor is None and selection is None:  # every row counts once: the summary is enough
                sums.samples = int(summary.num_samples.sum())
                sums.total = sums.samples * ONE
            if sums.counts is not None:
                sums.copies = sums.counts.num_samples.astype(np.float64) * bool(sums.total)
            self._sums.append(sums)
        self._is_summarized = [bool(sums.total) for sums in self._sums]

    def needs(self, source: int) -> bool:
        """Return False: where rows count once each, the summary is enough."""
        return False

    def visit(self, rows: ShardRows) -> None:
        """Count the rows of one shard."""
        sums, presence, factors = self._sums[rows.source], rows.sidecar.presence, rows.factors
        if presence is not None:
            is_bare = presence.indptr[1:] == presence.indptr[:-1]
            is_bare = is_bare if rows.share is None else is_bare & (rows.share > 0)
            sums.unlabelled = (sums.unlabelled or 0) + int(is_bare.sum())
        if self._is_summarized[rows.source]:
            return
        sums.samples += int((factors > 0).sum())
        sums.total += int(factors.sum())
        if presence is not None and sums.counts is not None:
            of_entries = np.repeat(factors, np.diff(presence.indptr))  # (entries,), factor of the row of each
            labels = positions_of(sums.counts.ids, presence.ids[of_entries > 0])  # rows left out may have other labels
            sums.copies += np.bincount(labels, of_entries[of_entries > 0], minlength=len(sums.copies)) / ONE

    def stats(self, passes: Sequence[float]) -> Stats:
        """Return the statistics of so many passes of each source."""
        return Stats(
            sources=self._of_sources(passes),
            classes=self._of_classes(passes),
            repeat=None if self._factor is None else _in_words(self._factor),
            id_overlap=self._catalog.id_overlap(),
            ids=_ids_in_words(self._catalog, self._factor),
        )

    def source_classes(self, labels: Callable[[int, int, Int64], Int64]) -> list[SourceClasses | None]:
        """Return the classes of each source as a draw of copies from one pass meets them; None without labels.

        Args:
            labels: Gives the labels of some rows, (rows,), of a shard of a source.
        """
        return source_classes(
            [source.name for source in self._catalog.sources],
            [sums.counts for sums in self._sums],
            [sums.copies / max(1, sums.total / ONE) for sums in self._sums],
            labels,
        )

    def _of_classes(self, passes: Sequence[float]) -> ClassStats | None:
        """Return the classes of all sources; those of one name are one class."""
        labelled = [
            (source.name, sums.counts, sums.copies, times)
            for source, sums, times in zip(self._catalog.sources, self._sums, passes, strict=True)
            if sums.counts is not None
        ]
        if not labelled:
            return None
        counts = [of_source for _, of_source, _, _ in labelled]
        names, columns = joined_classes([name for name, _, _, _ in labelled], counts)

        def summed(numbers: Sequence[Float64] | Sequence[Int64]) -> Float64:
            return summed_by_class(len(names), columns, numbers)

        samples = summed([of_source.num_samples for of_source in counts]).astype(np.int64)
        known = summed([np.full(len(of_source.ids), of_source.total) for of_source in counts])
        order = np.argsort(samples, kind="stable")
        order = order[samples[order] > 0]
        factors = self._factors_of_classes(counts)
        largest = np.zeros(len(names))
        for column, of_ids in zip(columns, factors or (), strict=False):
            np.maximum.at(largest, column, of_ids)
        return ClassStats(
            names=tuple(names[column] for column in order.tolist()),
            samples=samples[order],
            frequency=samples[order] / known[order],
            factors=None if factors is None else largest[order],
            pass_copies=summed([copies for _, _, copies, _ in labelled])[order],
            copies=summed([copies * times for _, _, copies, times in labelled])[order],
            without_samples=len(names) - len(order),
        )

    def _factors_of_classes(self, counts: Sequence[ClassCounts]) -> list[Float64] | None:
        if self._factor is None:
            return [np.ones(len(of_source.ids)) for of_source in counts]
        if not isinstance(self._factor, RepeatFactor):
            return None
        return [of_ids / ONE for of_ids in class_factors(counts, self._factor)]

    def _of_sources(self, passes: Sequence[float]) -> tuple[SourceStats, ...]:
        samples = [sums.samples if sums.counts is None else sums.counts.total for sums in self._sums]
        after = sum(sums.total / ONE * times for sums, times in zip(self._sums, passes, strict=True)) or 1.0
        columns = (self._catalog.sources, self._catalog.summaries, self._sums, samples, passes)
        return tuple(
            SourceStats(
                name=source.name,
                listed=_patterns(source),
                summary=summary.digest,
                shards=len(summary.paths),
                bytes=int(summary.shard_sizes.sum()),
                rows=int(summary.num_samples.sum()),
                samples=number,
                labels=None if sums.counts is None else int(sums.counts.num_samples.sum()),
                classes=None if sums.counts is None else int((sums.counts.num_samples > 0).sum()),
                unlabelled=sums.unlabelled,
                pass_copies=sums.total / ONE,
                passes=times,
                copies=sums.total / ONE * times,
                share_before=number / max(1, sum(samples)),
                share_after=sums.total / ONE * times / after,
            )
            for source, summary, sums, number, times in zip(*columns, strict=True)
        )


def _patterns(source: Source) -> str:
    urls = [source.urls] if isinstance(source.urls, str) else [*source.urls]
    return listed([shown(url) for url in urls], _URLS)


def stats(sources: Source | Sequence[Source] | Batches, *, repeat: Repeat = None, labels_shared: bool = False) -> Stats:
    """Return what sources hold, and what repeats make of it.

    Args:
        sources: Indexed sources, of which an epoch is one pass; or what `debiased`, `mixed` or `exact` returned: then
            passes and repeats are those of its plan.
        repeat: As for `debiased`; None repeats nothing, or as batches do.
        labels_shared: As for `debiased`; batches may have it already.

    Raises:
        SourceError, SidecarError: If shards or sidecars are not as they must be, or repeats find no labels.
        PlanError: If batches have no plan.
    """
    if isinstance(sources, Source | Sequence):
        catalog = catalog_of(listed_sources(sources), labels_shared=labels_shared)
        counter = CopyCounter(catalog, repeat)
        supplies_of(catalog, repeat, [counter])
        return counter.stats([1.0] * len(catalog.sources))
    from equitar.loading.batches import adjusted  # noqa: PLC0415  (torch, which sources alone do not need)
    from equitar.reporting.preview import passes_of, with_supplies  # noqa: PLC0415  (as above)

    counters = []

    def count_and_supply(catalog: Catalog, repeat: Repeat) -> list[Supply]:
        counters.append(CopyCounter(catalog, repeat))
        return supplies_of(catalog, repeat, counters)

    batches = with_supplies(adjusted(sources, repeat=repeat, labels_shared=labels_shared or None), count_and_supply)
    passes = passes_of(batches)
    return counters[0].stats(passes)


def _ids_in_words(catalog: Catalog, factor: object) -> str | None:
    """Return whether the label ids of several sources are pooled or separate; None if fewer than two have labels."""
    labelled = [
        (source.name, summary.class_names is not None)
        for source, summary in zip(catalog.sources, catalog.summaries, strict=True)
        if summary.label_counts is not None
    ]
    if len(labelled) < 2:
        return None
    if isinstance(factor, RepeatFactor) and factor.scope == "source":
        return "separate: classes are counted in each source alone (scope='source')"
    if catalog.labels_shared:
        return "pooled: an id is the same class in all sources (labels_shared)"
    named = [name for name, has_names in labelled if has_names]
    unnamed = [name for name, has_names in labelled if not has_names]
    if not unnamed:
        return "pooled: classes of one name are counted together over all sources"
    if len(named) < 2:
        return "separate: without class names, an id is a class of its own source alone"
    return f"pooled by class name in {listed(named)}; separate in {listed(unnamed)}, without class names"


def _in_words(repeat: object) -> str:
    if not isinstance(repeat, RepeatFactor):
        return "by a function"
    is_function = callable(repeat.heuristic)
    words = ["a function of f(c)" if is_function else f"threshold {_threshold_text(repeat.threshold)}"]
    words += ["instance-aware"] if repeat.heuristic == "irfs" else []
    words += [f"power {repeat.power:g}"] if repeat.power != 0.5 else []
    words += [f"cap {repeat.cap:g}"] if repeat.cap is not None else []
    words += [f"{len(repeat.ignore)} classes ignored"] if repeat.ignore else []
    words += [f"classes of fewer than {repeat.min_count} samples ignored"] if repeat.min_count else []
    words += ["samples without labels dropped"] if repeat.empty == "drop" else []
    words += [f"rounding {repeat.rounding}"] if repeat.rounding != "systematic" else []
    return ", ".join(words)


def _threshold_text(threshold: float | str) -> str:
    return threshold if isinstance(threshold, str) else f"{threshold:g}"
