"""The catalog of all sources: their shards, summaries and class counts, and the supplies of a plan made from these.

Without repeats and selections the summaries are enough. With them the main process reads every sidecar in one pass, and keeps
one integer for each shard: the sum of its repeat factors. Whoever else needs the rows (statistics, thresholds, sizes) visits
them in the same pass. Class counts come from the summaries, or from a pass of their own where only the rows can tell. Workers get
the sums, and read only the sidecars of shards that they read samples from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.errors import SidecarError, SourceError
from equitar.planning.repeat_factors import (
    ONE,
    ClassCounts,
    IdOverlap,
    RepeatFactor,
    class_factors,
    count_classes,
    id_overlap,
    sample_factors,
    shared_vocabulary,
)
from equitar.planning.supply import Supply
from equitar.presence import Presence
from equitar.rng import text_id
from equitar.sidecars.selection import Selection, checked_numbers, selection_of
from equitar.sidecars.sidecar import Sidecar
from equitar.sidecars.store import Sidecars, sidecar_cache
from equitar.sidecars.summary import ListedSummary, Summary, load_summary, shards_of
from equitar.sources import Source, listed_sources
from equitar.urls import join, shown

logger = logging.getLogger("equitar")
Repeat: TypeAlias = float | Literal["median"] | RepeatFactor | Callable[[Sidecar], Any] | None


class _Census(NamedTuple):
    counts: ClassCounts  # samples without labels included
    unlabelled: int | None  # samples without labels; None where only the summary was read


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalog:
    """All that is known of the sources before a tar is opened, in the order of their names.

    Attributes:
        sources: The sources, sorted by name.
        sidecars: The sidecars of each.
        summaries: The summary of each.
        selections: Which rows of each count, and how much; None is all of them once.
        labels_shared: Whether ids without class names mean the same classes in all sources.
    """

    sources: tuple[Source, ...]
    sidecars: tuple[Sidecars, ...]
    summaries: tuple[Summary, ...]
    selections: tuple[Selection | None, ...]
    labels_shared: bool = False
    _censuses: dict[int, _Census] = field(default_factory=dict, repr=False)  # by source

    @property
    def file_digests(self) -> dict[str, str]:
        """Digest of the summary file of each source that has one."""
        named = zip(self.sources, self.summaries, strict=True)
        return {source.name: summary.file_digest for source, summary in named if summary.file_digest is not None}

    def has_labels(self, source: int) -> bool:
        """Return whether a source was indexed with labels."""
        return self.summaries[source].label_counts is not None

    def class_counts(self, source: int, factor: RepeatFactor | None = None) -> ClassCounts:
        """Return how many selected samples of a source contain each label; counted once, and kept.

        Args:
            source: Its index in the catalog.
            factor: What the counts are for: some factors need what only the rows can tell.

        Raises:
            SidecarError: If the source was indexed without labels.
        """
        drops = factor is not None and factor.empty == "drop"
        needs_rows = self.selections[source] is not None or drops or (factor is not None and factor.heuristic == "irfs")
        census = self._censuses.get(source)
        if census is None or (needs_rows and census.unlabelled is None):
            census = self._counted(source) if needs_rows else self._summarized(source)
            if self.labels_shared and census.counts.names is None:
                census = census._replace(counts=census.counts.over(*self._shared_vocabulary()))
            self._censuses[source] = census
        if not drops:
            return census.counts
        return replace(census.counts, total=census.counts.total - (census.unlabelled or 0))

    def id_overlap(self) -> IdOverlap | None:
        """Return which ids without class names occur in several sources and are different classes; None if none do."""
        if self.labels_shared:
            return None
        labels = zip(self.sources, self.summaries, strict=True)
        return id_overlap(
            {
                source.name: np.unique(summary.label_counts.ids)
                for source, summary in labels
                if summary.label_counts is not None and summary.class_names is None
            }
        )

    def _shared_vocabulary(self) -> tuple[Int64, tuple[str, ...]]:
        return shared_vocabulary(
            {
                source.name: (np.unique(summary.label_counts.ids), self._class_names(index))
                for index, (source, summary) in enumerate(zip(self.sources, self.summaries, strict=True))
                if summary.label_counts is not None
            }
        )

    def _summarized(self, source: int) -> _Census:
        """Return the counts in the summary of a source."""
        summary, names = self.summaries[source], self._class_names(source)
        if summary.label_counts is None:
            raise _no_labels(self.sources[source])
        occurring = summary.label_counts.ids
        ids = np.unique(occurring if names is None else np.array(list(names), np.int64))
        num_samples = np.zeros(len(ids), np.int64)
        np.add.at(num_samples, np.searchsorted(ids, occurring), summary.label_counts.counts)
        counts = ClassCounts(
            ids=ids,
            num_samples=num_samples,
            total=int(summary.num_samples.sum()),
            names=None if names is None else tuple(names[label] for label in ids.tolist()),
        )
        return _Census(counts, None)

    def _counted(self, source: int) -> _Census:
        """Return the counts of the selected rows of a source."""
        if not self.has_labels(source):
            raise _no_labels(self.sources[source])
        sidecars, selection, unlabelled = self.sidecars[source], self.selections[source], 0

        def selected() -> Iterator[Presence]:
            nonlocal unlabelled
            for path, sidecar in zip(sidecars.shards.paths, sidecars.all(), strict=True):
                presence = labels_of(sidecar)
                if selection is not None:
                    presence = presence.kept(selection(path, sidecar) > 0)
                unlabelled += int((presence.indptr[1:] == presence.indptr[:-1]).sum())
                yield presence

        counts = count_classes(selected(), names=self._class_names(source), empty="keep")
        return _Census(counts, unlabelled)

    def _class_names(self, source: int) -> dict[int, str] | None:
        names = self.summaries[source].class_names
        return None if names is None else dict(zip(*names, strict=True))


def labels_of(sidecar: Sidecar) -> Presence:
    """Return the labels of a shard of a source that was indexed with labels."""
    assert sidecar.presence is not None, "a source has labels in all shards or in none"
    return sidecar.presence


def catalog_of(
    sources: Sequence[Source], summaries: Mapping[str, ListedSummary] | None = None, *, labels_shared: bool = False
) -> Catalog:
    """Return the catalog of sources.

    Args:
        sources: The sources.
        summaries: The summary to use, by the name of a source, see `usable_summaries`; for others the newest.
        labels_shared: Whether ids without class names mean the same classes in all sources.

    Raises:
        SourceError: If two sources have one name, or share a shard.
        SidecarError: If a sidecar or summary is missing or damaged.
    """
    ordered = sorted(listed_sources(sources), key=lambda source: source.name)
    pinned = summaries or {}
    known = [pinned.get(source.name) or shards_of(source) for source in ordered]
    shards = [shard_list for shard_list, _ in known]
    owner: dict[str, Source] = {}
    for source, shard_list in zip(ordered, shards, strict=True):
        for path, url in zip(shard_list.paths, shard_list.urls, strict=True):
            other = owner.setdefault(join(shard_list.root, path), source)  # a path may be spelled in several ways
            if other is not source and None in (other.keep, source.keep):
                raise SourceError(
                    f"a shard must belong to one source; {shown(url)} is in {other.name!r} and in {source.name!r} "
                    "(to use parts of it in both, give both a `keep`)"
                )
    loaded = tuple(
        load_summary(
            source,
            known=(shard_list, summary),
            digest=summary.file_digest if source.name in pinned and summary else None,
        )
        for source, (shard_list, summary) in zip(ordered, known, strict=True)
    )
    cache = sidecar_cache()
    return Catalog(
        sources=tuple(ordered),
        sidecars=tuple(
            Sidecars(source, shard_list.only(summary.paths), summary, cache)
            for source, shard_list, summary in zip(ordered, shards, loaded, strict=True)
        ),
        summaries=loaded,
        selections=tuple(selection_of(source) for source in ordered),
        labels_shared=labels_shared,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardRows:
    """The rows of a shard, as one look at its sidecar shows them."""

    source: int  # index in the catalog
    shard: int
    sidecar: Sidecar
    factors: Int64  # (rows,), in units of 2**-20 copies, selection included
    share: Float64 | None  # what the selection multiplies each row by, (rows,); None is 1


class RowVisitor(Protocol):
    """Looks at the rows of all shards in the pass that supplies are made in."""

    def needs(self, source: int) -> bool:
        """Return whether the rows of a source must be read for this visitor, where no repeat or selection reads them anyway."""

    def visit(self, rows: ShardRows) -> None:
        """Look at the rows of one shard."""


@dataclass(frozen=True)
class _Factors:
    """Gives the factors of a shard's rows, in units of 2**-20 copies. A class, so that it pickles."""

    sidecars: Sidecars
    selection: Selection | None
    ids: Int64 | None = None  # the vocabulary, increasing, (classes,); None repeats nothing
    of_classes: Int64 | None = None  # r(c) of it, (classes,)
    function: Callable[[Sidecar], Any] | None = None  # gives the factors of the rows in place of labels
    rounds_up: bool = False  # whether factors are rounded up to whole copies
    unlabelled: int = ONE  # factor of a row without labels

    def __call__(self, shard: int) -> Int64:
        return self.of(shard, self.sidecars(shard))

    def of(self, shard: int, sidecar: Sidecar) -> Int64:
        """Return the factors of the rows of a shard whose sidecar is at hand, (rows,)."""
        return self.with_share(shard, sidecar)[0]

    def with_share(self, shard: int, sidecar: Sidecar) -> tuple[Int64, Float64 | None]:
        """Return the factors of the rows of a shard, (rows,), and what the selection multiplies them by."""
        path = self.sidecars.shards.paths[shard]
        factors = np.full(sidecar.num_rows, ONE, np.int64)
        share = None if self.selection is None else self.selection(path, sidecar)
        if self.function is not None:
            what = f"`repeat` for source {self.sidecars.source.name!r}"
            factors = np.rint(checked_numbers(self.function(sidecar), sidecar, what, path) * ONE).astype(np.int64)
        elif self.ids is not None and self.of_classes is not None:
            if sidecar.presence is None:
                raise _no_labels(self.sidecars.source)
            # The vocabulary may lack a label that only rows have which are left out.
            is_kept = slice(None) if share is None else share > 0
            presence = sidecar.presence if share is None else sidecar.presence.kept(share > 0)
            factors[is_kept] = sample_factors(presence, self.ids, self.of_classes, empty=self.unlabelled)
        if self.rounds_up:
            factors = -(-factors // ONE) * ONE
        if share is not None:
            factors = np.rint(factors * share).astype(np.int64)
        return factors, share


def supplies_of(catalog: Catalog, repeat: Repeat, visitors: Sequence[RowVisitor] = ()) -> list[Supply]:
    """Return what a plan needs to know of each source.

    Args:
        catalog: The sources.
        repeat: A threshold, a `RepeatFactor`, a function of a sidecar that gives a factor >= 0 for each row, or None.
        visitors: Who else looks at the rows in the same pass.

    Raises:
        SidecarError: If repeats need labels that a source was indexed without.
    """
    factor = RepeatFactor.of(repeat)
    return [
        _supply(catalog, source, factors, factor, visitors)
        for source, factors in enumerate(_factors_of(catalog, factor))
    ]


def planned_supplies(catalog: Catalog, repeat: Repeat) -> list[Supply]:
    """Return what a plan needs to know of each source; warn if ids are different classes that may be meant to be one."""
    factor, overlap = RepeatFactor.of(repeat), catalog.id_overlap()
    if isinstance(factor, RepeatFactor) and factor.scope == "all" and overlap is not None:
        logger.warning("%s; %s", overlap, "pass `labels_shared=True` if an id is the same class in all")
    return supplies_of(catalog, factor)


def row_factors(catalog: Catalog, repeat: Repeat) -> list[Callable[[int, Sidecar], Int64]]:
    """Return for each source what gives the factors of the rows of a shard, in units of 2**-20 copies, from its sidecar.

    Raises:
        SidecarError: If repeats need labels that a source was indexed without.
    """
    return [factors.of for factors in _factors_of(catalog, RepeatFactor.of(repeat))]


def _factors_of(catalog: Catalog, factor: RepeatFactor | Callable[[Sidecar], Any] | None) -> list[_Factors]:
    plain = [_Factors(*pair) for pair in zip(catalog.sidecars, catalog.selections, strict=True)]
    if factor is None:
        return plain
    if not isinstance(factor, RepeatFactor):
        return [replace(factors, function=factor) for factors in plain]
    counts = [catalog.class_counts(source, factor) for source in range(len(plain))]
    return [
        replace(
            factors,
            ids=of_source.ids,
            of_classes=of_classes,
            rounds_up=factor.rounding == "ceil",
            unlabelled=factor.without_labels,
        )
        for factors, of_source, of_classes in zip(plain, counts, class_factors(counts, factor), strict=True)
    ]


def _supply(
    catalog: Catalog,
    source: int,
    factors: _Factors,
    factor: RepeatFactor | Callable[[Sidecar], Any] | None,
    visitors: Sequence[RowVisitor],
) -> Supply:
    name, keep, summary = catalog.sources[source].name, catalog.sources[source].keep, catalog.summaries[source]
    is_plain = factor is None and factors.selection is None
    if is_plain and not any(visitor.needs(source) for visitor in visitors):
        return Supply.once(name, list(summary.paths), summary.num_samples)
    sums, largest, kept = np.zeros(len(summary.paths), np.int64), 0, 0
    for shard, sidecar in enumerate(catalog.sidecars[source].all()):
        of_rows, share = factors.with_share(shard, sidecar)
        sums[shard], largest = of_rows.sum(), max(largest, int(of_rows.max(initial=0)))
        kept += sidecar.num_rows * ONE if share is None else int(np.rint(ONE * share).sum())
        for visitor in visitors:
            visitor.visit(ShardRows(source=source, shard=shard, sidecar=sidecar, factors=of_rows, share=share))
    if is_plain:
        return Supply.once(name, list(summary.paths), summary.num_samples)
    if (
        isinstance(keep, str) and kept == int(summary.num_samples.sum()) * ONE
    ):  # keys are spelled otherwise, most likely
        logger.warning("source %r: `keep` leaves out nothing, by %r", name, shown(keep))
    bernoulli = isinstance(factor, RepeatFactor) and factor.rounding == "bernoulli"
    return Supply(
        name=name,
        shard_ids=np.array([text_id(path) for path in summary.paths], np.uint64),
        num_rows=summary.num_samples,
        sums=sums,
        largest=largest,
        kept=kept,
        factors=factors,
        rounding="bernoulli" if bernoulli else "systematic",
    )


def _no_labels(source: Source) -> SidecarError:
    command = source.index_command(label_spec="cls")
    return SidecarError(f"`repeat` needs labels but source {source.name!r} was indexed without; {command}")
