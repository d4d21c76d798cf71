"""What do samplers over large datasets cost? Memory and time of labels, of making a sampler, and of its epoch.

Each row is measured in a process of its own, on labels drawn with a seed and given by a generator, so that nothing but ours is
held: Objects365 has 1.7 million images of 365 classes, LVIS 100,170 of 1,203. "Peak" is the resident size of the process at its
largest, above what Python with its imports takes ("libraries").

    python benchmarks/bench_samplers.py [--tiny]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """One dataset: its samples, classes, and mean number of different labels of a sample."""

    name: str
    num_samples: int
    num_classes: int
    mean_labels: int


FULL = (Case("objects365", 1_700_000, 365, 6), Case("lvis", 100_170, 1_203, 4))
TINY = (Case("tiny", 3_000, 365, 6),)
COLUMNS = (
    "dataset",
    "libraries MB",
    "labels s",
    "labels MB",
    "peak MB",
    "sampler s",
    "sampler peak MB",
    "epoch s",
    "copies",
)


def label_sets(case: Case) -> Iterator[list[int]]:
    """Yield long-tailed label sets: class c with a density that falls with c."""
    rng = np.random.default_rng(0)
    for first in range(0, case.num_samples, 10_000):
        lengths = rng.integers(0, 2 * case.mean_labels + 1, min(10_000, case.num_samples - first))
        labels, at = (case.num_classes * rng.random(int(lengths.sum())) ** 4).astype(np.int64).tolist(), 0
        for length in lengths.tolist():
            yield labels[at : at + length]
            at += length


def megabytes() -> float:
    """Return the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux


def drawing(case: Case) -> float:
    """Return the seconds that drawing alone takes, to be taken off."""
    begin = time.perf_counter()
    for _ in label_sets(case):
        pass
    return time.perf_counter() - begin


def measure(case: Case) -> dict[str, Any]:
    """Measure one dataset in this process."""
    from equitar.label_presence import LabelRows  # before torch: what labels take must not hide below what it takes

    libraries, begin = megabytes(), time.perf_counter()
    rows = LabelRows.of_sets(label_sets(case))
    labels_seconds, peak = time.perf_counter() - begin - drawing(case), megabytes()

    from equitar.samplers import RepeatFactorSampler

    with_torch, begin = megabytes(), time.perf_counter()
    sampler = RepeatFactorSampler(rows, 1e-2, rank=0, world_size=8, batch_size=16)
    length = len(sampler)
    sampler_seconds, begin = time.perf_counter() - begin, time.perf_counter()
    assert sum(1 for _ in sampler) == length
    epoch_seconds = time.perf_counter() - begin
    figures = (
        libraries,
        labels_seconds,
        rows.nbytes / 1e6,
        peak,
        sampler_seconds,
        megabytes() - with_torch,
        epoch_seconds,
    )
    return dict(zip(COLUMNS, (case.name, *(round(figure, 2) for figure in figures), 8 * length), strict=True))


def main() -> None:
    """Measure every dataset in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description="Measure samplers over large datasets.")
    parser.add_argument("--tiny", action="store_true", help="a size for tests")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(Case(*json.loads(arguments.case)))))
        return
    print(*COLUMNS, sep="\t")
    for case in TINY if arguments.tiny else FULL:
        # Started from this process, which is small: a process counts the memory of the one that started it as its own peak.
        command = [sys.executable, __file__, "--case", json.dumps(case)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        print(*json.loads(ran.stdout).values(), sep="\t")


if __name__ == "__main__":
    main()
