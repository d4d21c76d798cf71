"""Where does time go? Every moment is charged to exactly one part, so that the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """What time is charged to.

    Attributes:
        source: The source whose samples it is spent on; None is not known until the batch is there.
        kind: "open", "read", "stage", "collate", "composed", "rest"; "own" is the measuring itself.
        name: What it is called among those of its kind.
    """

    source: str | None
    kind: str
    name: str = ""


REST = Part(None, "rest")
OWN = Part(None, "own")


class Stopwatch:
    """Charges time to the part that was switched to last.

    Attributes:
        seconds: What each part was charged.
        since: When the present part began, by the clock.

    >>> times = iter([0.0, 1.0, 2.0, 4.0, 7.0])
    >>> watch = Stopwatch(lambda: next(times))
    >>> _ = watch.switch(REST)
    >>> before = watch.switch(Part("cc3m", "read"))
    >>> _ = watch.switch(before), watch.switch(OWN)
    >>> watch.seconds[Part("cc3m", "read")], watch.seconds[REST]  # 1.0 before, 3.0 after
    (2.0, 4.0)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with what does not count."""
        self._clock, self._part = clock, OWN
        self.seconds: dict[Part, float] = {}
        self.since = clock()

    def switch(self, part: Part) -> Part:
        """Charge what follows to a part, and return the one that was charged until now."""
        now = self._clock()
        self.seconds[self._part] = self.seconds.get(self._part, 0.0) + now - self.since
        before, self._part, self.since = self._part, part, now
        return before

    def settle(self, counts: Mapping[str, int]) -> None:
        """Charge what no source was charged with to the sources of a batch, by their samples in it."""
        total = sum(counts.values())
        if not total:
            return  # with the next batch
        for part in [part for part in self.seconds if part.source is None and part.kind != OWN.kind]:
            seconds = self.seconds.pop(part)
            for source, count in counts.items():
                whose = part._replace(source=source)
                self.seconds[whose] = self.seconds.get(whose, 0.0) + seconds * count / total
