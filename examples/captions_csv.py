"""Two caption CSVs in batches of one source each, on two ranks; and the same captions as shards, with the same sources at every step.

python examples/captions_csv.py                          # starts its two ranks itself
torchrun --nproc-per-node 2 examples/captions_csv.py     # or is started by torchrun
"""

from __future__ import annotations

import csv
import gc
import tempfile
from pathlib import Path

import torch
import webdataset as wds
from torch import distributed
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import equitar

SIZES = {"cc3m": 200, "sbu": 90}  # captions of each source
BATCH_SIZE = 8  # per rank
EPOCHS = 2


class Captions(Dataset[tuple[str, str]]):
    """A CSV with the columns source and caption."""

    def __init__(self, path: Path) -> None:
        with path.open(newline="") as lines:
            self.rows = [(row["source"], row["caption"]) for row in csv.DictReader(lines)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[str, str]:
        return self.rows[index]


def write(folder: Path) -> None:
    """Write each source twice: as a CSV, and as indexed shards."""
    for name, size in SIZES.items():
        captions = [f"{name} caption {number}" for number in range(size)]
        with (folder / f"{name}.csv").open("w", newline="") as lines:
            csv.writer(lines).writerows([("source", "caption"), *((name, caption) for caption in captions)])
        with wds.ShardWriter(f"{folder}/{name}-%03d.tar", maxcount=70, verbose=0) as shards:
            for number, caption in enumerate(captions):
                shards.write({"__key__": f"{number:06d}", "txt": caption})
        equitar.index(equitar.Source(name, f"{folder}/{name}-*.tar"), jobs=1, progress=False)


def train(rank: int, folder: Path) -> None:
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    datasets = {name: Captions(folder / f"{name}.csv") for name in SIZES}
    sampler = equitar.DebiasedBatchSampler(datasets, batch_size=BATCH_SIZE, seed=3)
    whole = ConcatDataset[tuple[str, str]](datasets.values())
    loader = DataLoader[tuple[str, str]](whole, batch_sampler=sampler, num_workers=1, persistent_workers=True)
    sources = [equitar.Source(name, f"{folder}/{name}-*.tar") for name in SIZES]
    shards = equitar.Loader(equitar.debiased(sources, batch_size=BATCH_SIZE, seed=3))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for epoch in range(EPOCHS):
        mine = []
        for (names, captions), of_shards in zip(loader, shards, strict=True):
            model(torch.tensor([[float(len(caption))] for caption in captions])).sum().backward()
            assert set(names) == {of_shards["__source__"]}, "a CSV and shards draw the same source at every step"
            assert len(captions) == len(of_shards["txt"]) == BATCH_SIZE
            mine.append((names[0], sorted(captions)))
        everywhere: list[list[tuple[str, list[str]]]] = [[] for _ in range(distributed.get_world_size())]
        distributed.all_gather_object(everywhere, mine)
        for step in zip(*everywhere, strict=True):
            assert len({name for name, _ in step}) == 1, "all ranks draw the same source"
        seen = [caption for rows in everywhere for _, captions in rows for caption in captions]
        assert len(set(seen)) == len(seen) == len(sampler) * BATCH_SIZE * len(everywhere), "and no caption twice"
        if rank == 0:
            print(f"epoch {epoch}:", " ".join(name for name, _ in mine))
    del model
    gc.collect()  # DistributedDataParallel is in a circle and would hold the group until the process ends
    distributed.destroy_process_group()


def main() -> None:
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
        with tempfile.TemporaryDirectory() as own:
            folders = [own]
            if distributed.get_rank() == 0:
                write(Path(own))
            distributed.broadcast_object_list(folders, src=0)
            train(distributed.get_rank(), Path(folders[0]))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        spawn(train, args=(Path(folder),), nprocs=2)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
