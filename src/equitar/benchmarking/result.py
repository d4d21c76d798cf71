"""Results of a benchmark: how fast each contender was, and what a sample costs in each part."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal, TypeAlias

from equitar.display import Overview, Table
from equitar.text import counted

Group: TypeAlias = Literal["read", "batches", "workers"]
KINDS = ("open", "read", "stage", "collate", "composed", "rest")  # of parts, as a sample meets them


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one of the contenders was.

    Attributes:
        group: What it is compared within: "read", "batches" in one process, or through "workers".
        name: The contender.
        is_plain: Whether it is webdataset.
        rounds: Samples per second in each round, with the shards in the page cache if they are local.
        first: The same in the first round, when they were not; None with workers, which start in it.
        bytes: Mean bytes of a sample.
        ratio: Its median by that of webdataset; None if that did not run.
    """

    group: Group
    name: str
    is_plain: bool
    rounds: tuple[float, ...]
    first: float | None
    bytes: float
    ratio: float | None

    @property
    def median(self) -> float:
        """Samples per second."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTime:
    """What a sample of a source costs in one part.

    Attributes:
        kind: "open" and "read" of shards, "stage", "collate", "composed" (a stage over batches), "rest" (planning and everything else).
        name: Which stage it is; empty for other parts.
        seconds: Of one sample.
        first: The same in the first round.
    """

    kind: str
    name: str
    seconds: float
    first: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """What the samples of a source cost in one process.

    Attributes:
        name: The source.
        samples: Samples in each round.
        bytes: Bytes that were read for them.
        parts: What they cost; it adds up to all of it.
        waited: Seconds for which the main process waited for one sample from workers; None without.
    """

    name: str
    samples: int
    bytes: int
    parts: tuple[PartTime, ...]
    waited: float | None

    @property
    def seconds(self) -> float:
        """What one sample costs."""
        return sum(part.seconds for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTime:
    """How fast a shard was read in the first round.

    Attributes:
        source: Its source.
        path: Its path below the root of the source.
        samples: Samples that were read.
        bytes: Their bytes.
        seconds: How long that took in all, without opening it.
    """

    source: str
    path: str
    samples: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bench(Overview):
    """How fast shards and a pipeline are, and where the time goes.

    Attributes:
        samples: Samples in each round.
        batch_size: Samples of a batch.
        num_workers: DataLoader workers.
        cores: Cores of this machine.
        speeds: How fast each contender was.
        sources: Where the time goes, by source.
        shards: The shards that were read, the slowest for one sample first.
        busy: Share of the time in which the main process computes while batches come from workers; None without.
        receiving: Seconds in which it computes for one sample; None without.
        is_remote: Whether shards are not on this machine.
        in_blocks: Whether batches are read in blocks, as no stage looks at a sample; parts are timed sample by sample.
        missed: Sources that had no sample in these steps.
        refused: The error of webdataset if it cannot read the shards; None if it can.
    """

    samples: int
    batch_size: int
    num_workers: int
    cores: int
    speeds: tuple[Speed, ...]
    sources: tuple[SourceTime, ...]
    shards: tuple[ShardTime, ...]
    busy: float | None
    receiving: float | None
    is_remote: bool
    in_blocks: bool
    missed: tuple[str, ...]
    refused: str | None

    def _overview(self) -> tuple[str, list[Table]]:
        title = (
            f"Bench: {counted(self.samples, 'sample')} in batches of {self.batch_size:,}, "
            f"{counted(self.num_workers, 'worker')}, {counted(self.cores, 'core')}"
        )
        speeds = (
            (
                speed.group,
                speed.name,
                f"{speed.median:,.0f}",
                "-" if speed.ratio is None else f"{speed.ratio:.2f}",
            )
            for speed in self.speeds
        )
        return title, [[("group", "contender", "samples/s", "x webdataset"), *speeds]]
