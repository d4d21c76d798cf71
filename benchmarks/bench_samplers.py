"""What do samplers over large datasets cost? Memory and time of labels, of making a sampler, and of its epoch.

Each row is measured in a process of its own, on labels drawn with a seed and given by a generator, so that nothing but ours is
held: Objects365 has 1.7 million images of 365 classes, LVIS 100,170 of 1,203. "Peak" is the resident size of the process at its
largest, above what Python with its imports takes ("libraries").

    python benchmarks/bench_samplers.py [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from measure import Book, cases_apart, in_own_process, parser_of, peak, print_figures


class Case(NamedTuple):
    """One dataset: its samples, classes, and mean number of different labels of a sample."""

    name: str
    num_samples: int
    num_classes: int
    mean_labels: int


FULL = (Case("objects365", 1_700_000, 365, 6), Case("lvis", 100_170, 1_203, 4))
TINY = (Case("tiny", 3_000, 365, 6),)


def label_sets(case: Case) -> Iterator[list[int]]:
    """Yield long-tailed label sets: class c with a density that falls with c."""
    rng = np.random.default_rng(0)
    for first in range(0, case.num_samples, 10_000):
        lengths = rng.integers(0, 2 * case.mean_labels + 1, min(10_000, case.num_samples - first))
        labels, start = (case.num_classes * rng.random(int(lengths.sum())) ** 4).astype(np.int64).tolist(), 0
        for length in lengths.tolist():
            yield labels[start : start + length]
            start += length


def drawing(case: Case) -> float:
    """Return the seconds that drawing alone takes, to be taken off."""
    begin = time.perf_counter()
    for _ in label_sets(case):
        pass
    return time.perf_counter() - begin


def measured(*words: Any) -> dict[str, float]:
    """Return what one dataset takes in this process."""
    case = Case(*words)
    from equitar.samplers.label_rows import (
        LabelRows,  # before torch: what labels take must not hide below what it takes
    )

    figures, begin = {"libraries MB": peak()}, time.perf_counter()
    rows = LabelRows.of_sets(label_sets(case))
    figures |= {
        "labels s": time.perf_counter() - begin - drawing(case),
        "labels MB": rows.nbytes / 1e6,
        "peak MB": peak(),
    }

    from equitar.samplers.samplers import RepeatFactorSampler

    with_torch, begin = peak(), time.perf_counter()
    sampler = RepeatFactorSampler(rows, 1e-2, rank=0, world_size=8, batch_size=16)
    length = len(sampler)
    figures |= {"sampler s": time.perf_counter() - begin, "sampler peak MB": peak() - with_torch}
    begin = time.perf_counter()
    assert sum(1 for _ in sampler) == length
    return {**figures, "epoch s": time.perf_counter() - begin, "copies": 8 * length}


def main() -> None:
    """Measure every dataset in a process of its own, print a table, and write `bench_samplers.csv`."""
    chosen, book = cases_apart(parser_of("Measure samplers over large datasets."), measured), Book()
    figures_of = {case.name: in_own_process(__file__, *case) for case in (TINY if chosen.tiny else FULL)}
    for name, figures in figures_of.items():
        book.note_all(name, "equitar", figures)
    print_figures("Samplers", figures_of)
    book.write(chosen.out / "bench_samplers.csv")


if __name__ == "__main__":
    main()
