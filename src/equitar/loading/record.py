"""What came? Counts of a loader on one rank: of batches and samples, and of those that were dropped or could not be read."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, TypedDict

from equitar.sidecars.selection import Unread


class Record(NamedTuple):
    """What a batch is: beside it on its way to the main process.

    Attributes:
        epoch: Its epoch.
        step: Its step in the epoch.
        source: Its source; None if it is mixed.
        keys: Keys of its samples.
        counts: How many of them each source gave.
        dropped: Samples that stages dropped; their places were taken by substitutes, or stayed empty in validation.
        lost: Samples that could not be read, and what came of their places is the same.
    """

    epoch: int
    step: int
    source: str | None
    keys: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]
    dropped: tuple[Unread, ...]
    lost: tuple[Unread, ...]


class LoaderReport(TypedDict):
    """What came since a loader was made, on one rank.

    Attributes:
        steps: Batches.
        samples: Samples of each source.
        dropped: Samples of each source that stages dropped, counted each time.
        lost: Samples of each source that could not be read, counted each time.
        dropped_samples: Which were dropped, each once: source, path of the shard, and key.
        lost_samples: Which could not be read, in the same way; `write_exclusions` makes a file for `keep` of both.
        piped: Batches that found no slot of shared memory, or did not fit into one.
    """

    steps: int
    samples: dict[str, int]
    dropped: dict[str, int]
    lost: dict[str, int]
    dropped_samples: list[Unread]
    lost_samples: list[Unread]
    piped: int


class LoaderCounters:
    """Counts records as they come.

    Attributes:
        piped: Batches that did not come through shared memory although they might have.
    """

    def __init__(self) -> None:
        """Begin at nothing."""
        self.piped = 0
        self._steps = 0
        self._samples, self._dropped, self._lost = Counter[str](), Counter[str](), Counter[str]()
        self._dropped_samples: dict[Unread, None] = {}  # a dict keeps their order
        self._lost_samples: dict[Unread, None] = {}

    def note(self, record: Record) -> None:
        """Count one batch."""
        self._steps += 1
        self._samples.update(dict(record.counts))
        self._dropped.update(one.source for one in record.dropped)
        self._lost.update(one.source for one in record.lost)
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
        )
