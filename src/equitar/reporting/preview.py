"""The plan of an epoch: steps, sources, readers and every sample, without opening a tar.

It shows what is emitted before stages drop anything: request, plan and emitter are those of training, and only the last link
is another one, a reader that answers from sidecars.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equitar.arrays import Int64
from equitar.display import Overview, Table
from equitar.loading.batches import Batches, execution_of, own_copy
from equitar.loading.feed import Feed
from equitar.loading.record import Record
from equitar.loading.request import Request, ResolvedRequest
from equitar.planning.plan import Plan
from equitar.planning.recipes import Debiased, Exact
from equitar.planning.supply import Once, Supply
from equitar.presence import Presence
from equitar.ranks import Topology
from equitar.reading.reader import SampleReader, open_shards
from equitar.reporting.locality import Locality, SourceClasses, batch_locality, source_classes
from equitar.sidecars.catalog import Catalog, Repeat, ShardRows, labels_of
from equitar.sidecars.sidecar import Sidecar
from equitar.sidecars.store import Sidecars
from equitar.sources import Sample
from equitar.text import counted

_MOST_CONSUMERS = 64
_MOST_BATCHES = 1 << 15  # planning a batch takes some 50 microseconds
_MOST_PLACES = 1 << 20
_SHARDS_KEPT = 1024  # many consumers take turns, each at its own shards
_ENTRY_BYTES = 200  # of an array, its key and its place
_ROW_BYTES = 256_000_000  # factors, sizes and labels of rows that are kept: some 20 million rows of one label each


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePreview:
    """What an epoch takes of one source.

    Attributes:
        name: The source.
        samples: Samples that are emitted, copies counted.
        batches: Global batches; None where batches are mixed.
        share: Its share of the epoch.
        passes: How often the epoch goes through it.
        remainder: Copies of a pass that are left out, others in each pass.
        most: Most copies of one sample in the epoch.
    """

    name: str
    samples: int
    batches: int | None
    share: float
    passes: float
    remainder: int
    most: int


class Consumer(NamedTuple):
    """What one worker of one rank reads.

    Attributes:
        rank: The rank.
        worker: Its worker; 0 without workers.
        steps: Steps that it does, of those that are counted.
        shards: Shards that it opens.
        samples: Samples that it reads, copies counted.
        bytes: Bytes of these samples' fields.
    """

    rank: int
    worker: int
    steps: int
    shards: int
    samples: int
    bytes: int


class Emission(NamedTuple):
    """One sample of a batch.

    Attributes:
        step: Step at which it is emitted.
        rank: Rank that emits it.
        worker: Worker of that rank.
        source: Its source.
        shard: Path of its shard below the root of the source.
        row: Its row there.
        key: Its key.
        copy: Which copy of the sample it is in this pass.
        is_padding: Whether it only fills a place (`exact` alone does that).
    """

    step: int
    rank: int
    worker: int
    source: str
    shard: str
    row: int
    key: str
    copy: int
    is_padding: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Preview(Overview):
    """The plan of an epoch.

    Attributes:
        epoch: Which epoch.
        steps: Its steps.
        batch_size: Samples per rank and step.
        world_size: Ranks.
        num_workers: Workers of each rank.
        plan_workers: Workers that the plan is laid out for.
        seed: The seed.
        digest: Identifies everything that the plan depends on, apart from the epoch.
        sources: What it takes of each source, by name.
        schedule: Index of the source of every step, (steps,): one if all ranks agree, otherwise one for each rank; None where
            batches are mixed.
        consumers: The first consumers, rank by rank, and what each reads.
        num_consumers: How many there are.
        counted_steps: Steps that `consumers` are counted over: all, unless one consumer has too many.
        locality: Of how many shards and classes batches are: for each source, or once where they are mixed; empty where a batch
            is one sample, or batches are in order.
    """

    epoch: int
    steps: int
    batch_size: int
    world_size: int
    num_workers: int
    plan_workers: int
    seed: int
    digest: str
    sources: tuple[SourcePreview, ...]
    schedule: tuple[Int64, ...] | None
    consumers: tuple[Consumer, ...]
    num_consumers: int
    counted_steps: int
    locality: tuple[Locality, ...]

    def _overview(self) -> tuple[str, list[Table]]:
        size = f"{counted(self.steps, 'step')} of {self.batch_size:,} samples x {counted(self.world_size, 'rank')}"
        workers = f"{counted(self.num_workers, 'worker')} each"
        title = f"Preview: epoch {self.epoch}, {size}, {workers}, seed {self.seed}, digest {self.digest[:16]}"
        sources = (
            (
                source.name,
                "mixed" if source.batches is None else f"{source.batches:,}",
                f"{source.samples:,}",
                f"{source.share:.1%}",
                f"{source.passes:.3f}",
                f"{source.remainder:,}",
            )
            for source in self.sources
        )
        return title, [[("source", "batches", "samples", "share", "passes", "remainder"), *sources]]


def plan(batches: Batches, *, epoch: int = 0, num_workers: int = 0) -> Preview:
    """Return the plan of an epoch, and what each consumer reads in it, without opening a tar.

    Args:
        batches: From `debiased`, `mixed` or `exact`; pass them `rank` and `world_size` to plan for other ranks than this process has.
        epoch: Which epoch.
        num_workers: DataLoader workers of each rank.

    Raises:
        PlanError: If the promises cannot be kept.
        SourceError, SidecarError: If shards or sidecars are not as they must be.
    """
    request = execution_of(batches).request
    memory = RowMemory(request.resolved.catalog, request.fields)
    classes = _classes_at_hand(request.resolved.catalog, request.repeat, memory)
    return preview_of(batches, memory, classes, epoch=epoch, num_workers=num_workers)


def _classes_at_hand(catalog: Catalog, repeat: Repeat, memory: RowMemory) -> list[SourceClasses | None]:
    """Return the classes of each source as far as summaries tell: selections and repeats take a look at every row."""
    counts = [
        catalog.class_counts(source) if catalog.has_labels(source) and selection is None else None
        for source, selection in enumerate(catalog.selections)
    ]
    shares = [
        None if of_source is None or repeat is not None else of_source.num_samples / max(1, of_source.total)
        for of_source in counts
    ]
    return source_classes([source.name for source in catalog.sources], counts, shares, memory.labels)


def preview_of(
    batches: Batches,
    memory: RowMemory,
    classes: Sequence[SourceClasses | None],
    *,
    epoch: int,
    num_workers: int,
) -> Preview:
    """Return the plan of an epoch of batches whose rows are remembered, as far as they were looked at.

    Args:
        batches: From `debiased`, `mixed` or `exact`.
        memory: Their rows.
        classes: The classes of each source of the catalog; None where they are not known.
        epoch: Which epoch.
        num_workers: DataLoader workers of each rank.
    """
    request, planned = execution_of(batches).request, batches.plan(epoch, num_workers=num_workers)
    emitted = max(1, sum(account.quota for account in planned.account))
    is_mixed = planned.sources(0) is None
    consumers, counted_steps = _consumers(memory, request.resolved, planned, num_workers)
    return Preview(
        epoch=epoch,
        steps=planned.num_steps,
        batch_size=planned.spec.batch_size,
        world_size=request.resolved.world_size,
        num_workers=num_workers,
        plan_workers=planned.spec.lanes,
        seed=planned.spec.seed,
        digest=planned.digest,
        sources=tuple(
            SourcePreview(
                name=account.name,
                samples=account.quota,
                batches=None if is_mixed else account.quota // planned.global_batch,
                share=account.quota / emitted,
                passes=account.passes,
                remainder=account.remainder,
                most=account.most,
            )
            for account in planned.account
        ),
        schedule=_schedule(request, planned, request.resolved.world_size),
        consumers=consumers,
        num_consumers=request.resolved.world_size * max(1, num_workers),
        counted_steps=counted_steps,
        locality=()
        if isinstance(request.recipe, Exact) or planned.spec.batch_size == 1
        else batch_locality(planned, request.resolved.supplies, classes),
    )


def with_supplies(batches: Batches, make_supplies: Callable[[Catalog, Repeat], Sequence[Supply]]) -> Batches:
    """Return the same batches, whose supplies are still to be made, in another way."""
    result = own_copy(batches)
    execution = execution_of(result)
    execution.request = replace(execution.request, make_supplies=make_supplies)
    return result


def passes_of(batches: Batches, epoch: int = 0) -> list[float]:
    """Return how often an epoch goes through each source, in the order of the catalog; 0 for one that is left out."""
    passes = {account.name: account.passes for account in batches.plan(epoch, num_workers=0).account}
    return [passes.get(source.name, 0.0) for source in execution_of(batches).request.resolved.catalog.sources]


def emissions(batches: Batches, *, epoch: int = 0, num_workers: int = 0) -> Iterator[Emission]:
    """Yield every sample of an epoch before stages drop any: step by step, rank by rank, in the order of each batch.

    Args:
        batches: As for `plan`.
        epoch: Which epoch.
        num_workers: DataLoader workers of each rank.
    """
    request = execution_of(batches).request
    listed, resolved = replace(request, collate_fn=list), request.resolved
    plan = batches.plan(epoch, num_workers=num_workers)
    readers = {sidecars.source.name: SidecarReader(sidecars) for sidecars in resolved.catalog.sidecars}

    def emitted(topology: Topology) -> Iterator[tuple[Record, list[Sample]]]:
        feeds = [Feed(name, readers[name], (), paths=(), max_substitutes=0) for name in plan.names]
        emitter = listed.emitter(plan, topology, epoch, feeds, open_shards(), None)
        return emitter.run(topology.worker)

    streams = [
        [emitted(_topology(resolved, rank, worker, num_workers)) for worker in range(max(1, num_workers))]
        for rank in range(resolved.world_size)
    ]
    for step in range(plan.num_steps):
        worker = step % max(1, num_workers)
        for rank, workers in enumerate(streams):
            record, samples = next(workers[worker])
            assert record.step == step, "each worker has every so-many-th step"
            for sample in samples:
                place = sample["__source__"], sample["__shard__"], sample["__row__"], sample["__key__"]
                yield Emission(step, rank, worker, *place, sample["__copy__"], sample.get("__pad__", False))


class SidecarReader(SampleReader):
    """Reads samples without their fields, from sidecars alone."""

    def __init__(self, sidecars: Sidecars) -> None:
        self._sidecars = sidecars
        self._keys = lru_cache(_SHARDS_KEPT)(lambda shard: list(sidecars(shard).keys))

    def read(self, shard: int, row: int) -> Sample:
        """Return where a sample is, and its key."""
        shards = self._sidecars.shards
        return {
            "__key__": self._keys(shard)[row],
            "__url__": shards.urls[shard],
            "__shard__": shards.paths[shard],
            "__row__": row,
        }


def _topology(resolved: ResolvedRequest, rank: int, worker: int, num_workers: int) -> Topology:
    return Topology(rank=rank, world_size=resolved.world_size, worker=worker, num_workers=num_workers)


def _schedule(request: Request, plan: Plan, world_size: int) -> tuple[Int64, ...] | None:
    is_own = isinstance(request.recipe, Debiased) and request.recipe.same_source_across == "rank"
    schedules = [plan.sources(rank) for rank in range(world_size if is_own else 1)]
    return None if schedules[0] is None else tuple(schedule for schedule in schedules if schedule is not None)


def _consumers(
    memory: RowMemory, resolved: ResolvedRequest, plan: Plan, num_workers: int
) -> tuple[tuple[Consumer, ...], int]:
    """Return what the first consumers read, and the number of steps that this is counted over."""
    workers = max(1, num_workers)
    each = -(-plan.num_steps // workers)  # steps of a consumer
    within = min(_MOST_BATCHES // max(1, each), _MOST_PLACES // max(1, each * plan.spec.batch_size), _MOST_CONSUMERS)
    chosen = range(min(max(1, within), resolved.world_size * workers))
    most_steps = min(_MOST_BATCHES, max(1, _MOST_PLACES // plan.spec.batch_size)) * workers
    counted_steps = plan.num_steps if within else min(plan.num_steps, most_steps)
    topologies = [_topology(resolved, consumer // workers, consumer % workers, num_workers) for consumer in chosen]
    read: list[list[Int64]] = [[] for _ in chosen]  # (3, n) each: source, shard and row
    for step in range(counted_steps):  # steps outside, ranks inside: a window that workers share is dealt once
        for consumer in range(step % workers, len(chosen), workers):
            first, last = plan.share(step, topologies[consumer].rank, resolved.world_size)
            read[consumer].append(np.stack(plan.samples(step, first, last)[:3]))
    index_of = {source.name: index for index, source in enumerate(resolved.catalog.sources)}
    in_catalog = np.array([index_of[name] for name in plan.names], np.int64)
    consumers = (_consumer(memory, in_catalog, *pair) for pair in zip(topologies, read, strict=True))
    return tuple(consumers), counted_steps


def _consumer(memory: RowMemory, in_catalog: Int64, topology: Topology, read: Sequence[Int64]) -> Consumer:
    places = np.concatenate([np.zeros((3, 0), np.int64), *read], axis=1)
    places = places[:, np.lexsort(places[1::-1])]  # by source, then shard
    cuts = np.flatnonzero(np.diff(places[:2], axis=1).any(axis=0)) + 1
    parts = np.split(places, cuts, axis=1) if places.shape[1] else []
    num_bytes = sum(int(memory.sizes(int(in_catalog[part[0, 0]]), int(part[1, 0]))[part[2]].sum()) for part in parts)
    return Consumer(topology.rank, topology.worker, len(read), len(parts), places.shape[1], num_bytes)


class RowMemory:
    """Factors, sizes and labels of rows, the first ones up to a bound: others are read again from their sidecars."""

    def __init__(self, catalog: Catalog, fields: Collection[str] | None) -> None:
        """Remember the bytes of some fields of each row; None is all of them."""
        self._catalog = catalog
        self._fields = None if fields is None else {name.lower() for name in fields}
        self._kept: dict[tuple[str, int, int], NDArray[np.integer]] = {}
        self.num_bytes = 0

    def needs(self, source: int) -> bool:
        """Return False: a plan alone reads the sidecars of those shards only that its first consumers read."""
        return False

    def visit(self, rows: ShardRows) -> None:
        """Remember the rows of one shard."""
        self._keep(("sizes", rows.source, rows.shard), self._sizes_in(rows.sidecar))
        self._keep(("factors", rows.source, rows.shard), rows.factors)
        if rows.sidecar.presence is not None:
            self._keep(("label ends", rows.source, rows.shard), rows.sidecar.presence.indptr)
            self._keep(("labels", rows.source, rows.shard), rows.sidecar.presence.ids)

    def remembered(self, supplies: Sequence[Supply]) -> list[Supply]:
        """Return supplies that take the factors of rows from here."""
        return [
            supply
            if isinstance(supply.factors, Once)
            else replace(supply, factors=partial(self._factors, source, supply.factors))
            for source, supply in enumerate(supplies)
        ]

    def _factors(self, source: int, factors: Callable[[int], Int64], shard: int) -> Int64:
        return self._get(("factors", source, shard), lambda: factors(shard))

    def sizes(self, source: int, shard: int) -> Int64:
        """Return the bytes of each row of a shard that a training reads, (rows,)."""
        return self._get(("sizes", source, shard), lambda: self._sizes_in(self._catalog.sidecars[source](shard)))

    def labels(self, source: int, shard: int, rows: Int64) -> Int64:
        """Return the labels of some rows of a shard, in any order, (n,)."""
        ends = self._get(("label ends", source, shard), lambda: self._presence(source, shard).indptr)
        ids = self._get(("labels", source, shard), lambda: self._presence(source, shard).ids)
        return np.concatenate([ids[:0], *(ids[ends[row] : ends[row + 1]] for row in rows.tolist())])

    def _presence(self, source: int, shard: int) -> Presence:
        return labels_of(self._catalog.sidecars[source](shard))

    def _get(self, key: tuple[str, int, int], read: Callable[[], Int64]) -> Int64:
        kept = self._kept.get(key)
        if kept is not None:
            return kept.astype(np.int64)
        numbers = read()
        self._keep(key, numbers)
        return numbers

    def _keep(self, key: tuple[str, int, int], numbers: Int64) -> None:
        lowest, highest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        small = numbers.astype(
            np.result_type(np.min_scalar_type(lowest), np.min_scalar_type(highest))
        )  # mostly 4 bytes
        num_bytes = small.nbytes + _ENTRY_BYTES
        if self.num_bytes + num_bytes <= _ROW_BYTES:
            self._kept[key] = small
            self.num_bytes += num_bytes

    def _sizes_in(self, sidecar: Sidecar) -> Int64:
        if self._fields is None:
            return sidecar.sizes
        is_read = np.array([name in self._fields for name in sidecar.table.fields], np.int64)
        ends = np.concatenate([[0], np.cumsum(sidecar.table.size * is_read[sidecar.table.field])])
        sizes: Int64 = np.diff(ends[sidecar.table.indptr])
        return sizes
