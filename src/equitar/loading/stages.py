"""Stages for pipelines composed by hand: small picklable callables over an iterator.

    webdataset.DataPipeline(equitar.stages.slices(batches), equitar.stages.read(), wds.decode("pil"), equitar.stages.batched_by_source(64))

`slices` and `read` follow a plan. `repeats` and `batched_by_source` also work on a stream that another reader made, such as
`wds.tarfile_to_samples()`: they look up the source, shard and row of a sample by ``__url__`` and ``__key__``. A hand-made pipeline
promises no more than its stages do: that all ranks draw the same source at a step is what `debiased` is for.

An empty dict, which webdataset puts at the end of a shard, is passed on by stages that give one sample for each, and dropped by
those that gather samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from equitar.errors import StageError
from equitar.loading.batches import Batches, execution_of
from equitar.loading.collate import columns
from equitar.loading.emitter import steps_of
from equitar.loading.position import SharedPosition
from equitar.planning.line import Line
from equitar.progress import Position
from equitar.reading.reader import Reader, open_shards
from equitar.rng import Purpose, fold, permutation
from equitar.sidecars.catalog import Catalog, Repeat, catalog_of, planned_supplies
from equitar.sources import Sample, Source
from equitar.urls import place_of, shown

Batch = TypeVar("Batch")


class Lookup:
    """Finds source, shard and row of samples by ``__url__`` and ``__key__``."""

    def __init__(self, sources: Sequence[Source], stage: str) -> None:
        self._sources, self._stage = sources, stage
        self._catalog: Catalog | None = None
        self._shards: dict[str, tuple[int, int]] = {}
        self._rows: tuple[str, dict[str, int]] = (
            "",
            {},
        )  # of the latest shard: a stream goes through one after another

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": ("", {})}

    @property
    def catalog(self) -> Catalog:
        """The sources, read when first needed."""
        if self._catalog is None:
            self._catalog = catalog_of(self._sources)
            for source, sidecars in enumerate(self._catalog.sidecars):
                for shard, url in enumerate(sidecars.shards.urls):
                    self._shards[place_of(url)] = (source, shard)
        return self._catalog

    def shard(self, sample: Any) -> tuple[int, int]:
        """Return source and shard of a sample."""
        _ = self.catalog
        url = self.needed(sample, "__url__")
        if url in self._shards:
            return self._shards[url]
        place = place_of(url)
        if place not in self._shards:
            names = ", ".join(source.name for source in self._sources)
            raise StageError(
                f"`{self._stage}` knows the shards of {names}, but a sample comes from {shown(url)}; give its source too"
            )
        self._shards[url] = self._shards[place]
        return self._shards[url]

    def row(self, sample: Any, source: int, shard: int) -> int:
        """Return the row of a sample."""
        url, key = self.needed(sample, "__url__"), self.needed(sample, "__key__")
        if self._rows[0] != url:
            keys = self.catalog.sidecars[source](shard).keys
            self._rows = url, {key: row for row, key in enumerate(keys)}
        if key not in self._rows[1]:
            raise StageError(
                f"`{self._stage}` finds no key {key!r} in the sidecar of {shown(url)}; run `equitar index` again"
            )
        return self._rows[1][key]

    def needed(self, sample: Any, name: str) -> str:
        """Return a field that a sample must have."""
        if not isinstance(sample, dict) or name not in sample:
            raise StageError(
                f"`{self._stage}` needs {name!r} in every sample; webdataset's `map` and `to_tuple` drop it, so put "
                f"`{self._stage}` before them"
            )
        value: str = sample[name]
        return value


@dataclass(frozen=True, slots=True)
class Slice:
    """A planned sample that has not been read yet."""

    reader: Reader
    source: str
    shard: int  # its index in the source
    row: int
    copy: int
    step: int


@dataclass(frozen=True)
class _Slices:
    batches: Batches

    def __call__(self) -> Iterator[Slice]:
        execution = execution_of(self.batches)
        topology, position = execution.consumer()
        plan = execution.plan_at(position, topology.num_workers)
        catalog = execution.request.resolved.catalog
        names = (source.name for source in catalog.sources)
        readers = dict(zip(names, execution.request.readers(open_shards()), strict=True))
        for step in steps_of(plan, topology, position.step + topology.worker):
            places = plan.samples(step, *plan.share(step, topology.rank, topology.world_size))
            for source, shard, row, copy in zip(*(column.tolist() for column in places), strict=True):
                name = plan.names[source]
                yield Slice(readers[name], name, shard, row, copy, step)


def slices(batches: Batches) -> Callable[[], Iterator[Slice]]:
    """Return the first stage of a pipeline: the planned samples of this rank and worker, not yet read.

    Args:
        batches: From `debiased`, `mixed` or `exact`; `set_epoch` on it counts here, too.
    """
    return _Slices(batches)


@dataclass(frozen=True)
class _Read:
    def __call__(self, planned: Iterable[Any]) -> Iterator[Sample]:
        for slot in planned:
            if slot == {}:
                yield {}
                continue
            if not isinstance(slot, Slice):
                raise StageError(f"`read` takes what `slices` gives; got {slot!r}: put it right after `slices`")
            slot.reader.evict()
            sample = slot.reader.read(slot.shard, slot.row)
            yield {**sample, "__source__": slot.source, "__copy__": slot.copy, "__step__": slot.step}


def read() -> Callable[[Iterable[Slice]], Iterator[Sample]]:
    """Return the stage that reads slices: one sample for each."""
    return _Read()


class Repeats:
    """A stage that emits the copies of each sample, by its repeat factor, one after another."""

    def __init__(self, sources: Sequence[Source], repeat: Repeat, seed: int) -> None:
        """See `repeats`."""
        self._places = Lookup(sources, "repeats")
        self._repeat, self._seed = repeat, seed
        self._start = SharedPosition()

    def set_epoch(self, epoch: int) -> None:
        """Round the factors for an epoch: in each, a sample gets the floor or the ceiling of its factor."""
        self._start.position = Position(epoch)

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield copies; each is a dict of its own, as later stages edit in place."""
        lines: list[Line] | None = None
        latest, copies = (-1, -1), [0]
        for sample in samples:
            if sample == {}:
                yield sample
                continue
            lines = self._lines() if lines is None else lines
            source, shard = self._places.shard(sample)
            if (source, shard) != latest:
                latest, copies = (source, shard), lines[source].copies(shard).tolist()
            for number in range(copies[self._places.row(sample, source, shard)]):
                yield {**sample, "__copy__": number}

    def _lines(self) -> list[Line]:
        epoch = self._start.position.epoch
        supplies = planned_supplies(self._places.catalog, self._repeat)
        return [
            Line(supply, key=fold(fold(self._seed), supply.key, epoch), at_least=supply.copies) for supply in supplies
        ]


