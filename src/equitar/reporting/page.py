"""The HTML page of a report: one file that loads nothing, with styles and plots in it, and no script.

Names of classes and sources are whatever a label file holds: the template escapes everything, and the page forbids itself to
load or run anything. Each number is in a `<data>` element, whose value is the exact number.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equitar.reporting.balance import GROUP_RANGES, GROUPS, group_of_classes
from equitar.reporting.findings import findings_of
from equitar.reporting.plots import DENSE
from equitar.reporting.report import Report, report_of
from equitar.reporting.stats import ClassStats
from equitar.reporting.text import letters_of
from equitar.sidecars.catalog import Repeat
from equitar.sources import Source
from equitar.text import size_in_words, three_digits

if TYPE_CHECKING:
    from equitar.loading.batches import Batches
    from equitar.reporting.preview import Preview

_STEPS = 240  # of the schedule
_RANKS = 4  # whose schedule is shown, where each has its own
_CLASSES = 12  # rarest, and most repeated ones
_ALL_CLASSES = 2000  # more are no table to read
_MINUS = "\N{MINUS SIGN}"
_COLORS = 30  # of sources, in the style sheet


def report(
    sources: Source | Sequence[Source] | Batches,
    path: str,
    *,
    repeat: Repeat = None,
    labels_shared: bool = False,
    epoch: int = 0,
    num_workers: int = 0,
    command: str | None = None,
) -> Report:
    """Write a page to look at before training: sources, classes, thresholds, schedule, readers, and findings about them.

    Args:
        sources: Indexed sources; or what `debiased`, `mixed` or `exact` returned: then there are steps and readers too. Give
            these `rank` and `world_size` to plan for other ranks than there are.
        path: Where to write the page.
        repeat: As for `debiased`; None repeats nothing, or as batches do.
        labels_shared: As for `debiased`; batches may have it already.
        epoch: Which epoch of batches.
        num_workers: DataLoader workers of each rank.
        command: The command line to show as what made it.

    Returns:
        The numbers on the page.

    Raises:
        SourceError, SidecarError: If shards or sidecars are not as they must be, or repeats find no labels.
        PlanError: If the promises cannot be kept.
        RuntimeError: If jinja2 or matplotlib is not installed.
    """
    require_report()
    numbers = report_of(sources, repeat=repeat, labels_shared=labels_shared, epoch=epoch, num_workers=num_workers)
    page = page_of(numbers, command=command, created=datetime.now(timezone.utc))
    Path(path).write_text(page, encoding="utf-8")
    return numbers


def require_report() -> None:
    """Raise RuntimeError with what to install if a library that a page needs is missing."""
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(
            f"a report needs {' and '.join(missing)}, not installed; run `pip install 'equitar[report]'`"
        )


def page_of(report: Report, *, command: str | None, created: datetime) -> str:
    """Return the page of a report.

    Args:
        report: The numbers.
        command: The command line that made it; None shows none.
        created: When.
    """
    import jinja2  # noqa: PLC0415  (an extra)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("equitar"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(size=size_in_words, short=three_digits, signed=_signed)
    names = [source.name for source in report.stats.sources]
    return environment.get_template("report.html").render(
        report=report,
        findings=findings_of(report),
        planned={source.name: source for source in report.plan.sources} if report.plan else {},
        extra=report.extra_copies(),
        chosen=next((outcome for outcome in report.thresholds if outcome.is_chosen and outcome.copies), None),
        groups=_groups(report.stats.classes),
        letters=dict(zip(names, letters_of(names), strict=True)),
        colors={name: index % _COLORS for index, name in enumerate(names)},
        plots=_plots(report),
        classes=_class_rows(report.stats.classes),
        most_named=DENSE,
        schedules=_schedules(report.plan) if report.plan else [],
        readers=_readers(report.plan) if report.plan else {},
        command=command,
        created=created.strftime("%Y-%m-%d %H:%M UTC"),
        versions=f"equitar {_own_version()}, Python {sys.version.split()[0]}, numpy {np.__version__}",
    )


def _own_version() -> str:
    try:
        return version("equitar")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "(not installed)"


def _plots(report: Report) -> dict[str, Any]:
    """Return the plots that have data, by name."""
    from markupsafe import Markup  # noqa: PLC0415  (comes with jinja2)

    from equitar.reporting import svg  # noqa: PLC0415  (matplotlib is an extra, and slow)

    plots: dict[str, Any] = {"labels": None}
    classes = report.stats.classes
    if classes is not None and classes.names:
        plots["classes"] = Markup(svg.class_plot(classes))  # noqa: S704  (matplotlib escapes names)
        plots["factors"] = Markup(svg.factor_plot(classes))  # noqa: S704
    if report.label_numbers is not None and len(report.label_numbers) > 2:
        plots["labels"] = Markup(svg.label_plot(report.label_numbers))  # noqa: S704
    return plots


def _signed(number: float) -> str:
    """Return a number of extra copies in three digits, with its sign."""
    return "0" if abs(number) < 0.5 else f"{'+' if number > 0 else _MINUS}{three_digits(abs(number))}"


def _groups(classes: ClassStats | None) -> list[tuple[str, str, int]]:
    """Return the name of each group of classes, its range and its number of classes."""
    if classes is None:
        return []
    numbers = np.bincount(group_of_classes(classes.samples), minlength=len(GROUPS)).tolist()
    return list(zip(GROUPS, GROUP_RANGES, numbers, strict=True))


def _class_rows(classes: ClassStats | None) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables of classes, by table: the rarest, then others, so that these share no row, and all."""
    if classes is None or not classes.names:
        return {}
    factors = [None] * len(classes.names) if classes.factors is None else classes.factors.tolist()
    columns = (
        classes.names,
        classes.samples.tolist(),
        classes.frequency.tolist(),
        factors,
        classes.pass_copies.tolist(),
        classes.copies.tolist(),
    )
    rows = [
        {
            "name": name,
            "samples": samples,
            "frequency": frequency,
            "factor": factor,
            "by_repeats": in_pass - samples,
            "by_weights": copies - in_pass,
            "times": copies / samples,
        }
        for name, samples, frequency, factor, in_pass, copies in zip(*columns, strict=True)
    ]
    times = classes.pass_copies / classes.samples
    most = [row for row in np.argsort(-times, kind="stable").tolist() if row >= _CLASSES and times[row] > 1][:_CLASSES]
    extra = classes.copies - classes.samples
    by_extra = np.argsort(-extra, kind="stable").tolist()
    grown = [row for row in by_extra if row >= _CLASSES and row not in most and extra[row] >= 1][:_CLASSES]
    return {
        "rarest": rows[:_CLASSES],
        "most": [rows[row] for row in most],
        "grown": [rows[row] for row in grown],
        "all": rows if _CLASSES < len(rows) <= _ALL_CLASSES else [],
    }


def _schedules(plan: Preview) -> list[list[str]]:
    """Return the name of the source of each of the first steps: once, or for each of the first ranks."""
    names = [source.name for source in plan.sources]
    return [[names[source] for source in steps[:_STEPS].tolist()] for steps in (plan.schedule or ())[:_RANKS]]


def _readers(plan: Preview) -> dict[str, Any]:
    """Return minimum, median and maximum of what consumers read, and the consumers of each rank."""
    ranks: dict[int, list[Any]] = {}
    for consumer in plan.consumers:
        ranks.setdefault(consumer.rank, []).append(consumer)
    columns = {
        name: [getattr(consumer, name) for consumer in plan.consumers]
        for name in ("steps", "shards", "samples", "bytes")
    }
    return {
        "ranks": ranks,
        "summary": {name: (min(each), float(np.median(each)), max(each)) for name, each in columns.items()},
        "most": max(1, *columns["bytes"]),
    }
