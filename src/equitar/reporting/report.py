"""What should a person know before a training is started? All numbers of a report; what is said about them is elsewhere.

Nothing is counted anew: sources and classes are those of `stats`, steps and readers those of `preview`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from equitar.arrays import Int64
from equitar.planning.plan import Plan
from equitar.planning.repeat_factors import ONE, RepeatFactor
from equitar.planning.supply import Supply
from equitar.reporting.stats import Stats, stats, stats_of
from equitar.reporting.thresholds import ThresholdOutcome, labelled_rows, outlooks, summed
from equitar.sidecars.catalog import Catalog, Repeat, catalog_of, supplies_of
from equitar.sources import Source, listed_sources
from equitar.text import listed
from equitar.urls import shown

if TYPE_CHECKING:
    from equitar.loading.batches import Batches
    from equitar.loading.request import Request
    from equitar.reporting.preview import Preview

_URLS = 3  # patterns of a source that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """What else is known of one source.

    Attributes:
        name: The source.
        shards: What it was listed by, without secrets.
        summary: Digest of its summary.
        num_rows: Samples in its shards, before selection.
        copies: Samples in one pass, repeats counted: the expected number.
        unlabelled: Its samples without a label, after selection; None if it was indexed without labels.
    """

    name: str
    shards: str
    summary: str
    num_rows: int
    copies: float
    unlabelled: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """All numbers of a report.

    Attributes:
        stats: Sources and classes, as `stats` returns them.
        plan: The epoch, as `preview` returns it; None if no batches were asked about.
        rows: What else is known of each source, by name.
        label_numbers: Samples with 0, 1, 2, ... labels; None if no source has labels.
        outlooks: What thresholds would do, in increasing order; empty if no source has labels.
        arguments: What the batches were asked for, by name, in words.
    """

    stats: Stats
    plan: Preview | None
    rows: tuple[SourceRows, ...]
    label_numbers: Int64 | None
    outlooks: tuple[ThresholdOutcome, ...]
    arguments: tuple[tuple[str, str], ...]

    @property
    def copies(self) -> float:
        """Samples in one pass of all sources, repeats counted: the expected number."""
        return sum(one.copies for one in self.rows)

    @property
    def bytes_read(self) -> float:
        """Bytes of shards that an epoch reads, by the share of its samples that it emits, copies counted."""
        pairs = zip(self.stats.sources, self.rows, strict=True)
        return sum(one.bytes * one.copies / max(1, rows.num_rows) for one, rows in pairs)


def report_of(
    sources: Source | Sequence[Source] | Batches, *, repeat: Repeat = None, epoch: int = 0, num_workers: int = 0
) -> Report:
    """Return the numbers of a report, without opening a tar.

    Args:
        sources: Indexed sources; or what `debiased`, `mixed` or `exact` returned: then there are steps and readers too.
        repeat: As for `debiased`; None repeats nothing, or as batches do.
        epoch: Which epoch of batches.
        num_workers: DataLoader workers of each rank.

    Raises:
        SourceError, SidecarError: If shards or sidecars are not as they must be, or repeats find no labels.
        PlanError: If the promises cannot be kept.
    """
    if isinstance(sources, Source | Sequence):
        catalog = catalog_of(listed_sources(sources))
        found = stats_of(catalog, repeat, [1.0] * len(catalog.sources))
        return _report(found, None, catalog, supplies_of(catalog, repeat), repeat, None, (("repeat", _said(repeat)),))
    from equitar.loading.batches import adjusted, execution_of  # noqa: PLC0415  (as above)
    from equitar.reporting.preview import plan as plan_of_epoch  # noqa: PLC0415  (torch, which sources alone do not need)

    batches = adjusted(sources, repeat=repeat)
    request = execution_of(batches).request
    plan = plan_of_epoch(batches, epoch=epoch, num_workers=num_workers)
    shape = batches.plan(epoch, num_workers=num_workers).spec
    return _report(
        stats(batches),
        plan,
        request.resolved.catalog,
        request.resolved.supplies,
        request.repeat,
        lambda supplies: request.recipe.plan(supplies, shape),
        _arguments(request, plan),
    )


def _report(
    found: Stats,
    plan: Preview | None,
    catalog: Catalog,
    supplies: Sequence[Supply],
    repeat: Repeat,
    make: Callable[[Sequence[Supply]], Plan] | None,
    arguments: tuple[tuple[str, str], ...],
) -> Report:
    how = RepeatFactor.of(repeat)
    is_formula = isinstance(how, RepeatFactor) and not callable(how.heuristic)
    base = how if isinstance(how, RepeatFactor) and is_formula else RepeatFactor()
    chosen = base.threshold if is_formula or how is None else None
    has_labels = any(one.label_counts is not None for one in catalog.summaries)
    rows = labelled_rows(catalog, base) if has_labels else [None] * len(supplies)
    return Report(
        stats=found,
        plan=plan,
        rows=tuple(
            SourceRows(
                name=source.name,
                shards=_shown(source),
                summary=summary.digest,
                num_rows=int(summary.num_samples.sum()),
                copies=supply.total / ONE,
                unlabelled=None if one is None else int(one.numbers[0]),
            )
            for source, summary, supply, one in zip(catalog.sources, catalog.summaries, supplies, rows, strict=True)
        ),
        label_numbers=summed([one.numbers for one in rows if one is not None]) if has_labels else None,
        outlooks=outlooks(rows, supplies, base, chosen=chosen, plan=make) if has_labels else (),
        arguments=arguments,
    )


def _shown(source: Source) -> str:
    urls = [source.urls] if isinstance(source.urls, str) else [*source.urls]
    return listed([shown(url) for url in urls], _URLS)


def _arguments(request: Request, plan: Preview) -> tuple[tuple[str, str], ...]:
    """Return what a plan was made with, so that it can be made again."""
    recipe: Any = request.recipe
    kept = {one.name: one.keep for one in request.sources if one.keep is not None}
    told = {
        "batches": type(recipe).__name__.lower(),
        "batch_size": plan.batch_size,
        "world_size": plan.world_size,
        "num_workers": plan.num_workers,
        "epoch": plan.epoch,
        "seed": plan.seed,
        "shuffle": request.shuffle,
        "lanes": plan.lanes,
        "repeat": request.repeat,
        **{one.name: getattr(recipe, one.name) for one in fields(recipe)},
        **{f"keep of {name}": keep for name, keep in kept.items()},
    }
    return tuple((name, _said(value)) for name, value in told.items())


def _said(value: object) -> str:
    """Return a value in words; the address of a function says nothing."""
    return getattr(value, "__qualname__", None) or (value if isinstance(value, str) else repr(value))
