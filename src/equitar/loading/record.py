"""Records of batches, and what a loader counts of them: samples read, dropped by stages, and lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from equitar.sidecars.selection import Unread
from equitar.text import listed


class Record(NamedTuple):
    """What is known of a batch: it travels beside the batch to the main process.

    Attributes:
        epoch: Its epoch.
        step: Its step in the epoch.
        source: Its source; None if it is mixed.
        keys: Keys of its samples.
        counts: How many of them each source gave.
        dropped: Samples that stages dropped; substitutes took their places, or in validation the places stayed empty.
        lost: Samples that could not be read; their places were filled in the same way.
    """

    epoch: int
    step: int
    source: str | None
    keys: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]
    dropped: tuple[Unread, ...]
    lost: tuple[Unread, ...]

    def where(self, paths: Sequence[str] = ()) -> str:
        """Return in words which batch it is, with the shards that it is from if they are given."""
        shards = f", shard {_quoted(paths)}" if paths else ""
        sources = _quoted([name for name, _ in self.counts])
        return f"step {self.step} of epoch {self.epoch}, source {sources}{shards}, keys {_quoted(self.keys)}"


class LoaderReport(TypedDict):
    """What a loader has handed out since it was made, on one rank.

    Attributes:
        steps: Batches.
        samples: Samples of each source.
        dropped: Samples of each source that stages dropped, counted each time.
        lost: Samples of each source that could not be read, counted each time.
        dropped_samples: Which were dropped, each once: source, path of the shard, and key.
        lost_samples: Which could not be read, in the same way; `write_exclusions` makes a file for `keep` of both.
        piped: Batches that found no free slot of shared memory.
        given_up: Samples of each source, over all ranks, that were given up where the run continued within an epoch with other
            arguments or sources: they come in the next pass again.
    """

    steps: int
    samples: dict[str, int]
    dropped: dict[str, int]
    lost: dict[str, int]
    dropped_samples: list[Unread]
    lost_samples: list[Unread]
    piped: int
    given_up: dict[str, int]


class LoaderCounters:
    """Counts records as they arrive."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.piped = 0  # batches that did not come through shared memory although they could have
        self.given_up = Counter[str]()  # samples of each source, over all ranks
        self._steps = 0
        self._samples, self._dropped, self._lost = Counter[str](), Counter[str](), Counter[str]()
        self._dropped_samples: dict[Unread, None] = {}  # a dict keeps their order
        self._lost_samples: dict[Unread, None] = {}

    def note(self, record: Record) -> None:
        """Count one batch."""
        self._steps += 1
        self._samples.update(dict(record.counts))
        self._dropped.update(unread.source for unread in record.dropped)
        self._lost.update(unread.source for unread in record.lost)
        self._dropped_samples.update(dict.fromkeys(record.dropped))
        self._lost_samples.update(dict.fromkeys(record.lost))

    def counts(self) -> LoaderReport:
        """Return the counts so far."""
        return LoaderReport(
            steps=self._steps,
            samples=dict(self._samples),
            dropped=dict(self._dropped),
            lost=dict(self._lost),
            dropped_samples=list(self._dropped_samples),
            lost_samples=list(self._lost_samples),
            piped=self.piped,
            given_up=dict(self.given_up),
        )


def _quoted(names: Sequence[str]) -> str:
    return listed(list(dict.fromkeys(names)), quote=True)
