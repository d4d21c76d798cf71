"""Profiler of one process: the batches of a training, executed with a stopwatch around each part.

Plan, feed and emitter are those of training, over readers, stages and a collate function that switch the stopwatch when they are
entered and left. Every moment is charged to exactly one part, so that the parts add up to the whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from equitar.benchmarking.result import ShardTime
from equitar.loading.batches import Batches, execution_of
from equitar.loading.feed import Feed, name_of
from equitar.loading.record import Record
from equitar.loading.request import Request
from equitar.planning.plan import Plan
from equitar.ranks import Topology
from equitar.reading.reader import Reader, SampleReader, open_shards
from equitar.sidecars.store import Sidecars
from equitar.sources import Sample, Stage


class TimedPart(NamedTuple):
    """What time is charged to."""

    source: str | None  # whose samples it is spent on; None is not known before the batch is complete
    kind: str  # "open", "read", "stage", "collate", "composed", "rest"; "own" is the measuring itself
    name: str = ""  # which one of its kind


REST = TimedPart(None, "rest")
OWN = TimedPart(None, "own")


class Stopwatch:
    """Charges time to the part that was switched to last.

    >>> times = iter([0.0, 1.0, 2.0, 4.0, 7.0])
    >>> watch = Stopwatch(lambda: next(times))
    >>> _ = watch.switch(REST)
    >>> before = watch.switch(TimedPart("cc3m", "read"))
    >>> _ = watch.switch(before), watch.switch(OWN)
    >>> watch.seconds[TimedPart("cc3m", "read")], watch.seconds[REST]  # 1.0 before, 3.0 after
    (2.0, 4.0)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with the part that does not count."""
        self._clock, self._part = clock, OWN
        self.seconds: dict[TimedPart, float] = {}  # charged to each part
        self.since = clock()  # when the present part began

    def switch(self, part: TimedPart) -> TimedPart:
        """Charge the time from now on to a part, and return the part that was charged until now."""
        now = self._clock()
        self.seconds[self._part] = self.seconds.get(self._part, 0.0) + now - self.since
        before, self._part, self.since = self._part, part, now
        return before

    def settle(self, counts: Mapping[str, int]) -> None:
        """Share time that is not charged to a source among the sources of a batch, by their samples in it."""
        total = sum(counts.values())
        if not total:
            return  # with the next batch
        for part in [part for part in self.seconds if part.source is None and part.kind != OWN.kind]:
            seconds = self.seconds.pop(part)
            for source, count in counts.items():
                whose = part._replace(source=source)
                self.seconds[whose] = self.seconds.get(whose, 0.0) + seconds * count / total


@dataclass(slots=True)
class ShardRead:
    """What was read of a shard: samples, bytes of their fields, and in how many seconds."""

    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Profile:
    """The times of all steps so far."""

    watch: Stopwatch = field(default_factory=lambda: Stopwatch(time.perf_counter))
    steps: int = 0
    samples: Counter[str] = field(default_factory=Counter)  # by source
    shards: dict[tuple[str, str], ShardRead] = field(default_factory=dict)  # by source and path, without opening it
    parts: dict[TimedPart, None] = field(default_factory=dict)  # of each source, in the order a sample passes them

    def bytes_of(self, source: str) -> int:
        """Return how many bytes were read of a source."""
        return sum(shard.bytes for (name, _), shard in self.shards.items() if name == source)

    def slowest(self) -> tuple[ShardTime, ...]:
        """Return what was read of each shard, the slowest by sample first."""
        times = [
            ShardTime(source=source, path=path, samples=shard.samples, bytes=shard.bytes, seconds=shard.seconds)
            for (source, path), shard in self.shards.items()
        ]
        return tuple(sorted(times, key=lambda shard: shard.seconds / shard.samples, reverse=True))


def profile_into(
    profile: Profile,
    batches: Batches,
    plan: Plan,
    epoch: int,
    *,
    is_enough: Callable[[Profile], bool],
) -> None:
    """Execute the first steps of an epoch in this process, and add their times to a profile.

    Args:
        profile: The profile to add to.
        batches: From a builder.
        plan: Their plan, without workers.
        epoch: Which epoch it is.
        is_enough: Called after each step.
    """
    execution = execution_of(batches)
    request, resolved = execution.request, execution.request.resolved
    watch, cache = profile.watch, open_shards()
    readers = request.readers(cache)
    composed = _timed(execution.stages, watch, None, "composed")
    feeds = {
        sidecars.source.name: _feed(profile, request, sidecars, reader, composed)
        for sidecars, reader in zip(resolved.catalog.sidecars, readers, strict=True)
    }
    collate_fn = None if request.collate_fn is None else _timed_collate(request.collate_fn, watch)
    topology = Topology(rank=resolved.rank, world_size=resolved.world_size)
    chosen = [feeds[name] for name in plan.names]
    emitter = replace(request, collate_fn=collate_fn).emitter(plan, topology, epoch, chosen, cache, None)
    timed = execution.copied()
    timed.stages = list(composed)
    try:
        _take(profile, timed.composed(emitter.run(0)), is_enough)
    finally:
        for reader in readers:
            reader.close()


def _feed(
    profile: Profile, request: Request, sidecars: Sidecars, reader: Reader, composed: Sequence[_TimedStage]
) -> Feed:
    """Return the feed of a source with the stopwatch around its parts, which are added to the profile."""
    source, tolerant = sidecars.source, request.tolerant(reader)
    stages = _timed((*source.stages, *request.stages), profile.watch, source.name, "stage")
    ordered = [
        *(TimedPart(source.name, kind) for kind in ("open", "read")),
        *(stage.part for stage in stages),
        TimedPart(source.name, "collate"),
        *(stage.part._replace(source=source.name) for stage in composed),
        TimedPart(source.name, "rest"),
    ]
    profile.parts |= dict.fromkeys(ordered)
    opened = None if tolerant is not reader else reader.open  # the tolerant reader must find the damage
    return Feed(
        source.name,
        _TimedReader(tolerant, opened, sidecars, profile),
        stages,
        paths=sidecars.shards.paths,
        max_substitutes=request.max_substitutes,
    )


def _take(profile: Profile, emitted: Iterator[tuple[Record, Any]], is_enough: Callable[[Profile], bool]) -> None:
    watch = profile.watch
    watch.switch(REST)
    for record, _ in emitted:
        watch.switch(OWN)
        counts = dict(record.counts)
        watch.settle(counts)
        profile.samples.update(counts)
        profile.steps += 1
        if is_enough(profile):
            break
        watch.switch(REST)
    watch.switch(OWN)


class _TimedReader(SampleReader):
    """A reader that records how long reading takes for each shard."""

    def __init__(
        self, reader: SampleReader, opened: Callable[[int], object] | None, sidecars: Sidecars, profile: Profile
    ) -> None:
        self._reader, self._opened, self._profile = reader, opened, profile
        self.may_lose = reader.may_lose
        self._source, self._paths = sidecars.source.name, sidecars.shards.paths
        self._seen: set[int] = set()

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample; see `SampleReader`."""
        watch, profile = self._profile.watch, self._profile
        before = watch.switch(TimedPart(self._source, "open"))
        try:
            if shard not in self._seen and self._opened is not None:
                self._opened(shard)
            self._seen.add(shard)
            watch.switch(TimedPart(self._source, "read"))
            begin = watch.since
            sample = self._reader.read(shard, row)
            watch.switch(OWN)
            shard_read = profile.shards.setdefault((self._source, self._paths[shard]), ShardRead())
            shard_read.samples += 1
            shard_read.bytes += sum(len(value) for name, value in sample.items() if not name.startswith("__"))
            shard_read.seconds += watch.since - begin
            return sample
        finally:
            watch.switch(before)


