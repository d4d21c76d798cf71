"""The numbers of a report: what a person should know before a training is started.

Sources and classes are those of `stats`, steps and readers those of `equitar.plan`. All of them look at the rows in one pass over
the sidecars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from equitar.arrays import Int64
from equitar.display import Overview, Table, tables_of
from equitar.planning.repeat_factors import RepeatFactor
from equitar.planning.supply import Supply
from equitar.reporting.stats import CopyCounter, Stats
from equitar.reporting.thresholds import LabelledRowCounter, ThresholdOutcome, summed
from equitar.sidecars.catalog import Catalog, Repeat, RowVisitor, catalog_of, supplies_of
from equitar.sources import Source, listed_sources
from equitar.text import counted

if TYPE_CHECKING:
    from equitar.loading.batches import Batches
    from equitar.loading.request import Request
    from equitar.planning.plan import Plan
    from equitar.reporting.preview import Preview


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Report(Overview):
    """All numbers of a report.

    Attributes:
        stats: Sources and classes, as `stats` returns them.
        plan: The epoch, as `equitar.plan` returns it; None if no batches were asked about.
        label_numbers: Samples with 0, 1, 2, ... labels; None if no source has labels.
        thresholds: What thresholds would do, in increasing order; empty if no source has labels.
        arguments: What the batches were made with, by name, in words.
    """

    stats: Stats
    plan: Preview | None
    label_numbers: Int64 | None
    thresholds: tuple[ThresholdOutcome, ...]
    arguments: tuple[tuple[str, str], ...]

    @property
    def copies(self) -> float:
        """Samples in one pass of all sources, repeats counted: the expected number."""
        return sum(source.pass_copies for source in self.stats.sources)

    @property
    def bytes_read(self) -> float:
        """Bytes of shards that an epoch reads, by the share of its samples that it emits, copies counted."""
        return sum(source.bytes * source.copies / max(1, source.rows) for source in self.stats.sources)

    def extra_copies(self) -> dict[str, tuple[float, float]]:
        """Return by the name of each source how many copies an epoch emits on top of its samples: by repeats, and by weights.

        By weights (or steps) are those above or below one pass, apart from what fills no global batch. Without a plan there are none.
        """
        planned = {} if self.plan is None else {source.name: source for source in self.plan.sources}
        global_batch = 0 if self.plan is None else self.plan.batch_size * self.plan.world_size
        result = {}
        for source in self.stats.sources:
            by_weights = 0.0
            if self.plan is not None:
                taken = planned.get(source.name)
                more = (0 if taken is None else taken.samples) - int(source.pass_copies)
                left_out = 0 if taken is None else taken.remainder
                by_weights = 0.0 if -global_batch < more <= 0 else float(more + left_out)
            result[source.name] = (source.pass_copies - source.samples, by_weights)
        return result

    def _overview(self) -> tuple[str, list[Table]]:
        steps = "no plan" if self.plan is None else f"{counted(self.plan.steps, 'step')} in epoch {self.plan.epoch}"
        title = (
            f"Report: {counted(len(self.stats.sources), 'source')}, {counted(self.stats.samples, 'sample')}, "
            f"{self.copies:,.0f} copies in a pass, {steps}"
        )
        outcomes = (
            (
                outcome.name,
                f"{outcome.copies:,.0f}",
                f"{outcome.largest:.2f}",
                "-" if outcome.steps is None else f"{outcome.steps:,}",
                *(
                    ("-", "-")
                    if outcome.balance is None
                    else (f"{outcome.balance.rare_share:.1%}", f"{outcome.balance.evenness:.3f}")
                ),
            )
            for outcome in self.thresholds
        )
        head = ("threshold", "copies", "largest r(c)", "steps", "with a rare class", "evenness")
        return title, [*tables_of(self.stats), [head, *outcomes]]


def report_of(
    sources: Source | Sequence[Source] | Batches,
    *,
    repeat: Repeat = None,
    labels_shared: bool = False,
    epoch: int = 0,
    num_workers: int = 0,
) -> Report:
    """Return the numbers of a report, without opening a tar.

    Args:
        sources: Indexed sources; or what `debiased`, `mixed` or `exact` returned: then there are steps and readers too.
        repeat: As for `debiased`; None repeats nothing, or as batches do.
        labels_shared: As for `debiased`; batches may have it already.
        epoch: Which epoch of batches.
        num_workers: DataLoader workers of each rank.

    Raises:
        SourceError, SidecarError: If shards or sidecars are not as they must be, or repeats find no labels.
        PlanError: If the promises cannot be kept.
    """
    if isinstance(sources, Source | Sequence):
        catalog = catalog_of(listed_sources(sources), labels_shared=labels_shared)
        look = _Look(catalog, repeat)
        outcomes = look.outcomes(look.supplies(), None)
        stats = look.copies.stats([1.0] * len(catalog.sources))
        return look.report(stats, None, outcomes, (("repeat", _value_text(repeat)),))
    from equitar.loading.batches import adjusted, execution_of  # noqa: PLC0415  (torch, which sources alone do not need)
    from equitar.reporting.preview import RowMemory, passes_of, preview_of, with_supplies  # noqa: PLC0415  (as above)

    looks, memories = [], []

    def look_and_supply(catalog: Catalog, repeat: Repeat) -> list[Supply]:
        looks.append(_Look(catalog, repeat))
        memories.append(RowMemory(catalog, execution_of(batches).request.fields))
        return memories[0].remembered(looks[0].supplies(memories))

    batches = adjusted(sources, repeat=repeat, labels_shared=labels_shared or None)
    batches = with_supplies(batches, look_and_supply)
    request = execution_of(batches).request
    supplies = request.resolved.supplies
    classes = looks[0].copies.source_classes(memories[0].labels)
    preview = preview_of(batches, memories[0], classes, epoch=epoch, num_workers=num_workers)
    spec = batches.plan(epoch, num_workers=num_workers).spec
    outcomes = looks[0].outcomes(supplies, lambda repeated: request.recipe.plan(repeated, spec))
    stats = looks[0].copies.stats(passes_of(batches, epoch))
    return looks[0].report(stats, preview, outcomes, _arguments(request, preview))


class _Look:
    """One pass over the sidecars for all parts of a report."""

    def __init__(self, catalog: Catalog, repeat: Repeat) -> None:
        self._catalog, self._repeat, factor = catalog, repeat, RepeatFactor.of(repeat)
        is_formula = isinstance(factor, RepeatFactor) and not callable(factor.heuristic)
        shown = factor if isinstance(factor, RepeatFactor) and is_formula else RepeatFactor()
        chosen = shown.threshold if is_formula or factor is None else None
        self.copies, self._labels = CopyCounter(catalog, repeat), LabelledRowCounter(catalog, shown, chosen)
        self._has_labels = any(rows is not None for rows in self._labels.rows)

    def supplies(self, visitors: Sequence[RowVisitor] = ()) -> list[Supply]:
        """Return the supplies, made in the pass that everything else is counted in."""
        return supplies_of(self._catalog, self._repeat, [self.copies, self._labels, *visitors])

    def outcomes(
        self, supplies: Sequence[Supply], plan: Callable[[Sequence[Supply]], Plan] | None
    ) -> tuple[ThresholdOutcome, ...]:
        return self._labels.outcomes(supplies, plan) if self._has_labels else ()

    def report(
        self,
        stats: Stats,
        preview: Preview | None,
        thresholds: tuple[ThresholdOutcome, ...],
        arguments: tuple[tuple[str, str], ...],
    ) -> Report:
        numbers = [rows.numbers for rows in self._labels.rows if rows is not None]
        return Report(
            stats=stats,
            plan=preview,
            label_numbers=summed(numbers) if numbers else None,
            thresholds=thresholds,
            arguments=arguments,
        )


def _arguments(request: Request, preview: Preview) -> tuple[tuple[str, str], ...]:
    """Return what a plan was made with, so that it can be made again."""
    recipe: Any = request.recipe
    keeps = {source.name: source.keep for source in request.sources if source.keep is not None}
    values = {
        "batches": type(recipe).__name__.lower(),
        "batch_size": preview.batch_size,
        "world_size": preview.world_size,
        "num_workers": preview.num_workers,
        "epoch": preview.epoch,
        "seed": preview.seed,
        "shuffle": request.shuffle,
        "plan_workers": preview.plan_workers,
        "repeat": request.repeat,
        "labels_shared": request.labels_shared,
        **{argument.name: getattr(recipe, argument.name) for argument in fields(recipe)},
        **{f"keep of {name}": keep for name, keep in keeps.items()},
    }
    return tuple((name, _value_text(value)) for name, value in values.items())


def _value_text(value: object) -> str:
    """Return a value in words; the address of a function says nothing."""
    return getattr(value, "__qualname__", None) or (value if isinstance(value, str) else repr(value))
