"""Contenders of a benchmark: readers, batches and loaders of webdataset and of equitar, over the same shards.

Plain webdataset gets the same samples with its own reader, the user's stages, and its own batching. It reads shards one after
another and shuffles nothing, which favors it a little. Each worker has every n-th shard.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import webdataset as wds
from torch.utils.data import DataLoader, IterableDataset

from equitar.arrays import Int64
from equitar.benchmarking.result import Group
from equitar.loading.batches import Batches, execution_of, own_copy
from equitar.loading.loader import Loader
from equitar.loading.request import Request
from equitar.planning.plan import Plan, PlannedSamples
from equitar.ranks import detect_workers
from equitar.reading.damage import SampleLostError
from equitar.reading.reader import open_shards
from equitar.sidecars.catalog import row_factors
from equitar.sidecars.sidecar import Sidecar
from equitar.sidecars.store import Sidecars
from equitar.sidecars.summary import Summary
from equitar.sources import Sample, Stage
from equitar.urls import local_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSource:
    """What webdataset reads of one source."""

    name: str
    urls: Sequence[str]  # shards, in the order in which they are read
    num_samples: int  # to read, in all workers
    reading: Stage  # reads selected samples and fields of shards
    stages: Sequence[Stage]

    def samples(self, worker: int, num_workers: int, *, staged: bool) -> Iterator[Any]:
        """Yield this worker's samples, taken through the stages or not."""
        each = max(1, num_workers)
        urls = list(self.urls[worker::each])
        if not urls:
            return iter(())
        stages = self.stages if staged else ()
        pipeline = wds.DataPipeline(wds.SimpleShardList(urls), self.reading, *stages)
        return islice(pipeline, -(-self.num_samples // each))


def plain_sources(
    request: Request,
    shards: Sequence[Sequence[int]],
    num_samples: Sequence[int],
    *,
    num_workers: int,
) -> list[PlainSource]:
    """Return what webdataset reads for the samples that a plan reads first.

    Args:
        request: What a builder was asked for.
        shards: Of each source, by name, the shards that the plan reads of, in the order in which it first does.
        num_samples: Samples that the plan reads of each.
        num_workers: Workers that share the shards; with more of them than shards, more shards are taken.
    """
    catalog = request.resolved.catalog
    factors = row_factors(catalog, None)
    parts = zip(catalog.sidecars, catalog.summaries, shards, num_samples, factors, strict=True)
    return [_plain(request, *part, num_workers) for part in parts if part[3]]


def _plain(
    request: Request,
    sidecars: Sidecars,
    summary: Summary,
    first: Sequence[int],
    count: int,
    rows: Callable[[int, Sidecar], Int64],
    num_workers: int,
) -> PlainSource:
    source, urls = sidecars.source, sidecars.shards.urls
    chosen = list(dict.fromkeys([*first, *range(len(summary.paths))]))
    if source.keep is None:
        enough = int(np.searchsorted(np.cumsum(summary.num_samples[chosen]), count)) + 1
        chosen = chosen[: enough + num_workers]
    shard_of = {local_path(urls[shard]) or urls[shard]: shard for shard in chosen}
    return PlainSource(
        name=source.name,
        urls=list(shard_of),
        num_samples=count,
        reading=_Reading(
            fields=None if request.fields is None else frozenset(name.lower() for name in request.fields),
            tolerant=request.handler is not None,
            kept=None if source.keep is None else _Kept(sidecars, rows, shard_of),
        ),
        stages=(*source.stages, *request.stages),
    )


@dataclass(frozen=True)
class _Reading:
    """The reader of webdataset, with its own way to choose fields, and to continue after damage."""

    fields: frozenset[str] | None
    tolerant: bool
    kept: _Kept | None

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[Sample]:
        handler = wds.ignore_and_continue if self.tolerant else wds.reraise_exception
        select = None if self.fields is None else partial(_is_of, self.fields)
        samples: Iterator[Sample] = wds.tarfile_to_samples(handler=handler, select_files=select)(shards)
        return samples if self.kept is None else self.kept(samples)


def _is_of(fields: frozenset[str], name: str) -> bool:
    return name.rpartition("/")[2].partition(".")[2].lower() in fields


class _Kept:
    """A stage that drops the samples that the selection of a source leaves out."""

    def __init__(self, sidecars: Sidecars, rows: Callable[[int, Sidecar], Int64], shard_of: dict[str, int]) -> None:
        """Prepare; keys are looked at when a shard is first met."""
        self._sidecars, self._rows, self._shard_of = sidecars, rows, shard_of
        self._latest: tuple[str, frozenset[str]] = ("", frozenset())

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the selected samples."""
        for sample in samples:
            url = sample["__url__"]
            if url != self._latest[0]:
                shard = self._shard_of[url]
                sidecar = self._sidecars(shard)
                keys = np.flatnonzero(self._rows(shard, sidecar)).tolist()
                self._latest = url, frozenset(sidecar.keys[row] for row in keys)
            if sample["__key__"] in self._latest[1]:
                yield sample


class PlainBatches(IterableDataset[Any]):
    """Batches of webdataset, each with the name of its source and the number of its samples."""

    def __init__(self, sources: Sequence[PlainSource], request: Request, composed: Sequence[Stage]) -> None:
        """Prepare; `composed` are the stages over batches."""
        self._sources, self._composed = sources, composed
        self._batch_size, self._collate = request.batch_size, request.collate_fn

    def __iter__(self) -> Iterator[tuple[str, int, Any]]:
        """Yield the batches of this worker, source by source."""
        worker, num_workers = detect_workers()
        for source in self._sources:
            counts: deque[int] = deque()
            stream: Iterable[Any] = self._batches(source.samples(worker, num_workers, staged=True), counts)
            for stage in self._composed:
                stream = getattr(stage, "run", stage)(stream)
            for batch in stream:
                yield source.name, counts.popleft(), batch

    def _batches(self, samples: Iterator[Any], counts: deque[int]) -> Iterator[Any]:
        if self._collate is None:
            for sample in samples:
                counts.append(1)
                yield sample
            return
        for gathered in wds.batched(self._batch_size, collation_fn=list)(samples):
            counts.append(len(gathered))
            yield self._collate(gathered)


Run: TypeAlias = Callable[[], Mapping[str, int]]  # returns the samples of each source


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something that is run against others."""

    group: Group  # what it is compared within
    name: str
    run: Run  # runs it once
    is_plain: bool = False  # whether it is webdataset


@dataclass(slots=True)
class Waiting:
    """What the main process did while it received batches from workers."""

    seconds: float = 0.0  # wall time
    busy: float = 0.0  # of these, seconds in which its thread computed: received, unpacked, copied
    counts: Counter[str] = field(default_factory=Counter)  # samples received, by source
    waited: dict[str, float] = field(default_factory=dict)  # seconds in which it did not compute, by source


def first_steps(batches: Batches, steps: int) -> Batches:
    """Return the first steps of batches: a Loader's workers end there, and do not disturb what runs next."""
    result = own_copy(batches)
    execution_of(result).end = steps
    return result


class Workload:
    """The first steps of an epoch, as all contenders run them."""

    def __init__(self, batches: Batches, plan: Plan, steps: int, *, epoch: int, num_workers: int) -> None:
        """Find out what the steps read."""
        self._epoch, self._steps, self._num_workers = epoch, steps, num_workers
        self._first, self.waiting = first_steps(batches, steps), Waiting()
        self._execution = execution_of(batches)
        request, resolved = self._execution.request, self._execution.request.resolved
        shares = (plan.share(step, resolved.rank, resolved.world_size) for step in range(steps))
        places = [plan.samples(step, *share) for step, share in enumerate(shares)]
        source, shard, row, copy = (np.concatenate(columns) for columns in zip(*places, strict=True))
        names = [source.name for source in resolved.catalog.sources]
        index_of = np.array([names.index(name) for name in plan.names])
        self._places = PlannedSamples(index_of[source], shard, row, copy)
        sources = range(len(resolved.catalog.sources))
        self.num_samples = [int((self._places.source == source).sum()) for source in sources]
        of_source = [shard[self._places.source == source].tolist() for source in sources]
        self.plain: list[PlainSource] = plain_sources(request, of_source, self.num_samples, num_workers=num_workers)
        urls = {url for plain in self.plain for url in plain.urls}
        for sidecars, shards in zip(resolved.catalog.sidecars, of_source, strict=True):
            urls |= {sidecars.shards.urls[number] for number in set(shards)}
        self.files = sorted({path for url in urls if (path := local_path(url)) is not None})

    def contenders(self) -> list[Contender]:
        """Return all contenders; those with workers keep these from run to run."""
        plain = PlainBatches(self.plain, self._execution.request, self._execution.stages)
        in_process = [
            Contender(group="read", name="webdataset", run=self._read_plain, is_plain=True),
            Contender(group="read", name="equitar", run=self._read),
            Contender(group="batches", name="webdataset", run=lambda: _counted(plain), is_plain=True),
            Contender(group="batches", name="equitar", run=self._in_process),
        ]
        if not self._num_workers:
            return in_process
        loads = DataLoader(
            plain, batch_size=None, collate_fn=_unchanged, num_workers=self._num_workers, persistent_workers=True
        )
        piped, slotted = (
            Loader(self._first, num_workers=self._num_workers, persistent_workers=True, slots=slots)
            for slots in (0, None)
        )
        return [
            *in_process,
            Contender(group="workers", name="webdataset", run=lambda: _counted(loads), is_plain=True),
            Contender(group="workers", name="equitar, pipe", run=lambda: self._loaded(piped, Waiting())),
            Contender(group="workers", name="equitar, slots", run=lambda: self._loaded(slotted, self.waiting)),
        ]

    def forget_pages(self) -> None:
        """Empty the page cache of the local shards, where the system can."""
        if not hasattr(os, "posix_fadvise"):
            return
        for path in self.files:
            with Path(path).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _read_plain(self) -> dict[str, int]:
        return {plain.name: sum(1 for _ in plain.samples(0, 0, staged=False)) for plain in self.plain}

    def _read(self) -> Mapping[str, int]:
        request = self._execution.request
        cache = open_shards()
        opened = request.readers(cache)
        readers = [request.tolerant(reader) for reader in opened]
        try:
            for number, (source, shard, row) in enumerate(zip(*map(np.ndarray.tolist, self._places[:3]), strict=True)):
                if number % request.batch_size == 0:
                    cache.evict()
                with suppress(SampleLostError):
                    readers[source].read(shard, row)
        finally:
            for reader in opened:
                reader.close()
        names = [source.name for source in request.resolved.catalog.sources]
        return dict(zip(names, self.num_samples, strict=True))

    def _in_process(self) -> Mapping[str, int]:
        self._first.set_epoch(self._epoch)
        counts: Counter[str] = Counter()
        for record, _ in execution_of(self._first).recorded():
            counts.update(dict(record.counts))
        return counts

    def _loaded(self, loader: Loader, waiting: Waiting) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        loader.set_epoch(self._epoch)
        wall, cpu = time.perf_counter(), time.thread_time()
        batches = iter(loader)
        for _ in range(self._steps):
            next(batches)
            assert loader.last is not None, "there was a batch"
            of_batch = dict(loader.last.counts)
            counts.update(of_batch)
            now, cpu_now = time.perf_counter(), time.thread_time()
            waiting.seconds += now - wall
            waiting.busy += cpu_now - cpu
            total = max(1, sum(of_batch.values()))
            for name, count in of_batch.items():
                waiting.waited[name] = (
                    waiting.waited.get(name, 0.0) + max(0.0, now - wall - (cpu_now - cpu)) * count / total
                )
            wall, cpu = now, cpu_now
        waiting.counts.update(counts)
        return counts


def _counted(batches: Any) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for name, count, _ in batches:
        counts[name] += count
    return counts


def _unchanged(batch: Any) -> Any:
    return batch
