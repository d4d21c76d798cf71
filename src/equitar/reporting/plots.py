"""Plots of statistics: samples of classes by rank, rarest first, and the shares of the sources, before and after repeats.

Rank 1 is the rarest class, so that a logarithmic axis gives most room to the tail, which is what repeats change.
matplotlib is the extra `plot`; it is imported when a figure is drawn, and no state of pyplot is touched.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from equitar.reporting.stats import ClassStats, Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEFORE, AFTER, INK, GRID = "#8593a1", "#d1495b", "#27313b", "#e4e8ec"
SAMPLES, COPIES = "samples", "copies"  # ids of what is drawn of classes
DENSE = 2000  # from so many points on, they are drawn as pixels
_FEW = 40  # classes that get a bar each
_LONG = 18  # letters of a name
_LETTERS = 90  # of all names that stand side by side


def require_matplotlib() -> None:
    """Raise RuntimeError with what to install if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError("a plot needs matplotlib, which is not installed; run `pip install 'equitar[plot]'`")


def plot_stats(stats: Stats, path: str) -> None:
    """Draw statistics into a file, whose suffix (.png, .pdf, .svg) is its format.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (an extra, and slow)
    from matplotlib.figure import Figure  # noqa: PLC0415  (as above)

    classes = stats.classes if stats.classes is not None and stats.classes.names else None
    widths = [2.2] * (classes is not None) + [1.0] * (classes is None or len(stats.sources) > 1)
    figure = Figure(figsize=(2.4 + 3 * sum(widths), 4.8), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for axis in axes:
        quiet(axis)
    if classes:
        draw_classes(axes[0], classes)
    if len(axes) > 1 or not classes:
        _draw_shares(axes[-1], stats)
    repeated = f"repeat: {stats.repeat}" if stats.repeat else "nothing repeated"
    figure.suptitle(
        f"{stats.samples:,} samples, {stats.copies:,.0f} emitted in an epoch ({repeated})", color=INK, fontsize=12
    )
    figure.savefig(path)


def draw_classes(axes: Axes, classes: ClassStats, *, few: int = _FEW) -> None:
    """Draw the samples of each class: a bar each for up to `few` classes, lines for more."""
    rank = np.arange(1, len(classes.names) + 1)
    if len(rank) <= few:
        before = axes.bar(rank - 0.2, classes.samples, 0.4, color=BEFORE, label="samples")
        after = axes.bar(rank + 0.2, classes.copies, 0.4, color=AFTER, label="expected copies in an epoch")
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            left.set_gid(f"{SAMPLES}-{number}")
            right.set_gid(f"{COPIES}-{number}")
        names = [name if len(name) <= _LONG else f"{name[: _LONG - 1]}…" for name in classes.names]
        upright = len(rank) * max(map(len, names)) <= _LETTERS
        axes.set_xticks(rank, names, rotation=0 if upright else 60, fontsize=8, parse_math=False)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(0.4, len(rank) + 0.6)
    else:
        dense = len(rank) > DENSE  # as paths these would be megabytes
        label = "expected copies in an epoch"
        size = 3 if len(rank) > 100 else 6
        drawn = classes.copies > 0
        axes.plot(
            rank[drawn],
            classes.copies[drawn],
            ".",
            color=AFTER,
            markersize=size,
            label=label,
            rasterized=dense,
            gid=COPIES,
            zorder=3,
        )
        axes.plot(rank, classes.samples, color=BEFORE, linewidth=2.5, label="samples")
        axes.set_xscale("log")
        axes.set_xlim(0.95, 1.05 * len(rank))
    axes.set_yscale("log")
    fewest = float(min(classes.samples[0], classes.copies.min(where=classes.copies > 0, initial=np.inf)))
    axes.set_ylim(0.6 * fewest, 3 * float(max(classes.samples[-1], classes.copies.max())))
    axes.set_xlabel("class, rarest first" if len(rank) <= few else f"rank of the class, rarest first, of {len(rank):,}")
    axes.set_ylabel("samples that contain it")
    if len(rank) <= few:
        axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, loc="upper left", labelcolor=INK)


def _draw_shares(axes: Axes, stats: Stats) -> None:
    """Draw the share of each source, the largest on top."""
    sources = sorted(stats.sources, key=lambda source: source.share_before)
    place = np.arange(len(sources))
    for offset, color, shares, label in (
        (0.2, BEFORE, [source.share_before for source in sources], "of samples"),
        (-0.2, AFTER, [source.share_after for source in sources], "of what is emitted"),
    ):
        bars = axes.barh(place + offset, shares, 0.36, color=color, label=label)
        axes.bar_label(bars, [f"{share:.1%}" for share in shares], padding=4, fontsize=8, color=INK)
    axes.set_yticks(place, [source.name for source in sources], parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.15 * max(*(max(source.share_before, source.share_after) for source in sources), 0.01))
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of each source")
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, labelcolor=INK, fontsize=9)


def quiet(axes: Axes) -> None:
    """Reduce the axes to thin grey lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.tick_params(which="both", colors=INK)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
