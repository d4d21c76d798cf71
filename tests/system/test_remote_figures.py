"""How much fails, and what is lost of it? Prints faults injected, samples lost and doubled, and bytes fetched by 8 consumers.

python tests/system/test_remote_figures.py
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import webdataset as wds

import equitar
from equitar.loading.batches import Batches
from equitar.sources import Retries, Source
from helpers.fault_server import FAULTS, Site, serving, site_of
from helpers.shards import as_rank, indexed, write_tars

PATIENT = Retries(patience=30.0, first_wait=0.001, longest_wait=0.01, stall=0.15)


@dataclass(frozen=True)
class Figures:
    """What came of a run.

    Attributes:
        injected: Faults by kind.
        samples: Samples that should come.
        lost: Samples that did not.
        doubled: Samples that came again.
        different: Samples with other bytes than in the local files.
    """

    injected: Counter[str]
    samples: int
    lost: int
    doubled: int
    different: int


def under_faults(folder: Path, *, share: float, seed: int) -> Figures:
    """Read a source through a server that fails in a share of its answers, and compare with the local files."""
    local = indexed(Source("s", write_tars(folder, "s", [100] * 4)))
    draws, lock = random.Random(seed), threading.Lock()

    def chooser(path: str, number: int) -> str | None:
        with lock:
            return draws.choice(FAULTS) if draws.random() < share else None

    def read(source: Source) -> list[tuple[str, bytes, bytes]]:
        batches = equitar.exact([source], batch_size=8, read_ahead=15_000, rank=0, world_size=1)
        return [
            sample for batch in batches for sample in zip(batch["__key__"], batch["txt"], batch["cls"], strict=True)
        ]

    with serving(site_of(folder)) as site:
        site.chooser, site.stall = chooser, 0.3
        remote = Counter(read(Source("s", f"{site.url}/s/{{000..003}}.tar", retries=PATIENT)))
    wanted = Counter(read(local))
    keys = Counter(key for key, _, _ in remote.elements())
    return Figures(
        injected=site.injected,
        samples=wanted.total(),
        lost=len({key for key, _, _ in wanted} - set(keys)),
        doubled=sum(times - 1 for times in keys.values()),
        different=len(set(remote) - set(wanted)),
    )


def transferred(folder: Path, build: Callable[[Source], Batches], *, consumers: int) -> tuple[int, int, int]:
    """Return the bytes that consumers fetch of a source in an epoch, its bytes, and the requests."""
    (folder / "t").mkdir()
    draws = random.Random(0)
    for shard in range(4):
        with wds.TarWriter(str(folder / "t" / f"{shard:03d}.tar"), mtime=0) as writer:
            for row in range(200):
                writer.write(
                    {
                        "__key__": f"{shard}-{row}",
                        "jpg": draws.randbytes(draws.randrange(2000, 30_000)),
                        "cls": row % 10,
                    }
                )
    indexed(Source("t", str(folder / "t" / "*.tar")))
    with serving(site_of(folder)) as site:
        batches = build(Source("t", f"{site.url}/t/{{000..003}}.tar"))
        threads = [
            threading.Thread(target=list, args=(as_rank(batches, rank, consumers),)) for rank in range(consumers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return (*_of_tars(site), sum(times for path, times in site.requests.items() if path.endswith(".tar")))


def _of_tars(site: Site) -> tuple[int, int]:
    tars = [path for path in site.files if path.endswith(".tar")]
    return sum(site.sent[path] for path in tars), sum(len(site.files[path]) for path in tars)


def test_no_sample_is_lost_or_doubled_when_many_answers_fail(tmp_path: Path) -> None:
    figures = under_faults(tmp_path, share=0.5, seed=1)
    print(f"\nfaults injected {figures.injected.total()}: {dict(sorted(figures.injected.items()))}")
    print(f"samples {figures.samples}, lost {figures.lost}, doubled {figures.doubled}, other bytes {figures.different}")
    assert figures.injected.total() > 20
    assert (figures.lost, figures.doubled, figures.different) == (0, 0, 0)


@pytest.mark.parametrize("shuffle", [100, 2000])
@pytest.mark.parametrize("budget", [1 << 20, 128 << 20])
def test_eight_consumers_fetch_about_the_bytes_of_the_shards(tmp_path: Path, shuffle: int, budget: int) -> None:
    def build(source: Source) -> Batches:
        return equitar.debiased([source], batch_size=8, shuffle=shuffle, read_ahead=budget, rank=0, world_size=8)

    fetched, total, requests = transferred(tmp_path, build, consumers=8)
    text = f"{fetched:,} bytes by {requests} requests, shards {total:,} bytes, ratio {fetched / total:.3f}"
    print(f"\n8 consumers, shuffle {shuffle}, read_ahead {budget >> 20} MiB: {text}")
    assert 0.9 * total < fetched < 1.1 * total
