"""The emitter: executes a plan in one consumer, step by step; a feed for each source fills the slots.

Nothing is decided here. Steps are dealt to workers round robin, as a DataLoader collects them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from equitar.errors import StageError, blame
from equitar.loading.collate import columns
from equitar.loading.feed import Feed, Fetched, name_of
from equitar.loading.record import Record
from equitar.planning.plan import Plan, PlannedSamples
from equitar.ranks import Topology
from equitar.reading.block import SampleBlock, shards_in
from equitar.reading.prefetch import PrefetchBudget, Prefetcher, Wanted
from equitar.reading.reader import OPEN_SHARDS, OpenShards, Reader
from equitar.sidecars.selection import Unread

_SAMPLES_PER_BLOCK = 4096  # samples that are looked up together


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitter:
    """Executes the steps of one consumer."""

    plan: Plan
    epoch: int
    topology: Topology
    feeds: Sequence[Feed]  # one for each source of the plan
    collate_fn: Callable[[list[Any]], Any] | None  # None emits the single sample of each step
    one_source: bool  # whether a batch has one source, so that ``__source__`` is its name
    budget: PrefetchBudget | None  # None prefetches nothing
    cache: OpenShards  # the open shards of all feeds

    def run(self, first_step: int) -> Iterator[tuple[Record, Any]]:
        """Yield this consumer's batches from a step of its own on, each with its record."""
        planned: Iterator[_Planned] = map(self._planned, steps_of(self.plan, self.topology, first_step))
        if self.budget is not None:
            planned = Prefetcher(self.budget, self._wanted).over(planned)
        readers = [reader for feed in self.feeds if feed.is_direct and (reader := feed.reader.for_blocks) is not None]
        is_bare = self.plan.is_whole and self.collate_fn is columns and len(readers) == len(self.feeds)
        if is_bare and self.budget is None:
            yield from self._in_blocks(planned, readers)
            return
        for step in planned:
            self.cache.evict()
            yield self._batch(step)

    def _in_blocks(self, planned: Iterator[_Planned], readers: Sequence[Reader]) -> Iterator[tuple[Record, Any]]:
        """Yield batches without stages; the first blocks are short, so that the first batch does not wait."""
        size = 1
        while steps := list(islice(planned, size)):
            self.cache.evict()
            places = PlannedSamples(*map(np.concatenate, zip(*(step.places for step in steps), strict=True)))
            if shards_in(places) > OPEN_SHARDS:  # of few samples each: a block would open them all
                yield from map(self._batch, steps)
                continue
            block = SampleBlock(readers, places)
            first = 0
            for step in steps:
                last = first + len(step.places.row)
                batch = block.columns(first, last)
                yield self._batch(step) if batch is None else self._from_block(step, batch)
                first = last
            size = min(2 * size, max(1, _SAMPLES_PER_BLOCK // self.plan.spec.batch_size))

    def _from_block(self, planned: _Planned, batch: dict[str, Any]) -> tuple[Record, Any]:
        source, _, _, copies = planned.places
        record = self._record(planned, batch["__key__"], _Unread([], []))
        batch["__source__"] = record.source or [self.plan.names[index] for index in source.tolist()]
        batch["__copy__"], batch["__step__"] = copies.tolist(), planned.step
        return record, batch

    def _planned(self, step: int) -> _Planned:
        first, last = self.plan.share(step, self.topology.rank, self.topology.world_size)
        return _Planned(step, first, self.plan.samples(step, first, last))

    def _wanted(self, planned: _Planned) -> Iterator[Wanted]:
        """Yield the ranges of remote shards that a step needs."""
        places = planned.places
        for source, shard, row in zip(*(column.tolist() for column in places[:3]), strict=True):
            yield from self.feeds[source].wanted(shard, row)

    def _batch(self, planned: _Planned) -> tuple[Record, Any]:
        step, first, places = planned
        samples: list[Any] = []
        keys: list[str] = []
        paths: list[str] = []
        unread = _Unread([], [])
        rows = zip(*(column.tolist() for column in places), strict=True)
        for slot, (source, shard, row, copy) in enumerate(rows, first):
            feed = self.feeds[source]
            if not feed.is_direct:
                fetched = feed.fetch(chain([(shard, row)], _LazySubstitutes(self.plan, step, slot)), max(0, copy))
                sample = self._kept(fetched, source, step, unread)
                if sample is None:
                    continue
                key, path = fetched.taken[-1]
            else:
                sample = feed.read(shard, row, copy)
                key, path = sample["__key__"], feed.path(shard)
            keys.append(key)
            paths.append(path)
            samples.append(sample if self.plan.is_whole else _with_pad(sample, copy))
        record = self._record(planned, keys, unread)
        return record, self._collated(samples, record, paths)

    def _record(self, planned: _Planned, keys: Sequence[str], unread: _Unread) -> Record:
        step, _, places = planned
        source = places.source if self.plan.is_whole else places.source[places.copy >= 0]  # padding does not count
        counts = Counter(source.tolist())
        # With `same_source_across="rank"`, more ranks may have shared this global batch when the epoch began.
        only = self.plan.names[int(places.source[0])] if self.one_source and len(counts) == 1 else None
        named = tuple((self.plan.names[source], count) for source, count in counts.items())
        return Record(self.epoch, step, only, tuple(keys), named, tuple(unread.dropped), tuple(unread.lost))

    def _kept(self, fetched: Fetched, source: int, step: int, unread: _Unread) -> Any:
        """Return the sample, None if there is none, and note those that were lost or that stages dropped."""
        name, sample = self.plan.names[source], fetched.sample
        dropped = fetched.taken if sample is None else fetched.taken[:-1]
        unread.dropped.extend(Unread(name, path, key) for key, path in dropped)
        unread.lost.extend(Unread(name, path, key) for key, path in fetched.lost)
        if sample is None and self.plan.is_whole:
            key, path = (*fetched.lost, *dropped)[-1]
            failures = f"stages dropped {len(dropped)} samples" + " and one could not be read" * bool(fetched.lost)
            raise StageError(
                f"{failures} of source {name!r} for one place at step {step}, and the source has no other sample for it; the "
                f"last had key {key!r} of {path}"
            )
        if isinstance(sample, dict):
            sample.setdefault("__source__", name)  # webdataset's `map` keeps only the key
            sample.setdefault("__copy__", fetched.copy)
        return sample

    def _collated(self, samples: list[Any], record: Record, paths: Sequence[str]) -> Any:
        if self.collate_fn is None:
            return samples[0]
        try:
            batch = self.collate_fn(samples)
        except Exception as error:
            blame(error, f"collate_fn {name_of(self.collate_fn)!r} at {record.where(paths)}")
            raise
        if isinstance(batch, dict):
            batch["__step__"] = record.step
            if record.source is not None:
                batch["__source__"] = record.source
        return batch


class _Planned(NamedTuple):
    """The planned samples of a consumer at a step."""

    step: int
    first: int
    places: PlannedSamples


class _Unread(NamedTuple):
    """Samples that are noted while a batch is made."""

    dropped: list[Unread]
    lost: list[Unread]


def steps_of(plan: Plan, topology: Topology, first_step: int) -> range:
    """Return the steps of one consumer, from the first of them on: a DataLoader collects them round robin."""
    return range(first_step, plan.num_steps, max(1, topology.num_workers))


def _with_pad(sample: Any, copy: int) -> Any:
    """Return a sample of validation with its mark ``__pad__``: padding has no copy."""
    return {**sample, "__copy__": max(0, copy), "__pad__": copy < 0} if isinstance(sample, dict) else sample


class _LazySubstitutes:
    """The substitutes of a place, computed only when one is needed."""

    def __init__(self, plan: Plan, step: int, slot: int) -> None:
        self._where = plan, step, slot

    def __iter__(self) -> Iterator[tuple[int, int]]:
        plan, step, slot = self._where
        return plan.substitutes(step, slot)