def repeats(sources: Sequence[Source], *, repeat: Repeat, seed: int = 0) -> Repeats:
    """Return the stage that emits the copies of each sample, by its repeat factor.

    In epoch e it gives the copies that pass e of `mixed` with the same seed gives. Copies follow each other: spread them with
    `shuffled`. For a part of the stream, each worker gives its part of the copies.

    Args:
        sources: Where the samples come from.
        repeat: As for `mixed`.
        seed: Seed of the rounding, >= 0.
    """
    return Repeats(sources, repeat, seed)


@dataclass(frozen=True)
class _Shuffle:
    size: int
    seed: int
    start: SharedPosition = field(default_factory=SharedPosition)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle the next stream in the order of an epoch."""
        self.start.position = Position(epoch)

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        key = fold(self.seed, Purpose.SHUFFLE_STAGE, self.start.position.epoch)
        window: list[Any] = []
        number, size = (
            0,
            max(1, self.size // 16),
        )  # the first windows are short, so that the first sample does not wait for a full one
        for sample in samples:
            if sample == {}:
                continue
            window.append(sample)
            if len(window) == size:
                yield from (window[index] for index in permutation(fold(key, number), len(window)).tolist())
                window, number, size = [], number + 1, min(2 * size, self.size)
        yield from (window[index] for index in permutation(fold(key, number), len(window)).tolist())


def shuffled(size: int, *, seed: int = 0) -> _Shuffle:
    """Return the stage that shuffles samples within windows of `size`, the same in every process.

    Args:
        size: Samples of a window, >= 1; the first windows are shorter.
        seed: Seed, >= 0.

    >>> sorted(shuffled(4)(range(6))), list(shuffled(4)(range(6))) == list(shuffled(4)(range(6)))
    ([0, 1, 2, 3, 4, 5], True)
    """
    if size < 1:
        raise ValueError(f"`size` must be >= 1; got {size}")
    return _Shuffle(size, seed)


class BatchedBySource:
    """A stage that gathers samples of one source into batches."""

    def __init__(
        self,
        batch_size: int,
        sources: Sequence[Source],
        collate_fn: Callable[[list[Any]], Any],
        partial: bool,  # noqa: FBT001  (positional in this class alone; `batched_by_source` is what users call)
    ) -> None:
        """See `batched_by_source`."""
        self._size, self._collate, self._partial = batch_size, collate_fn, partial
        self._places = Lookup(sources, "batched_by_source")

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Any]:
        """Yield a batch whenever a source has enough samples for one."""
        buffers: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample == {}:
                continue
            source = self._source(sample)
            buffer = buffers.setdefault(source, [])
            buffer.append(sample)
            if len(buffer) == self._size:
                yield self._batch(source, buffers.pop(source))
        if self._partial:
            for source, buffer in buffers.items():
                yield self._batch(source, buffer)

    def _source(self, sample: Any) -> str:
        if isinstance(sample, dict) and "__source__" in sample:
            name: str = sample["__source__"]
            return name
        return self._places.catalog.sources[self._places.shard(sample)[0]].name

    def _batch(self, source: str, samples: list[Sample]) -> Any:
        batch = self._collate(samples)
        if isinstance(batch, dict):
            batch["__source__"] = source
        return batch


def batched_by_source(
    batch_size: int,
    *,
    sources: Sequence[Source] = (),
    collate_fn: Callable[[list[Any]], Any] = columns,
    partial: bool = True,
) -> BatchedBySource:
    """Return the stage that gathers samples of one source into batches, one buffer for each source.

    Args:
        batch_size: Samples of a batch, >= 1.
        sources: Where the samples come from; not needed if they have ``__source__``.
        collate_fn: Makes a batch of a list of samples.
        partial: Whether buffers that are not full at the end are emitted as smaller batches.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be >= 1; got {batch_size}")
    return BatchedBySource(batch_size, sources, collate_fn, partial)
