"""What does a worker hold? Memory of DataLoader workers that read samples of 1 MB from 1, 4 and 16 sources, buffer 1000.

Each case runs alone: batches of 16 (16 MB) through two persistent workers, five epochs of 1,600 samples. Looked at after every tenth
batch, the table has the most that a worker had, in MB, in the first epoch and in the fifth: what grows shows there. "private" are
pages that are this worker's alone, "PSS" also its share of what it has in common with others: the libraries, and the slots.

    loader      equitar.Loader: batches lie in slots of shared memory
    plain       the same pipeline in torch's own DataLoader
    wds         webdataset: a shuffle for each source, mixed by RandomMix. With buffer 1000 and 16 sources it would hold 32 GB in two
                workers, so that buffers of 100 are measured with 4 and 16 sources

The shards are as large as they say but sparse: members are holes, which take no disk and are read as zeros.

    python benchmarks/bench_memory.py [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equitar
from measure import Book, as_it_is, cases_apart, in_own_process, memory_of, parser_of, print_figures

MEGABYTE = 10**6
BATCH_SIZE, NUM_WORKERS, BATCHES, EPOCHS = 16, 2, 100, 5
SHARDS, ROWS = 2, 1000  # of each source


class Case(NamedTuple):
    """What is read, and how."""

    reader: str
    sources: int
    buffer: int
    batches: int
    epochs: int

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.sources} sources, buffer {self.buffer}"


CASES = (
    *(Case(reader, sources, 1000, BATCHES, EPOCHS) for sources in (1, 4, 16) for reader in ("loader", "plain")),
    *(Case("wds", sources, buffer, BATCHES, 2) for sources, buffer in ((1, 1000), (4, 100), (16, 100))),
)
TINY = tuple(Case(reader, 2, 50, 12, 2) for reader in ("loader", "wds"))


def write_sparse(folder: Path, name: str) -> None:
    """Write the shards of a source whose large members are holes."""
    for shard in range(SHARDS):
        with (folder / f"{name}-{shard:06}.tar").open("wb") as file:
            for row in range(ROWS):
                for field, length in (("cls", 1), ("jpg", MEGABYTE)):
                    info = tarfile.TarInfo(f"{name}-{shard}-{row:04}.{field}")
                    info.size = length
                    file.write(info.tobuf())
                    start = file.tell()
                    file.write(b"7" if length == 1 else b"")
                    file.seek(start + -(-length // 512) * 512)
            file.truncate(file.tell() + 1024)


def equitar_batches(folder: Path, case: Case) -> Any:
    """Return the pipeline of equitar."""
    sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in names_of(case)]
    return equitar.debiased(
        sources, batch_size=BATCH_SIZE, shuffle=case.buffer, steps=case.batches, rank=0, world_size=1
    )


def wds_pipeline(folder: Path, case: Case) -> Any:
    """Return the pipeline of webdataset."""
    import webdataset as wds

    each = [
        wds.DataPipeline(
            wds.ResampledShards(sorted(map(str, folder.glob(f"{name}-*.tar")))),
            wds.tarfile_to_samples(),
            wds.shuffle(case.buffer),
        )
        for name in names_of(case)
    ]
    batched = wds.batched(BATCH_SIZE, collation_fn=list)
    return wds.DataPipeline(wds.RandomMix(each), batched).with_epoch(case.batches // NUM_WORKERS)


def epochs_of(folder: Path, case: Case) -> Iterator[Iterable[Any]]:
    """Yield the epochs of one loader."""
    from torch.utils.data import DataLoader

    pipeline = wds_pipeline(folder, case) if case.reader == "wds" else equitar_batches(folder, case)
    if case.reader == "loader":
        loader: Any = equitar.Loader(pipeline, num_workers=NUM_WORKERS, persistent_workers=True)
    else:
        loader = DataLoader(
            pipeline, batch_size=None, collate_fn=as_it_is, num_workers=NUM_WORKERS, persistent_workers=True
        )
    for epoch in range(case.epochs):
        if case.reader == "plain":
            pipeline.set_epoch(epoch)
        yield loader


def workers() -> list[str]:
    """Return the process ids of the workers: children of this process that were forked from it."""
    mine = Path("/proc/self/cmdline").read_bytes()
    children = Path("/proc/thread-self/children").read_text(encoding="ascii").split()
    return [child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == mine]


def measure(folder: str, words: Iterable[Any]) -> dict[str, float]:
    """Return the most that one of the workers had in the first epoch and in the last one."""
    case = Case(*words)
    most: dict[str, float] = {}
    for epoch, batches in enumerate(epochs_of(Path(folder), case)):
        which = "first" if epoch == 0 else "last" if epoch == case.epochs - 1 else ""
        for step, _ in enumerate(batches):
            for worker in workers() if which and step % 10 == 9 else ():
                for kind, value in memory_of(worker).items():
                    metric = f"{kind} {which} MB"
                    most[metric] = max(most.get(metric, 0.0), value)
    return most


def names_of(case: Case) -> list[str]:
    """Return the names of the sources of a case."""
    return [f"s{number:02}" for number in range(case.sources)]


def main() -> None:
    """Measure every case in a process of its own, print a table, and write `bench_memory.csv`."""
    chosen = cases_apart(parser_of("Measure the memory of workers."), measure)
    cases, book, figures = TINY if chosen.tiny else CASES, Book(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names_of(max(cases, key=lambda case: case.sources)):
            write_sparse(Path(folder), name)
            source = equitar.Source(name, str(Path(folder) / f"{name}-*.tar"))
            equitar.index(source, labels="cls", jobs=1, progress=False)
        for case in cases:
            most = in_own_process(__file__, folder, case)
            figures[f"{case.reader}, {case.name}"] = most
            book.note_all(case.name, case.reader, most)
    print_figures("Memory of a worker", figures)
    book.write(chosen.out / "bench_memory.csv")


if __name__ == "__main__":
    main()
