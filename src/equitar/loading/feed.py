"""How does a planned sample come to its place? A feed reads the samples of one source and takes each through its stages.

Each place owns its planned sample. A stage that drops it asks for another, and gets a substitute that the plan chose for just
this place: nothing shifts, and another rank or worker does not notice. For that to be true a stage must be lazy, in order, and
give at most one sample for each it takes; the feed watches and names a stage that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from equitar.errors import StageError
from equitar.reading.damage import SampleLostError, TolerantReader
from equitar.reading.prefetch import Wanted
from equitar.reading.reader import Reader
from equitar.sources import Sample, Stage

# Stages of webdataset and ours that hold samples back, or change how many there are, as `name_of` calls them.
_OF_WEBDATASET = ("shuffle", "detshuffle", "batched", "listed", "unbatched", "unlisted", "slice", "islice", "Cached")
_NEVER_PER_SAMPLE = frozenset((*_OF_WEBDATASET, "LMDBCached", "Shuffle", "Repeats", "BatchedBySource"))
_REMEMBERED = 4096  # keys of dropped samples, by which a stage that held them back is found out


class ReadsSamples(Protocol):
    """What a feed needs of a reader."""

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample.

        Raises:
            SampleLostError: If it cannot be read, and that is no error.
        """


class Fetched(NamedTuple):
    """What came to a place.

    Attributes:
        sample: The sample as its stages left it; None if all were dropped.
        taken: Key and path of the shard of those that were dropped, and of the sample that it is.
        copy: Which copy it is.
        lost: Key and path of the planned sample, if it could not be read; empty if it could.
    """

    sample: Any
    taken: list[tuple[str, str]]
    copy: int
    lost: list[tuple[str, str]]


def name_of(stage: Stage) -> str:
    """Return what a stage is called in messages.

    >>> name_of(print)
    'print'
    """
    function = getattr(stage, "f", stage)  # webdataset's curried filters hold their function as `f`
    name = getattr(function, "__name__", type(function).__name__)
    return str(name).lstrip("_")


