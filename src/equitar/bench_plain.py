"""What would plain webdataset do with the same samples? Its own reader over the same shards, the user's stages, and its batching.

Shards are read one after another, as webdataset does; nothing is shuffled, which flatters it a little. Each worker has every
so-many-th shard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import webdataset as wds
from torch.utils.data import IterableDataset

from equitar.catalog import row_factors
from equitar.detect import detect_workers
from equitar.mix64 import Int64
from equitar.order import Order, Prepared
from equitar.sidecar import Sidecar
from equitar.sidecars import Sidecars
from equitar.sources import Sample, Stage
from equitar.storage import local_path
from equitar.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSource:
    """What webdataset reads of one source.

    Attributes:
        name: The source.
        urls: Shards, in the order in which they are read.
        num_samples: Samples to read of them, in all workers.
        reading: Reads shards; selected samples and fields only.
        stages: The user's stages.
    """

    name: str
    urls: Sequence[str]
    num_samples: int
    reading: Stage
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
    order: Order, prepared: Prepared, shards: Sequence[Sequence[int]], num_samples: Sequence[int], *, num_workers: int
) -> list[PlainSource]:
    """Return what webdataset reads for the samples that a plan reads first.

    Args:
        order: What a builder was asked for.
        prepared: What follows from it.
        shards: Of each source, by name, the shards that the plan reads of, in the order in which it first does.
        num_samples: Samples that the plan reads of each.
        num_workers: Workers that share the shards; with more of them than shards, more shards are taken.
    """
    factors = row_factors(prepared.catalog, None)
    parts = zip(prepared.catalog.sidecars, prepared.catalog.summaries, shards, num_samples, factors, strict=True)
    return [_plain(order, *part, num_workers) for part in parts if part[3]]


def _plain(
    order: Order,
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
            fields=None if order.fields is None else frozenset(name.lower() for name in order.fields),
            tolerant=order.handler is not None,
            kept=None if source.keep is None else _Kept(sidecars, rows, shard_of),
        ),
        stages=(*source.stages, *order.stages),
    )


@dataclass(frozen=True)
class _Reading:
    """The reader of webdataset, with its own way to choose fields, and its own to go on after damage."""

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
    """A stage that lets those samples through that the selection of a source keeps."""

    def __init__(self, sidecars: Sidecars, rows: Callable[[int, Sidecar], Int64], shard_of: dict[str, int]) -> None:
        """Prepare; keys are looked at when a shard is first met."""
        self._sidecars, self._rows, self._shard_of = sidecars, rows, shard_of
        self._latest: tuple[str, frozenset[str]] = ("", frozenset())

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples that are kept."""
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

    def __init__(self, sources: Sequence[PlainSource], order: Order, composed: Sequence[Stage]) -> None:
        """Prepare; `composed` are the stages over batches."""
        self._sources, self._composed = sources, composed
        self._batch_size, self._collate = order.batch_size, order.collate

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
        for listed in wds.batched(self._batch_size, collation_fn=list)(samples):
            counts.append(len(listed))
            yield self._collate(listed)
