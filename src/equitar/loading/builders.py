"""The builders `debiased`, `mixed` and `exact`: every default of equitar is here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from equitar.checks import check_number
from equitar.errors import PlanError
from equitar.loading.batches import Batches
from equitar.loading.collate import columns
from equitar.loading.feed import checked_stages
from equitar.loading.request import Request
from equitar.planning.plan import Composition, SameSourceAcross, SmallSources
from equitar.planning.recipes import Debiased, Exact, Mixed
from equitar.planning.weights import Changes, Weights, check_shares
from equitar.ranks import RankChoice
from equitar.reading.damage import Handler
from equitar.sidecars.catalog import Repeat
from equitar.sources import Source, Stage, listed_sources

_READ_AHEAD = 128_000_000
_SHUFFLE = 5000  # samples of each source on each rank and lane: indexes, not bytes


def debiased(
    sources: Source | Sequence[Source],
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: int = _SHUFFLE,
    weights: Weights | Changes | None = None,
    steps: int | None = None,
    max_passes: float | None = None,
    restart_each_epoch: bool = False,
    repeat: Repeat = None,
    labels_shared: bool = False,
    stages: Sequence[Stage] = (),
    collate_fn: Callable[[list[Any]], Any] = columns,
    fields: Collection[str] | None = None,
    copy: bool = True,
    plan_workers: int | None = None,
    same_source_across: SameSourceAcross = "world",
    accumulation_steps: int = 1,
    small_sources: SmallSources = "error",
    max_substitutes: int = 100,
    handler: Handler = None,
    read_ahead: int = _READ_AHEAD,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    group: Any = None,
) -> Batches:
    """Return batches that hold one source each, the same on all ranks at every step (ZeroVL, arXiv 2112.09331).

    Args:
        sources: A source or several, each indexed (`equitar index`); their order does not matter.
        batch_size: Samples per rank and step, >= 1.
        seed: Seed of every order, >= 0.
        shuffle: Samples of a source that each rank shuffles together, >= 0.
        weights: Share of the steps of each source, by name; `Temperature`, `Passes`, or a list of (from_step, weights).
            `BySamples` is by size before repeats, `ZeroVL` draws by size with replacement. None is by size: every source is
            gone through once.
        steps: Steps of an epoch; None is as many as one pass through all sources gives. Shorter epochs continue
            along the passes, so that each sample is still drawn once per pass.
        max_passes: How often an epoch may go through a source, > 0; other steps are given to the sources that may still be drawn.
        restart_each_epoch: Whether every epoch starts a new pass of each source, even if a shorter epoch left some of the last one.
        repeat: Repeats samples: the threshold of LVIS's repeat factor, a `RepeatFactor`, or a function of a shard's sidecar
            that gives a factor >= 0 for each row.
        labels_shared: Whether ids without class names mean the same classes in all sources; by default each source has its own.
        stages: Per-sample stages, after those of the source: callables over an iterator of samples, such as `wds.decode`.
        collate_fn: Makes a batch of a list of samples (default: a dict of lists; ``list`` keeps samples apart). If it returns a
            dict, ``__source__`` (here the name of the source of the batch) and ``__step__`` are set in it.
        fields: Fields to read; None reads all.
        copy: Whether fields are `bytes`; otherwise read-only views, which save a copy.
        plan_workers: DataLoader workers that the plan is made for; None is the number that is used.
        same_source_across: ``"world"``: all ranks draw the same source at a step; ``"rank"``: each rank draws its own.
        accumulation_steps: Steps in a row with the same source, >= 1: for losses that gather over gradient accumulation. Two
            copies of a sample never meet within these steps either.
        small_sources: What to do with a source that has no full global batch: ``"error"`` or ``"leave_out"``.
        max_substitutes: How many samples in a row stages may drop at one place, >= 0.
        handler: What to do about shards that are damaged, missing or unavailable: None raises; ``"skip_sample"`` continues
            without the samples that cannot be read, ``"skip_shard"`` without the whole shard; a function of the error, such as
            `wds.warn_and_continue`, returns True to continue as ``"skip_sample"`` does. Substitutes take the places of lost samples.
        read_ahead: Bytes of remote shards that each worker may prefetch, of all sources together; 0 disables prefetching.
        rank: This process among those that share the data; None detects it.
        world_size: Number of these processes.
        mesh: A `DeviceMesh` of data-parallel dimensions in place of `rank` and `world_size`, such as ``mesh["dp"]`` or
            ``mesh["dp_replicate", "dp_shard"]``: peers of tensor, pipeline and context parallelism get the same batches.
        group: A `ProcessGroup` of the processes that share the data in place of these.

    Raises:
        PlanError: At the first use, if the promises cannot be kept; it says what to change.
        SourceError, SidecarError: At the first use, if shards or sidecars are missing or stale.
        StageError: If a stage cannot be applied sample by sample.
    """
    if same_source_across not in ("world", "rank"):
        raise PlanError(f"`same_source_across` must be 'world' or 'rank'; got {same_source_across!r}")
    if small_sources not in ("error", "leave_out"):
        raise PlanError(f"`small_sources` must be 'error' or 'leave_out'; got {small_sources!r}")
    listed = _listed(sources)
    _check_max_passes(max_passes)
    recipe = Debiased(
        weights=weights,
        steps=steps,
        max_passes=max_passes,
        restart_each_epoch=restart_each_epoch,
        same_source_across=same_source_across,
        small_sources=small_sources,
        accumulation_steps=accumulation_steps,
    )
    check_shares(weights, [source.name for source in listed], some=small_sources == "leave_out")
    return Batches(
        Request(
            sources=listed,
            recipe=recipe,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            repeat=repeat,
            labels_shared=labels_shared,
            stages=checked_stages(stages),
            collate_fn=_checked(collate_fn),
            fields=fields,
            copy=copy,
            plan_workers=plan_workers,
            ranks=RankChoice.of(rank, world_size, mesh, group),
            max_substitutes=max_substitutes,
            handler=handler,
            read_ahead=read_ahead,
            one_source=True,
        )
    )


def mixed(  # noqa: D417  (`debiased` documents the other arguments)
    sources: Source | Sequence[Source],
    *,
    batch_size: int | None = None,
    seed: int = 0,
    shuffle: int = _SHUFFLE,
    weights: Weights | None = None,
    steps: int | None = None,
    max_passes: float | None = None,
    restart_each_epoch: bool = False,
    composition: Composition = "stratified",
    repeat: Repeat = None,
    labels_shared: bool = False,
    stages: Sequence[Stage] = (),
    collate_fn: Callable[[list[Any]], Any] = columns,
    fields: Collection[str] | None = None,
    copy: bool = True,
    plan_workers: int | None = None,
    max_substitutes: int = 100,
    handler: Handler = None,
    read_ahead: int = _READ_AHEAD,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    group: Any = None,
) -> Batches:
    """Return batches of all sources by share, or single samples.

    Args:
        sources: As for `debiased`, as are all arguments that are not listed here.
        batch_size: Samples per rank and step, >= 1; None gives one sample at a time, for a DataLoader that batches.
        weights: Share of the samples of each source; None is by size.
        steps: Steps of an epoch (samples per rank, without `batch_size`).
        composition: ``"stratified"``: every batch of a rank has the floor or the ceiling of each source's share of it;
            ``"independent"``: batches are those of one shuffle over all sources, whose shares vary from batch to batch.
        shuffle: Samples that each rank shuffles together, of all sources.
        collate_fn: As for `debiased`, but ``__source__`` is a list in the default batch: the name of the source of each sample.

    Raises:
        PlanError: At the first use, if the promises cannot be kept; it says what to change.
    """
    listed = _listed(sources)
    _check_max_passes(max_passes)
    recipe = Mixed(
        weights=weights,
        steps=steps,
        max_passes=max_passes,
        restart_each_epoch=restart_each_epoch,
        composition=composition,
    )
    check_shares(weights, [source.name for source in listed], some=False)
    return Batches(
        Request(
            sources=listed,
            recipe=recipe,
            batch_size=1 if batch_size is None else batch_size,
            seed=seed,
            shuffle=shuffle,
            repeat=repeat,
            labels_shared=labels_shared,
            stages=checked_stages(stages),
            collate_fn=None if batch_size is None else _checked(collate_fn),
            fields=fields,
            copy=copy,
            plan_workers=plan_workers,
            ranks=RankChoice.of(rank, world_size, mesh, group),
            max_substitutes=max_substitutes,
            handler=handler,
            read_ahead=read_ahead,
            one_source=False,
        )
    )


def exact(  # noqa: D417  (`debiased` documents the other arguments)
    sources: Source | Sequence[Source],
    *,
    batch_size: int,
    pad: bool = False,
    repeat: Repeat = None,
    labels_shared: bool = False,
    stages: Sequence[Stage] = (),
    collate_fn: Callable[[list[Any]], Any] = columns,
    fields: Collection[str] | None = None,
    copy: bool = True,
    handler: Handler = None,
    read_ahead: int = _READ_AHEAD,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Any = None,
    group: Any = None,
) -> Batches:
    """Return every sample once over all ranks, in order: for validation.

    All ranks do the same number of steps. The last step shares out the rest; samples have ``__pad__``, which is true for those
    that only fill a place.

    Args:
        sources: As for `debiased`, as are all arguments that are not listed here.
        batch_size: Samples per rank and step, >= 1.
        pad: Whether the batches of the last step are filled up to `batch_size`.
        stages: As for `debiased`; a sample that they drop is missing from its batch.
        collate_fn: As for `mixed`.
        handler: As for `debiased`; the places of lost samples stay empty.
    """
    return Batches(
        Request(
            sources=_listed(sources),
            recipe=Exact(pad=pad),
            batch_size=batch_size,
            seed=0,
            shuffle=0,
            repeat=repeat,
            labels_shared=labels_shared,
            stages=checked_stages(stages),
            collate_fn=_checked(collate_fn),
            fields=fields,
            copy=copy,
            plan_workers=1,
            ranks=RankChoice.of(rank, world_size, mesh, group),
            max_substitutes=0,
            handler=handler,
            read_ahead=read_ahead,
            one_source=False,
        )
    )


def _listed(sources: Source | Sequence[Source]) -> tuple[Source, ...]:
    listed = listed_sources(sources)
    if not listed:
        raise PlanError("`sources` must have at least one source; got none")
    return listed


def _checked(collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    if not callable(collate_fn):
        raise PlanError(f"`collate_fn` must be a function of a list of samples; got {collate_fn!r}")
    return collate_fn


def _check_max_passes(max_passes: float | None) -> None:
    if max_passes is not None:
        check_number("max_passes", max_passes)
