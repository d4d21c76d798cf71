"""What will a training read? Its own plan, executed over readers that open no tar.

What is told is what is emitted before stages drop anything: order, plan and emitter are those of training, and only the last
link is another one, a reader that answers from sidecars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.loading.batches import Batches, execution_of
from equitar.loading.feed import Feed
from equitar.loading.record import Record
from equitar.loading.request import Request, ResolvedRequest
from equitar.planning.plan import Plan
from equitar.planning.recipes import Debiased
from equitar.ranks import Topology
from equitar.reading.reader import SampleReader, open_shards
from equitar.sidecars.store import Sidecars
from equitar.sources import Sample

_MOST_CONSUMERS = 64
_MOST_BATCHES = 1 << 15  # one is some 50 microseconds of planning
_MOST_PLACES = 1 << 20
_SHARDS_KEPT = 1024  # many consumers are asked in turn, each at its own shards


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preview:
    """The plan of an epoch.

    Attributes:
        epoch: Which epoch.
        steps: Its steps.
        batch_size: Samples per rank and step.
        world_size: Ranks.
        num_workers: Workers of each rank.
        lanes: Lanes of the plan.
        seed: The seed.
        digest: Names all that the plan depends on, apart from the epoch.
        sources: What it takes of each source, by name.
        schedule: Index of the source of every step, (steps,): once if all ranks agree, else one for each rank; None where
            batches are mixed.
        consumers: The first consumers, rank by rank, and what each reads.
        num_consumers: How many there are.
        counted_steps: Steps that `consumers` are counted over: all, unless one consumer has too many.
    """

    epoch: int
    steps: int
    batch_size: int
    world_size: int
    num_workers: int
    lanes: int
    seed: int
    digest: str
    sources: tuple[SourcePreview, ...]
    schedule: tuple[Int64, ...] | None
    consumers: tuple[Consumer, ...]
    num_consumers: int
    counted_steps: int


def plan(batches: Batches, *, epoch: int = 0, num_workers: int = 0) -> Preview:
    """Return the plan of an epoch, and what each consumer reads in it, without opening a tar.

    Args:
        batches: From `debiased`, `mixed` or `exact`; give them `rank` and `world_size` to plan for other ranks than there are.
        epoch: Which epoch.
        num_workers: DataLoader workers of each rank.

    Raises:
        PlanError: If the promises cannot be kept.
        SourceError, SidecarError: If shards or sidecars are not as they must be.
    """
    request = execution_of(batches).request
    planned = batches.plan(epoch, num_workers=num_workers)
    emitted = max(1, sum(one.quota for one in planned.account))
    is_mixed = planned.sources(0) is None
    consumers, counted_steps = _consumers(request, planned, num_workers)
    return Preview(
        epoch=epoch,
        steps=planned.num_steps,
        batch_size=planned.spec.batch_size,
        world_size=request.resolved.world_size,
        num_workers=num_workers,
        lanes=planned.spec.lanes,
        seed=planned.spec.seed,
        digest=planned.digest,
        sources=tuple(
            SourcePreview(
                name=one.name,
                samples=one.quota,
                batches=None if is_mixed else one.quota // planned.global_batch,
                share=one.quota / emitted,
                passes=one.passes,
                remainder=one.remainder,
                most=one.most,
            )
            for one in planned.account
        ),
        schedule=_schedule(request, planned, request.resolved.world_size),
        consumers=consumers,
        num_consumers=request.resolved.world_size * max(1, num_workers),
        counted_steps=counted_steps,
    )


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
    readers = {one.source.name: SidecarReader(one) for one in resolved.catalog.sidecars}

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
        for rank, of_workers in enumerate(streams):
            record, samples = next(of_workers[worker])
            assert record.step == step, "each worker has every so-many-th step"
            for one in samples:
                where = one["__source__"], one["__shard__"], one["__row__"], one["__key__"]
                yield Emission(step, rank, worker, *where, one["__copy__"], one.get("__pad__", False))


class SidecarReader(SampleReader):
    """Reads samples without their fields: what a sidecar knows of them."""

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
    found = [plan.sources(rank) for rank in range(world_size if is_own else 1)]
    return None if found[0] is None else tuple(one for one in found if one is not None)


def _consumers(request: Request, plan: Plan, num_workers: int) -> tuple[tuple[Consumer, ...], int]:
    """Return what the first consumers read, and the number of steps that this is counted over."""
    resolved, workers = request.resolved, max(1, num_workers)
    each = -(-plan.num_steps // workers)  # steps of a consumer
    within = min(_MOST_BATCHES // max(1, each), _MOST_PLACES // max(1, each * plan.spec.batch_size), _MOST_CONSUMERS)
    chosen = range(min(max(1, within), resolved.world_size * workers))
    most_steps = min(_MOST_BATCHES, max(1, _MOST_PLACES // plan.spec.batch_size)) * workers
    counted_steps = plan.num_steps if within else min(plan.num_steps, most_steps)
    topologies = [_topology(resolved, one // workers, one % workers, num_workers) for one in chosen]
    read: list[list[Int64]] = [[] for _ in chosen]  # (3, n) each: source, shard and row
    for step in range(counted_steps):  # steps outside, ranks inside: a window that workers share is dealt once
        for index in range(step % workers, len(chosen), workers):
            first, last = plan.share(step, topologies[index].rank, resolved.world_size)
            read[index].append(np.stack(plan.samples(step, first, last)[:3]))
    sizes = _Sizes(request, plan.names)
    return tuple(_account(sizes, one, places) for one, places in zip(topologies, read, strict=True)), counted_steps


class _Sizes:
    """Bytes of the rows of a shard, as far as a training reads their fields."""

    def __init__(self, request: Request, names: Sequence[str]) -> None:
        self._fields = None if request.fields is None else {field.lower() for field in request.fields}
        of_name = {one.source.name: one for one in request.resolved.catalog.sidecars}
        self._sidecars = [of_name[name] for name in names]
        self.of = lru_cache(maxsize=None)(self._read)

    def _read(self, source: int, shard: int) -> Int64:
        sidecar = self._sidecars[source](shard)
        if self._fields is None:
            return sidecar.sizes
        wanted = np.array([name in self._fields for name in sidecar.table.fields], np.int64)
        ends = np.concatenate([[0], np.cumsum(sidecar.table.size * wanted[sidecar.table.field])])
        sizes: Int64 = np.diff(ends[sidecar.table.indptr])
        return sizes


def _account(sizes: _Sizes, topology: Topology, read: Sequence[Int64]) -> Consumer:
    places = np.concatenate([np.zeros((3, 0), np.int64), *read], axis=1)
    places = places[:, np.lexsort(places[1::-1])]  # by source, then shard
    cuts = np.flatnonzero(np.diff(places[:2], axis=1).any(axis=0)) + 1
    parts = np.split(places, cuts, axis=1) if places.shape[1] else []
    num_bytes = sum(int(sizes.of(int(part[0, 0]), int(part[1, 0]))[part[2]].sum()) for part in parts)
    return Consumer(topology.rank, topology.worker, len(read), len(parts), places.shape[1], num_bytes)
