"""What does repeating do, at a glance? Classes by rank, rarest first, and the shares of the sources, before and after.

Rank 1 is the rarest class, so that a logarithmic axis gives its room to the tail, which is what repeats are about.
matplotlib is the extra `plot`; it is imported when a figure is drawn, and no state of pyplot is touched.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from equitar.class_stats import ClassStats, Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEFORE, _AFTER, _INK, _GRID = "#8593a1", "#d1495b", "#27313b", "#e4e8ec"
_FEW = 40  # classes that get a bar each


def require_matplotlib() -> None:
    """Raise RuntimeError with what to install if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError("a plot needs matplotlib, which is not installed; run `pip install 'equitar[plot]'`")


def plot_stats(found: Stats, path: str) -> None:
    """Draw statistics into a file, whose ending (.png, .pdf, .svg) says how.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (an extra, and slow)
    from matplotlib.figure import Figure  # noqa: PLC0415  (as above)

    classes = found.classes if found.classes is not None and found.classes.names else None
    widths = [2.2] * (classes is not None) + [1.0] * (classes is None or len(found.sources) > 1)
    figure = Figure(figsize=(2.4 + 3 * sum(widths), 4.8), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for one in axes:
        _quiet(one)
    if classes:
        _draw_classes(axes[0], classes)
    if len(axes) > 1 or not classes:
        _draw_shares(axes[-1], found)
    repeated = f"repeat: {found.repeat}" if found.repeat else "nothing repeated"
    figure.suptitle(
        f"{found.samples:,} samples, {found.copies:,.0f} emitted in an epoch ({repeated})", color=_INK, fontsize=12
    )
    figure.savefig(path)


def _draw_classes(axes: Axes, classes: ClassStats) -> None:
    """Draw the samples of each class: bars for few classes, lines for many."""
    rank = np.arange(1, len(classes.names) + 1)
    if len(rank) <= _FEW:
        axes.bar(rank - 0.2, classes.samples, 0.4, color=_BEFORE, label="samples")
        axes.bar(rank + 0.2, classes.copies, 0.4, color=_AFTER, label="expected copies in an epoch")
        axes.set_xticks(rank, classes.names, rotation=0 if len(rank) <= 12 else 60, fontsize=8)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(0.4, len(rank) + 0.6)
    else:
        axes.fill_between(rank, classes.samples, classes.copies, color=_AFTER, alpha=0.15, linewidth=0)
        axes.plot(rank, classes.copies, ".", color=_AFTER, markersize=3, label="expected copies in an epoch")
        axes.plot(rank, classes.samples, color=_BEFORE, linewidth=2.5, label="samples")
        axes.set_xscale("log")
        axes.set_xlim(1, len(rank))
    axes.set_yscale("log")
    axes.set_ylim(0.6 * float(classes.samples[0]), 3 * float(max(classes.samples[-1], classes.copies.max())))
    axes.set_xlabel(
        "class, rarest first" if len(rank) <= _FEW else f"rank of the class, rarest first, of {len(rank):,}"
    )
    axes.set_ylabel("samples that contain it")
    if len(rank) <= _FEW:
        axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, loc="upper left", labelcolor=_INK)


def _draw_shares(axes: Axes, found: Stats) -> None:
    """Draw the share of each source, the largest on top."""
    sources = sorted(found.sources, key=lambda one: one.share_before)
    place = np.arange(len(sources))
    for offset, color, shares, label in (
        (0.2, _BEFORE, [one.share_before for one in sources], "of samples"),
        (-0.2, _AFTER, [one.share_after for one in sources], "of what is emitted"),
    ):
        bars = axes.barh(place + offset, shares, 0.36, color=color, label=label)
        axes.bar_label(bars, [f"{share:.1%}" for share in shares], padding=4, fontsize=8, color=_INK)
    axes.set_yticks(place, [one.name for one in sources])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.15 * max(*(max(one.share_before, one.share_after) for one in sources), 0.01))
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of each source")
    axes.grid(visible=False, axis="y")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, labelcolor=_INK, fontsize=9)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.tick_params(colors=_INK)
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(_INK)
