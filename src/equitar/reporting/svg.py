"""SVG plots of a report, which are part of its page: their colors are those of the page, their text is text."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from equitar.arrays import Float64, Int64
from equitar.display import clipped
from equitar.reporting.plots import AFTER, BEFORE, COPIES, DENSE, GRID, INK, SAMPLES, draw_classes, quiet
from equitar.reporting.stats import ClassStats
from equitar.text import counted, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (5.4, 3.3)  # inches: half a page, or all of a phone, with letters that stay readable
_FEW = 16  # classes that get a bar each
_MOST_LETTERS = 80  # of the name of a class in a title
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

    columns = zip(classes.names, classes.samples.tolist(), classes.copies.tolist(), strict=True)
    titles = [
        f"{_title(name)}: {counted(samples, 'sample')}, {copies:,.1f} copies" for name, samples, copies in columns
    ]
    if len(titles) > _FEW:
        return _svg("classes", draw, _of_points(titles, classes.copies))
    bars = {f"{kind}-{number}": [title] for number, title in enumerate(titles) for kind in (SAMPLES, COPIES)}
    return _svg("classes", draw, bars)


def factor_plot(classes: ClassStats) -> str:
    """Return how often a pass has the samples of every class, over its frequency, beside its own factor, as SVG."""
    times, factors = classes.pass_copies / classes.samples, classes.factors
    drawn = times > 0
    order = np.argsort(classes.frequency, kind="stable")

    def draw(axes: Axes) -> None:
        axes.plot(
            classes.frequency[drawn],
            times[drawn],
            ".",
            color=AFTER,
            markersize=4 if len(times) > 100 else 7,
            label="copies of a sample in a pass, mean",
            rasterized=len(times) > DENSE,
            gid=COPIES,
            zorder=3,
        )
        if factors is not None:
            axes.plot(classes.frequency[order], factors[order], color=BEFORE, linewidth=2, label="repeat factor r(c)")
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high = (
            float(times.min(where=drawn, initial=1)),
            float(max(times.max(), 1 if factors is None else factors.max(), 2)),
        )
        axes.set_ylim(0.8 * low, 1.6 * high)
        axes.xaxis.set_major_formatter(_tick_text)
        axes.yaxis.set_major_formatter(_tick_text)
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if high < 10 * low and value in (2, 3, 5) else "")
        axes.set_xlabel("frequency f(c): share of samples with the class")
        axes.set_ylabel("times")
        axes.legend(frameon=False, loc="upper right", labelcolor=INK)

    columns = zip(classes.names, classes.frequency.tolist(), times.tolist(), strict=True)
    titles = [f"{_title(name)}: {share:.3g} of the samples, {copies:.2f} times" for name, share, copies in columns]
    return _svg("factors", draw, _of_points(titles, times))


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

    return _svg("labels", draw, {})


def _tick_text(value: float, _: object) -> str:
    """Return the number at a tick: 0.1, 10, 1k, 2.5M."""
    number, letter = scaled(value)
    return f"{number:g}{letter}"


def _title(name: str) -> str:
    return clipped(" ".join(name.split()), _MOST_LETTERS)


def _of_points(titles: Sequence[str], numbers: Float64) -> dict[str, list[str]]:
    """Return the titles of the points that are drawn, which are those above 0; as pixels, none has a place of its own."""
    return {} if len(titles) > DENSE else {COPIES: [titles[row] for row in np.flatnonzero(numbers > 0).tolist()]}


def _svg(name: str, draw: Callable[[Axes], None], titles: Mapping[str, Sequence[str]]) -> str:
    """Return a drawing as an SVG element whose ids begin with a name, and whose colors are variables of the page.

    Args:
        name: What its ids begin with.
        draw: Draws it.
        titles: What a browser shows of each mark under the pointer, by the id that it was drawn with: a bar, or points in order.
    """
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
    for drawn, texts in titles.items():
        svg = _titled(svg, f'<g id="{name}-{drawn}">', texts)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg height="[^"]*" width="[^"]*"', r"<svg \1", svg, count=1
    )


def _titled(svg: str, group: str, titles: Sequence[str]) -> str:
    """Return a drawing whose group has titles: each of its points, or the group itself if it has none."""
    before, _, rest = svg.partition(group)
    inside, following, after = rest.partition('<g id="')
    elements = [f"<title>{escape(title)}</title>" for title in titles]
    if "<use " in inside:
        points = iter(elements)
        inside = re.sub(r"(<use [^>]*)/>", lambda point: f"{point[1]}>{next(points)}</use>", inside)
        assert next(points, None) is None, "every title has its point"
    else:
        inside = "".join(elements) + inside
    return f"{before}{group}{inside}{following}{after}"
