"""What is there to plan with? The shards of all sources, their summaries, and from these the supplies of a plan.

Without repeats and selections the summaries are enough. With them the main process looks once at the labels of every shard,
and keeps one integer each: the sum of its repeat factors. Workers get these sums, and read the labels of those shards alone
that they read samples from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from equitar.arrays import Int64
from equitar.errors import SidecarError, SourceError
from equitar.planning.repeat_factors import (
    ONE,
    ClassCounts,
    RepeatFactor,
    class_factors,
    count_classes,
    sample_factors,
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalog:
    """All that is known of the sources before a tar is opened, in the order of their names.

    Attributes:
        sources: The sources, sorted by name.
        sidecars: The sidecars of each.
        summaries: The summary of each.
    """

    sources: tuple[Source, ...]
    sidecars: tuple[Sidecars, ...]
    summaries: tuple[Summary, ...]

    @property
    def file_digests(self) -> dict[str, str]:
        """Digest of the summary file of each source that has one."""
        named = zip(self.sources, self.summaries, strict=True)
        return {source.name: summary.file_digest for source, summary in named if summary.file_digest is not None}


def catalog_of(sources: Sequence[Source], summaries: Mapping[str, ListedSummary] | None = None) -> Catalog:
    """Return the catalog of sources.

    Args:
        sources: The sources.
        summaries: The summary to use, by the name of a source, see `usable_summaries`; for others the newest.

    Raises:
        SourceError: If two sources have one name, or share a shard.
        SidecarError: If a sidecar or summary is missing or damaged.
    """
    ordered = sorted(listed_sources(sources), key=lambda source: source.name)
    pinned = summaries or {}
    known = [pinned.get(source.name) or shards_of(source) for source in ordered]
    shards = [listed for listed, _ in known]
    owner: dict[str, Source] = {}
    for source, listed in zip(ordered, shards, strict=True):
        for path, url in zip(listed.paths, listed.urls, strict=True):
            other = owner.setdefault(join(listed.root, path), source)  # one place may be spelled in several ways
            if other is not source and None in (other.keep, source.keep):
                raise SourceError(
                    f"a shard must belong to one source; {shown(url)} is in {other.name!r} and in {source.name!r} "
                    "(to use parts of it in both, give both a `keep`)"
                )
    found = tuple(
        load_summary(source, known=one, digest=one[1].file_digest if source.name in pinned and one[1] else None)
        for source, one in zip(ordered, known, strict=True)
    )
    kept = sidecar_cache()
    return Catalog(
        sources=tuple(ordered),
        sidecars=tuple(
            Sidecars(source, listed.only(summary.paths), summary, kept)
            for source, listed, summary in zip(ordered, shards, found, strict=True)
        ),
        summaries=found,
    )


@dataclass(frozen=True)
class _Rows:
    """Gives the factors of a shard's rows, in units of 2**-20. A class, so that it pickles.

    Attributes:
        sidecars: The sidecars of the source.
        selection: What multiplies the factors.
        ids: The vocabulary, increasing, (classes,); None repeats nothing.
        factors: r(c) of it, (classes,).
        function: Gives the factors of the rows in place of labels.
        up: Whether factors are rounded up to whole copies.
        empty: Factor of a row without labels.
    """

    sidecars: Sidecars
    selection: Selection | None
    ids: Int64 | None = None
    factors: Int64 | None = None
    function: Callable[[Sidecar], Any] | None = None
    up: bool = False
    empty: int = ONE

    def __call__(self, shard: int) -> Int64:
        return self.of(shard, self.sidecars(shard))

    def of(self, shard: int, sidecar: Sidecar) -> Int64:
        """Return the factors of the rows of a shard whose sidecar is at hand, (rows,)."""
        path = self.sidecars.shards.paths[shard]
        result = np.full(sidecar.num_rows, ONE, np.int64)
        share = None if self.selection is None else self.selection(path, sidecar)
        if self.function is not None:
            what = f"`repeat` for source {self.sidecars.source.name!r}"
            result = np.rint(checked_numbers(self.function(sidecar), sidecar, what, path) * ONE).astype(np.int64)
        elif self.ids is not None and self.factors is not None:
            if sidecar.presence is None:
                raise _no_labels(self.sidecars.source)
            # The vocabulary may lack a label that only rows have which are left out.
            is_kept = slice(None) if share is None else share > 0
            presence = sidecar.presence if share is None else sidecar.presence.kept(share > 0)
            result[is_kept] = sample_factors(presence, self.ids, self.factors, empty=self.empty)
        if self.up:
            result = -(-result // ONE) * ONE
        if share is not None:
            result = np.rint(result * share).astype(np.int64)
        return result

    def kept(self, shard: int, sidecar: Sidecar) -> int:
        """Return the sum of the selection of the rows of a shard, in units of 2**-20 samples."""
        if self.selection is None:
            return sidecar.num_rows * ONE
        return int(np.rint(ONE * self.selection(self.sidecars.shards.paths[shard], sidecar)).sum())


def class_counts(
    sidecars: Sidecars, summary: Summary, selection: Selection | None, how: RepeatFactor | None = None
) -> ClassCounts:
    """Return how many selected samples of a source contain each label; for `how` also what only the rows can tell.

    Raises:
        SidecarError: If the source was indexed without labels.
    """
    if summary.label_counts is None:
        raise _no_labels(sidecars.source)
    names = dict(zip(*summary.class_names, strict=True)) if summary.class_names is not None else None
    empty = "keep" if how is None else how.empty
    if selection is not None or empty == "drop" or (how is not None and how.heuristic == "irfs"):
        parts = zip(sidecars.shards.paths, sidecars.all(), strict=True)
        return count_classes((_kept_rows(*part, selection) for part in parts), names=names, empty=empty)
    found = summary.label_counts.ids
    ids = np.unique(found if names is None else np.array(list(names), np.int64))
    num_samples = np.zeros(len(ids), np.int64)
    np.add.at(num_samples, np.searchsorted(ids, found), summary.label_counts.counts)
    return ClassCounts(
        ids=ids,
        num_samples=num_samples,
        total=int(summary.num_samples.sum()),
        names=None if names is None else tuple(names[one] for one in ids.tolist()),
    )


def _kept_rows(path: str, sidecar: Sidecar, selection: Selection | None) -> Presence:
    """Return the labels of the kept rows of a shard."""
    assert sidecar.presence is not None, "a source has labels in all shards or in none"
    return sidecar.presence if selection is None else sidecar.presence.kept(selection(path, sidecar) > 0)


def supplies_of(catalog: Catalog, repeat: Repeat) -> list[Supply]:
    """Return what a plan needs to know of each source.

    Args:
        catalog: The sources.
        repeat: A threshold, a `RepeatFactor`, a function of a sidecar that gives a factor >= 0 for each row, or None.

    Raises:
        SidecarError: If repeats need labels that a source was indexed without.
    """
    how = RepeatFactor.of(repeat)
    return [
        _supply(rows, summary, how) for rows, summary in zip(_rows_of(catalog, how), catalog.summaries, strict=True)
    ]


def row_factors(catalog: Catalog, repeat: Repeat) -> list[Callable[[int, Sidecar], Int64]]:
    """Return for each source what gives the factors of the rows of a shard, in units of 2**-20 copies, from its sidecar.

    Raises:
        SidecarError: If repeats need labels that a source was indexed without.
    """
    how = RepeatFactor.of(repeat)
    return [rows.of for rows in _rows_of(catalog, how)]


def _rows_of(catalog: Catalog, how: RepeatFactor | Callable[[Sidecar], Any] | None) -> list[_Rows]:
    selections = [selection_of(source) for source in catalog.sources]
    factors: Iterable[tuple[Int64 | None, Int64 | None]] = [(None, None)] * len(selections)
    if isinstance(how, RepeatFactor):
        triples = zip(catalog.sidecars, catalog.summaries, selections, strict=True)
        counts = [class_counts(*one, how) for one in triples]
        factors = zip([one.ids for one in counts], class_factors(counts, how), strict=True)
    result = []
    for sidecars, selection, (ids, of_class) in zip(catalog.sidecars, selections, factors, strict=True):
        rows = _Rows(sidecars, selection, ids, of_class)
        if isinstance(how, RepeatFactor):
            rows = replace(rows, up=how.rounding == "ceil", empty=how.without_labels)
        elif how is not None:
            rows = replace(rows, function=how)
        result.append(rows)
    return result


def _supply(rows: _Rows, summary: Summary, how: RepeatFactor | Callable[[Sidecar], Any] | None) -> Supply:
    name = rows.sidecars.source.name
    if how is None and rows.selection is None:
        return Supply.once(name, list(summary.paths), summary.num_samples)
    sums, largest, kept = np.zeros(len(summary.paths), np.int64), 0, 0
    bernoulli = isinstance(how, RepeatFactor) and how.rounding == "bernoulli"
    for shard, sidecar in enumerate(rows.sidecars.all()):
        factors = rows.of(shard, sidecar)
        sums[shard], largest = factors.sum(), max(largest, int(factors.max(initial=0)))
        kept += rows.kept(shard, sidecar)
    keep = rows.sidecars.source.keep
    if isinstance(keep, str) and kept == int(summary.num_samples.sum()) * ONE:  # keys are spelt otherwise, most likely
        logger.warning("source %r: `keep` leaves out nothing, by %r", name, shown(keep))
    return Supply(
        name=name,
        shard_ids=np.array([text_id(path) for path in summary.paths], np.uint64),
        num_rows=summary.num_samples,
        sums=sums,
        largest=largest,
        kept=kept,
        factors=rows,
        rounding="bernoulli" if bernoulli else "systematic",
    )


def _no_labels(source: Source) -> SidecarError:
    command = source.index_command(label_spec="cls")
    return SidecarError(f"`repeat` needs labels but source {source.name!r} was indexed without; {command}")
