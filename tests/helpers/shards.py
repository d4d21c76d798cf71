"""Real sources, tiny: the key of a sample tells its source and number, so what came can be read off the keys alone."""

from __future__ import annotations

import gc
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import webdataset as wds

import equitar
from equitar.loading.batches import Batches, execution_of
from equitar.ranks import RankChoice
from equitar.sources import Sample, Source

Labels = Callable[[int], int]


def third(number: int) -> int:
    """Label sample `number` with one of three classes."""
    return number % 3


def rare_first(number: int) -> int:
    """Label the first sample of a source with a class of its own."""
    return int(number == 0)


def key_of(name: str, number: int) -> str:
    return f"{name}-{number:04d}"


def keys_of(name: str, size: int) -> list[str]:
    return [key_of(name, number) for number in range(size)]


def source_of(key: str) -> str:
    return key.rpartition("-")[0]


def write_tars(folder: Path, name: str, sizes: Sequence[int], *, label: Labels = third) -> list[str]:
    """Write a tar for each size, and return their paths; samples are numbered through."""
    paths, number = [], 0
    (folder / name).mkdir(parents=True, exist_ok=True)
    for shard, size in enumerate(sizes):
        paths.append(str(folder / name / f"{shard:03d}.tar"))
        with wds.TarWriter(paths[-1], mtime=0) as writer:
            for _ in range(size):
                key = key_of(name, number)
                writer.write({"__key__": key, "txt": f"text of {key}", "cls": label(number)})
                number += 1
    return paths


def indexed(source: Source, *, labels: str | None = "cls") -> Source:
    """Index a source in this process, and return it."""
    equitar.index(source, labels=labels, jobs=1, progress=False)
    return source


def write_source(folder: Path, name: str, sizes: Sequence[int], *, label: Labels = third) -> Source:
    """Write and index a source of shards of these sizes."""
    write_tars(folder, name, sizes, label=label)
    return indexed(Source(name, str(folder / name / "*.tar"), root=str(folder / name)))


def write_sources(folder: Path, sizes: Mapping[str, Sequence[int]]) -> list[Source]:
    return [write_source(folder, name, each) for name, each in sizes.items()]


def let_webdataset_close() -> None:
    """Collect the files that webdataset leaves open, without the warnings that would come with them some time later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def keys_of_batches(batches: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [batch["__key__"] for batch in batches]


def flat(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def sources_of(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    return [batch["__source__"] for batch in batches]


def as_rank(batches: Batches, rank: int, world_size: int, *, batch_size: int | None = None) -> Batches:
    """Return what another rank would have built."""
    request = replace(execution_of(batches).request, ranks=RankChoice.of(rank, world_size))
    return Batches(request if batch_size is None else replace(request, batch_size=batch_size))


def over_ranks(batches: Batches, world_size: int, *, epoch: int = 0) -> list[list[Any]]:
    """Return the batches of every rank in an epoch, read without workers."""
    result = []
    for rank in range(world_size):
        of_rank = as_rank(batches, rank, world_size)
        of_rank.set_epoch(epoch)
        result.append(list(of_rank))
    return result


def global_batches(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Return the keys of each step over all ranks, in the order of the ranks."""
    return [[key for batch in step for key in batch["__key__"]] for step in zip(*ranks, strict=True)]


def most_often(keys: Iterable[str]) -> int:
    return max(Counter(keys).values(), default=0)


@dataclass(frozen=True)
class Drops:
    """A stage that drops a share of the samples, by their keys."""

    percent: int

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        return (sample for sample in samples if not self.drops(sample["__key__"]))

    def drops(self, key: str) -> bool:
        return zlib.crc32(key.encode()) % 100 < self.percent


@dataclass(frozen=True)
class Counts:
    """A stage that notes the keys that go through it."""

    keys: list[str] = field(default_factory=list)

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self.keys.append(sample["__key__"])
            yield sample


@dataclass(frozen=True)
class FailsAt:
    """A stage that fails at one key."""

    key: str

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            if sample["__key__"] == self.key:
                raise RuntimeError(f"cannot take {self.key}")
            yield sample