def checked_stages(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return stages, each of which may be applied sample by sample.

    Raises:
        StageError: If one cannot be: it is no stage, or it is known to hold samples back.
    """
    given: Any = stages
    if not isinstance(given, Sequence):
        raise StageError(f"`stages` must be a list of stages; got {given!r:.80}; write stages=[...]")
    checked: tuple[Any, ...] = tuple(given)
    for stage in checked:
        if not (callable(stage) or hasattr(stage, "run")):
            raise StageError(f"a stage must be a callable over an iterator of samples; got {stage!r}")
        if name_of(stage) in _NEVER_PER_SAMPLE:
            raise StageError(
                f"stage {name_of(stage)!r} works on many samples at once but `stages` are applied to each alone; "
                "shuffling and batching are arguments of the builder"
            )
    return checked


class Feed:
    """Takes samples of one source through stages, one place at a time.

    Attributes:
        reader: Reads its samples.
        is_direct: Whether what is planned comes, and nothing else: no stages, and no damage that is tolerated.
    """

    def __init__(
        self,
        name: str,
        reader: ReadsSamples,
        stages: Sequence[Stage],
        *,
        paths: Sequence[str],
        max_substitutes: int,
    ) -> None:
        """Prepare the feed of a source.

        Args:
            name: The source.
            reader: Reads its samples.
            stages: Per-sample stages, in order.
            paths: Path of each shard below the root of the source.
            max_substitutes: How many samples in a row may be dropped.
        """
        self._name, self.reader, self._stages, self._max = name, reader, stages, max_substitutes
        self._paths = paths
        reads = reader.reader if isinstance(reader, TolerantReader) else reader
        self._far = reads if isinstance(reads, Reader) and reads.is_remote else None
        self.is_direct = not stages and not isinstance(reader, TolerantReader)
        self._candidates: Iterator[tuple[int, int]] = iter(())
        self._copy = 0
        self._taken: list[tuple[str, str]] = []
        self._lost: list[tuple[str, str]] = []
        self._is_exhausted, self._is_first = False, True
        self._chain = self._through_stages()

    def read(self, shard: int, row: int, copy: int) -> Sample:
        """Return a sample as no stage has seen it."""
        sample = self.reader.read(shard, row)
        sample["__source__"], sample["__copy__"] = self._name, copy
        return sample

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the ranges of remote shards that a sample will be read by."""
        return self._far.wanted(shard, row) if self._far is not None else []

    def fetch(self, candidates: Iterator[tuple[int, int]], copy: int) -> Fetched:
        """Return the first of the candidates that its stages let through.

        Args:
            candidates: The planned (shard, row) of a place, then its substitutes.
            copy: Which copy of the sample this is.

        Raises:
            StageError: If too many were dropped, or a stage is not lazy and in order.
        """
        self._candidates, self._copy, self._taken = candidates, copy, []
        self._is_exhausted, self._is_first, self._lost = False, True, []
        try:
            return Fetched(next(self._chain), self._taken, copy, self._lost)
        except StopIteration:
            if not self._is_exhausted:
                names = ", ".join(name_of(stage) for stage in self._stages)
                raise StageError(
                    f"one of the stages {names} of source {self._name!r} ended before its input did; a stage must be lazy, as "
                    "a generator is, and go on as long as samples come"
                ) from None
            self._chain = self._through_stages()
            return Fetched(None, self._taken, copy, self._lost)

    def _next_sample(self) -> Sample | None:
        """Return the next candidate, None at the end of them: a stage that held samples back then gives itself away."""
        for shard, row in self._candidates:
            if len(self._taken) > self._max:
                names = ", ".join(name_of(stage) for stage in self._stages)
                raise StageError(
                    f"stages of source {self._name!r} ({names}) dropped {len(self._taken)} samples in a row, the last with "
                    f"key {self._taken[-1][0]!r} of {self._taken[-1][1]}, but `max_substitutes` is {self._max}"
                )
            sample = self._read_or_lost(shard, row)
            if sample is not None:
                self._taken.append((sample["__key__"], self._paths[shard]))
                return sample
        self._is_exhausted = True
        return None

    def _read_or_lost(self, shard: int, row: int) -> Sample | None:
        """Return a sample, None if it is lost; only the planned one is noted, substitutes have places of their own."""
        is_planned, self._is_first = self._is_first, False
        try:
            return self.read(shard, row, self._copy)
        except SampleLostError as error:
            if is_planned:
                self._lost.append((error.key, self._paths[shard]))
            return None

    def _through_stages(self) -> Iterator[Any]:
        stream: Iterator[Any] = iter(self._next_sample, None)
        for stage in self._stages:
            watch = _StageMonitor(name_of(stage), self._name)
            taken = watch.taking(stream)
            run = getattr(stage, "run", stage)  # webdataset's PipelineStage has `run`
            try:
                given = iter(run(taken))
            except (TypeError, AttributeError) as error:  # what the function of a sample does with an iterator
                raise StageError(
                    f"stage {name_of(stage)!r} must take an iterator of samples and give one but raised {error!r}; a function "
                    "of one sample goes into `wds.map(...)`"
                ) from error
            stream = watch.giving(given)
        return stream


class _StageMonitor:
    """Counts what one stage takes and gives."""

    def __init__(self, stage: str, source: str) -> None:
        self._where = f"stage {stage!r} of source {source!r}"
        self._taken = 0
        self._last: Any = None
        self._dropped: dict[Any, None] = {}

    def taking(self, stream: Iterator[Any]) -> Iterator[Any]:
        """Pass on what the stage takes."""
        for sample in stream:
            if self._taken:
                self._dropped[self._last] = None
                if len(self._dropped) > _REMEMBERED:
                    del self._dropped[next(iter(self._dropped))]
            self._taken += 1
            self._last = _key(sample)
            yield sample

    def giving(self, stream: Iterator[Any]) -> Iterator[Any]:
        """Pass on what the stage gives.

        Raises:
            StageError: If it gives more than it took, or what it seemed to have dropped.
        """
        for sample in stream:
            if not self._taken:
                raise StageError(
                    f"{self._where} gave two samples for one but a stage may give at most one; make several in `collate_fn`"
                )
            key = _key(sample)
            if key is not None and key != self._last and key in self._dropped:
                raise StageError(
                    f"{self._where} reads ahead: it gave key {key!r} after it took {self._last!r}, but stages are applied "
                    "to each sample alone; shuffling and batching are arguments of the builder"
                )
            self._taken = 0
            yield sample


def _key(sample: Any) -> Any:
    return sample.get("__key__") if isinstance(sample, dict) else None
