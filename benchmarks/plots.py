"""Draw what was measured: one PNG for each CSV in a folder, medians as bars, from the least to the most of all rounds as a line.

python benchmarks/plots.py [FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

Figures = dict[str, dict[str, dict[str, list[float]]]]  # by metric, case and contender


def read(path: Path) -> Figures:
    """Return the figures of a CSV of `measure.Book`."""
    figures: Figures = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            figures[row["metric"]][row["case"]][row["contender"]].append(float(row["value"]))
    return figures


def draw(figures: Figures, path: Path) -> None:
    """Draw a panel for each metric, with a group of bars for each case."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        len(figures), 1, figsize=(9, 1 + 3 * len(figures)), squeeze=False, layout="constrained"
    )
    for (metric, cases), panel in zip(figures.items(), panels[:, 0], strict=True):
        names = list(dict.fromkeys(name for contenders in cases.values() for name in contenders))
        width = 0.8 / len(names)
        for position, name in enumerate(names):
            groups = [
                (group, contenders[name]) for group, contenders in enumerate(cases.values()) if name in contenders
            ]
            middle = [statistics.median(values) for _, values in groups]
            spread = [
                [median - min(values) for median, (_, values) in zip(middle, groups, strict=True)],
                [max(values) - median for median, (_, values) in zip(middle, groups, strict=True)],
            ]
            places = [group - 0.4 + (position + 0.5) * width for group, _ in groups]
            panel.bar(places, middle, width, yerr=spread, label=name, error_kw={"linewidth": 0.8})
        panel.set_xticks(range(len(cases)), [case.replace(", ", "\n") for case in cases], fontsize="small")
        panel.set_ylabel(metric)
        panel.legend(fontsize="x-small", ncols=2)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Draw every CSV of a folder."""
    parser = argparse.ArgumentParser(description="Draw what the benchmarks wrote.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("benchmarks/out"), help="where the CSVs are")
    mpl.use("Agg")  # no display is needed
    for path in sorted(parser.parse_args().folder.glob("bench_*.csv")):
        draw(read(path), path.with_suffix(".png"))
        print(path.with_suffix(".png"))


if __name__ == "__main__":
    main()
