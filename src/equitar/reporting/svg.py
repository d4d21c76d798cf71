"""SVG plots of a report, which are part of its page: their colors are those of the page, their text is text."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from equitar.arrays import Int64
from equitar.reporting.plots import AFTER, BEFORE, DENSE, GRID, INK, draw_classes, quiet
from equitar.reporting.stats import ClassStats
from equitar.text import scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (5.4, 3.3)  # inches: half a page, or all of a phone, with letters that stay readable
_FEW = 16  # classes that get a bar each
_MOST_LABELS = 30  # of a sample; those with more share a bar
_COLORS = {BEFORE: "var(--before)", AFTER: "var(--after)", INK: "var(--ink)", GRID: "var(--grid)"}
_FONT = "font-family: 'DejaVu Sans'; "
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def class_plot(classes: ClassStats) -> str:
    """Return the samples of every class, rarest first, before and after repeats, as SVG."""

    def draw(axes: Axes) -> None:
        draw_classes(axes, classes, few=_FEW)
        axes.yaxis.set_major_formatter(_tick_text)
        if len(classes.names) > _FEW:
            axes.xaxis.set_major_formatter(_tick_text)

    return _svg("classes", draw)


def factor_plot(classes: ClassStats) -> str:
    """Return how often samples of every class are drawn, over its frequency, beside its own factor, as SVG."""
    times, factors = classes.copies / classes.samples, classes.factors
    order = np.argsort(classes.frequency, kind="stable")

    def draw(axes: Axes) -> None:
        axes.plot(
            classes.frequency,
            times,
            ".",
            color=AFTER,
            markersize=4 if len(times) > 100 else 7,
            label="copies of a sample in an epoch, mean",
            rasterized=len(times) > DENSE,
        )
        if factors is not None:
            axes.plot(classes.frequency[order], factors[order], color=BEFORE, linewidth=2, label="repeat factor r(c)")
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high = float(min(times.min(), 1)), float(max(times.max(), 1 if factors is None else factors.max(), 2))
        axes.set_ylim(0.8 * low, 1.6 * high)
        axes.xaxis.set_major_formatter(_tick_text)
        axes.yaxis.set_major_formatter(_tick_text)
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if high < 10 * low and value in (2, 3, 5) else "")
        axes.set_xlabel("frequency f(c): share of samples with the class")
        axes.set_ylabel("times")
        axes.legend(frameon=False, loc="upper right", labelcolor=INK)

    return _svg("factors", draw)


def label_plot(numbers: Int64) -> str:
    """Return how many samples have 0, 1, 2, ... labels, as SVG; `numbers` are these samples, (most labels + 1,)."""
    shown = numbers[: _MOST_LABELS + 1].copy()
    shown[-1] += numbers[_MOST_LABELS + 1 :].sum()

    def draw(axes: Axes) -> None:
        axes.bar(np.arange(len(shown)), shown, 0.8, color=BEFORE)
        axes.set_xlim(-0.6, max(len(shown), 6) - 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(numbers) > len(shown):
            axes.xaxis.set_major_formatter(
                lambda number, _: f"{number:.0f}+" if number == _MOST_LABELS else f"{number:.0f}"
            )
        axes.yaxis.set_major_formatter(_tick_text)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("labels of a sample")
        axes.set_ylabel("samples")

    return _svg("labels", draw)


def _tick_text(value: float, _: object) -> str:
    """Return the number at a tick: 0.1, 10, 1k, 2.5M."""
    number, letter = scaled(value)
    return f"{number:g}{letter}"


def _svg(name: str, draw: Callable[[Axes], None]) -> str:
    """Return a drawing as an SVG element whose ids begin with a name, and whose colors are variables of the page."""
    # The font ships with matplotlib, and is wider than those of browsers: nothing will overlap.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "equitar", "font.family": "DejaVu Sans"}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # The browser has fonts for every script; matplotlib, which measures the text, does not.
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from font")
        figure = Figure(figsize=_SIZE, dpi=150, layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set_facecolor("none")
        quiet(axes)
        draw(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(_FONT, "")
    for color, variable in _COLORS.items():
        svg = svg.replace(color, variable)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg height="[^"]*" width="[^"]*"', r"<svg \1", svg, count=1
    )
