"""The feed: reads the samples of one source and takes each through its stages.

Each place of a batch owns its planned sample. When a stage drops it, the place gets a substitute that the plan chose for exactly
this place: nothing shifts, and no other rank or worker is affected. This requires that a stage is lazy, in order, and gives at
most one sample for each that it takes; the feed watches for that, and an error names a stage that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from equitar.errors import EquitarError, StageError, blame
from equitar.reading.damage import SampleLostError
from equitar.reading.prefetch import Wanted
from equitar.reading.reader import SampleReader
from equitar.sources import Sample, Stage

# Stages of webdataset and of equitar that hold samples back, or change how many there are, as `name_of` calls them.
_OF_WEBDATASET = ("shuffle", "detshuffle", "batched", "listed", "unbatched", "unlisted", "slice", "islice", "Cached")
_NEVER_PER_SAMPLE = frozenset((*_OF_WEBDATASET, "LMDBCached", "Shuffle", "Repeats", "BatchedBySource"))
_REMEMBERED = 4096  # keys of dropped samples: a stage that gives one of them later has held it back


class Fetched(NamedTuple):
    """The result for one place."""

    sample: Any  # as its stages left it; None if all were dropped
    taken: list[tuple[str, str]]  # key and path of the shard of those that were dropped, then of the sample itself
    copy: int  # which copy it is
    lost: list[tuple[str, str]]  # key and path of the planned sample, if it could not be read


def name_of(stage: Callable[..., object]) -> str:
    """Return the name of a stage in messages.

    >>> name_of(print)
    'print'
    """
    function = getattr(stage, "f", stage)  # webdataset's curried filters hold their function as `f`
    name = getattr(function, "__name__", type(function).__name__)
    return str(name).lstrip("_")


def label_of(stage: Stage) -> str:
    """Return the name of a stage with the functions that it applies.

    >>> label_of(print)
    'print'
    """
    functions = [name_of(argument) for argument in getattr(stage, "args", ()) if callable(argument)]
    return name_of(stage) + (f"({', '.join(functions)})" if functions else "")


def checked_stages(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return stages that may be applied sample by sample.

    Raises:
        StageError: If one is not a stage, or is known to hold samples back.
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
    """Takes samples of one source through stages, one place at a time."""

    def __init__(
        self,
        name: str,
        reader: SampleReader,
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
        self.is_direct = not stages and not reader.may_lose  # each place gets its planned sample, as it was read
        self._candidates: Iterator[tuple[int, int]] = iter(())
        self._copy = 0
        self._taken: list[tuple[str, str]] = []
        self._lost: list[tuple[str, str]] = []
        self._is_exhausted, self._is_first = False, True
        self._chain = self._through_stages()

    def read(self, shard: int, row: int, copy: int) -> Sample:
        """Return a sample as it was read."""
        sample = self.reader.read(shard, row)
        sample["__source__"], sample["__copy__"] = self._name, copy
        return sample

    def path(self, shard: int) -> str:
        """Return the path of a shard below the root of the source."""
        return self._paths[shard] if self._paths else ""

    def _taken_last(self) -> str:
        """Return the sample that its stages took last, in words."""
        key, path = self._taken[-1] if self._taken else ("", "")
        return f"shard {path!r}, key {key!r}"

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the remote ranges that a sample will be read by."""
        return self.reader.wanted(shard, row)

    def fetch(self, candidates: Iterator[tuple[int, int]], copy: int) -> Fetched:
        """Return the first of the candidates that the stages do not drop.

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
                    "a generator is, and continue as long as there are samples"
                ) from None
            self._chain = self._through_stages()
            return Fetched(None, self._taken, copy, self._lost)

    def _next_sample(self) -> Sample | None:
        """Return the next candidate, None at the end of them: a stage that held samples back will give them then."""
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
        except EquitarError:
            raise
        except Exception as error:
            blame(error, f"reading source {self._name!r}, shard {self.path(shard)!r}, row {row}")
            raise

    def _through_stages(self) -> Iterator[Any]:
        stream: Iterator[Any] = iter(self._next_sample, None)
        for stage in self._stages:
            monitor = _StageMonitor(stage, self._name, self._taken_last)
            taken = monitor.taking(stream)
            run = getattr(stage, "run", stage)  # webdataset's PipelineStage has `run`
            try:
                given = iter(run(taken))
            except (TypeError, AttributeError) as error:  # as a function of one sample raises for an iterator
                raise StageError(
                    f"stage {name_of(stage)!r} must take an iterator of samples and give one but raised {error!r}; a function "
                    "of one sample goes into `wds.map(...)`"
                ) from error
            stream = monitor.giving(given)
        return stream


class _StageMonitor:
    """Watches what one stage takes and gives."""

    def __init__(self, stage: Stage, source: str, sample: Callable[[], str]) -> None:
        self._where = f"stage {name_of(stage)!r} of source {source!r}"
        self._blamed, self._sample = f"stage {label_of(stage)!r} of source {source!r}", sample
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
            StageError: If it gives more than it took, or a sample that it held back.
        """
        try:
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
        except EquitarError:
            raise
        except Exception as error:
            blame(error, f"{self._blamed}, {self._sample()}")
            raise


def _key(sample: Any) -> Any:
    return sample.get("__key__") if isinstance(sample, dict) else None