def _timed(stages: Iterable[Stage], watch: Stopwatch, source: str | None, kind: str) -> list[_TimedStage]:
    """Return stages that charge their own time, without that of the stages before them, each to a part of its own."""
    seen: Counter[str] = Counter()
    result: list[_TimedStage] = []
    for stage in stages:
        label = label_of(stage)
        seen[label] += 1
        name = label if seen[label] == 1 else f"{label} {seen[label]}"
        result.append(_TimedStage(stage, TimedPart(source, kind, name), watch))
    return result


def label_of(stage: Stage) -> str:
    """Return the label of a stage in a table: with the function that it applies, if it has one.

    >>> import webdataset as wds
    >>> label_of(wds.map(len)), label_of(wds.decode("pil"))
    ('map(len)', 'decode')
    """
    args: Sequence[Any] = getattr(stage, "args", ())
    function = getattr(args[0], "__name__", None) if args and callable(args[0]) else None
    return name_of(stage) if function is None else f"{name_of(stage)}({function})"


class _TimedStage:
    """A stage that switches the stopwatch when it is asked for a sample, and back when it asks for one itself."""

    def __init__(self, stage: Stage, part: TimedPart, watch: Stopwatch) -> None:
        self._stage, self.part, self._watch = stage, part, watch
        self._rest = REST._replace(source=part.source)
        self.__name__ = name_of(stage)  # what errors call it

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        run = getattr(self._stage, "run", self._stage)
        stream = self._timed(self.part, lambda: iter(run(self._upstream(iter(samples)))))
        while True:
            try:
                sample = self._timed(self.part, lambda: next(stream))
            except StopIteration:
                return
            yield sample

    def _upstream(self, samples: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                sample = self._timed(self._rest, lambda: next(samples))
            except StopIteration:
                return
            yield sample

    def _timed(self, part: TimedPart, function: Callable[[], Any]) -> Any:
        before = self._watch.switch(part)
        try:
            return function()
        finally:
            self._watch.switch(before)


def _timed_collate(collate_fn: Callable[[list[Any]], Any], watch: Stopwatch) -> Callable[[list[Any]], Any]:
    def timed(samples: list[Any]) -> Any:
        before = watch.switch(TimedPart(None, "collate"))
        try:
            return collate_fn(samples)
        finally:
            watch.switch(before)

    return timed
