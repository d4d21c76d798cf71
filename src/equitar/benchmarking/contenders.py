"""What is run against each other? Readers, batches and loaders of webdataset and of equitar, over the same shards."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import DataLoader

from equitar.bench_plain import PlainBatches, PlainSource, plain_sources
from equitar.bench_result import Group
from equitar.damage import SampleLostError
from equitar.emit import Record
from equitar.laid import Places
from equitar.loader import Loader
from equitar.pipeline import Batches
from equitar.plan import Plan
from equitar.reader import open_shards
from equitar.storage import local_path

Run: TypeAlias = Callable[[], Mapping[str, int]]  # returns the samples of each source


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One of those that run.

    Attributes:
        group: What it is compared within.
        name: What it is.
        run: Runs it once.
        is_plain: Whether it is webdataset.
    """

    group: Group
    name: str
    run: Run
    is_plain: bool = False


@dataclass(slots=True)
class Waiting:
    """What the main process did while batches came from workers.

    Attributes:
        seconds: Wall time.
        busy: Of these, seconds in which its thread computed: received, unpacked, copied.
        counts: Samples that came, by source.
        waited: Seconds in which it did not, by source.
    """

    seconds: float = 0.0
    busy: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    waited: dict[str, float] = field(default_factory=dict)


class FirstSteps(Batches):
    """The first steps of batches: a Loader's workers end there, and do not go on behind the back of what runs next."""

    def __init__(self, batches: Batches, steps: int) -> None:
        """Take an epoch's first steps."""
        super().__init__(batches.order)
        self.pipeline, self.walk = list(batches.pipeline), batches.walk
        self.steps = steps

    def recorded(self) -> Iterator[tuple[Record, Any]]:
        """Return an iterator over the batches of this consumer, each with its record."""
        topology, position = self.consumer()
        own = range(position.step + topology.worker, self.steps, max(1, topology.num_workers))
        return islice(super().recorded(), len(own))


class Workload:
    """The first steps of an epoch, as all who run are given them.

    Attributes:
        num_samples: Samples of each source of the catalog.
        plain: What webdataset reads for them.
        files: The local ones among its and our shards.
        waiting: What the main process did while batches came from our workers through slots, in all runs.
    """

    def __init__(self, batches: Batches, plan: Plan, steps: int, *, epoch: int, num_workers: int) -> None:
        """Look up what the steps read."""
        self._batches, self._epoch, self._steps, self._num_workers = batches, epoch, steps, num_workers
        self._first, self.waiting = FirstSteps(batches, steps), Waiting()
        order, prepared = batches.order, batches.prepared()
        shares = (plan.share(step, prepared.rank, prepared.world_size) for step in range(steps))
        places = [plan.places(step, *share) for step, share in enumerate(shares)]
        source, shard, row, copy = (np.concatenate(columns) for columns in zip(*places, strict=True))
        names = [one.name for one in prepared.catalog.sources]
        index_of = np.array([names.index(name) for name in plan.names])
        self._places = Places(index_of[source], shard, row, copy)
        sources = range(len(prepared.catalog.sources))
        self.num_samples = [int((self._places.source == one).sum()) for one in sources]
        of_source = [shard[self._places.source == one].tolist() for one in sources]
        self.plain: list[PlainSource] = plain_sources(
            order, prepared, of_source, self.num_samples, num_workers=num_workers
        )
        urls = {url for one in self.plain for url in one.urls}
        for sidecars, shards in zip(prepared.catalog.sidecars, of_source, strict=True):
            urls |= {sidecars.shards.urls[one] for one in set(shards)}
        self.files = sorted({path for url in urls if (path := local_path(url)) is not None})

    def contenders(self) -> list[Contender]:
        """Return all who run; those with workers keep these from run to run."""
        plain = PlainBatches(self.plain, self._batches.order, self._batches.pipeline)
        found = [
            Contender(group="read", name="webdataset", run=self._read_plain, is_plain=True),
            Contender(group="read", name="equitar", run=self._read),
            Contender(group="batches", name="webdataset", run=lambda: _counted(plain), is_plain=True),
            Contender(group="batches", name="equitar", run=self._in_process),
        ]
        if not self._num_workers:
            return found
        loads = DataLoader(
            plain, batch_size=None, collate_fn=_as_it_is, num_workers=self._num_workers, persistent_workers=True
        )
        piped, slotted = (
            Loader(self._first, num_workers=self._num_workers, persistent_workers=True, slots=slots)
            for slots in (0, None)
        )
        return [
            *found,
            Contender(group="workers", name="webdataset", run=lambda: _counted(loads), is_plain=True),
            Contender(group="workers", name="equitar, pipe", run=lambda: self._loaded(piped, Waiting())),
            Contender(group="workers", name="equitar, slots", run=lambda: self._loaded(slotted, self.waiting)),
        ]

    def forget_pages(self) -> None:
        """Let the system drop what the page cache has of the shards here, where it knows how to."""
        if not hasattr(os, "posix_fadvise"):
            return
        for path in self.files:
            with Path(path).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _read_plain(self) -> dict[str, int]:
        return {one.name: sum(1 for _ in one.samples(0, 0, staged=False)) for one in self.plain}

    def _read(self) -> Mapping[str, int]:
        order, prepared = self._batches.order, self._batches.prepared()
        shelf = open_shards()
        opened = order.readers(prepared, shelf)
        readers = [order.tolerant(one) for one in opened]
        try:
            for number, (source, shard, row) in enumerate(zip(*map(np.ndarray.tolist, self._places[:3]), strict=True)):
                if number % order.batch_size == 0:
                    shelf.trim()
                with suppress(SampleLostError):
                    readers[source].read(shard, row)
        finally:
            for one in opened:
                one.close()
        names = [one.name for one in prepared.catalog.sources]
        return dict(zip(names, self.num_samples, strict=True))

    def _in_process(self) -> Mapping[str, int]:
        self._first.set_epoch(self._epoch)
        counts: Counter[str] = Counter()
        for record, _ in self._first.recorded():
            counts.update(dict(record.counts))
        return counts

    def _loaded(self, loader: Loader, waiting: Waiting) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        loader.set_epoch(self._epoch)
        wall, cpu = time.perf_counter(), time.thread_time()
        batches = iter(loader)
        for _ in range(self._steps):
            next(batches)
            assert loader.last is not None, "a batch came"
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


def _as_it_is(batch: Any) -> Any:
    return batch
