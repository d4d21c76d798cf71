"""Does a browser name the class under the pointer: of each bar and each point, as long as points are no pixels?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from equitar.reporting.page import page_of
from equitar.reporting.plots import DENSE
from equitar.reporting.report import Report
from equitar.reporting.stats import ClassStats, SourceStats, Stats

ODD = ("<b>bold</b>", 'a "quoted" & name', "日本")
TITLED = """([figure, marks]) => [...document.querySelectorAll(`${figure} ${marks}`)].map(mark => {
    mark.closest("svg").scrollIntoView({block: "center"});
    const box = mark.getBoundingClientRect();
    const down = Math.min(box.height / 2, 4);  // a bar on a logarithmic axis goes on below the plot, where it is cut off
    let under = document.elementFromPoint(box.x + box.width / 2, box.y + down);
    while (under && under.tagName !== "svg") {
        const title = [...under.children].find(child => child.tagName === "title");
        if (title) return title.textContent;
        under = under.parentElement;
    }
    return null;
})"""


def report_with(samples: Sequence[int], times: Sequence[float]) -> Report:
    """Return a report of classes with so many samples, each drawn so many times."""
    counts = np.array(samples)
    copies = counts * np.array(times)
    classes = ClassStats(
        names=(*ODD, *(f"class {number}" for number in range(3, len(counts)))),
        samples=counts,
        frequency=counts / 10**9,
        factors=np.maximum(1, np.array(times)),
        pass_copies=copies,
        copies=copies,
        without_samples=0,
    )
    source = SourceStats(
        name="cc3m", listed="x.tar", summary="ab", shards=1, bytes=1, rows=10, samples=10, labels=10, classes=len(counts),
        unlabelled=0, pass_copies=20.0, passes=1.0, copies=20.0, share_before=1.0, share_after=1.0,
    )  # fmt: skip
    stats = Stats(sources=(source,), classes=classes, repeat="threshold 0.1")
    return Report(stats=stats, plan=None, label_numbers=np.array([0, 1]), thresholds=(), arguments=())


def html_of(report: Report) -> str:
    return page_of(report, command=None, created=datetime(2026, 5, 1, tzinfo=timezone.utc))


def titles_under_pointer(browser: Browser, path: Path, report: Report, marks: str, figure: str) -> list[str | None]:
    """Return what a browser shows at each mark."""
    path.write_text(html_of(report), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.goto(path.as_uri())
    titles: list[str | None] = opened.evaluate(TITLED, [figure, marks])
    context.close()
    return titles


def test_bars_have_the_names_of_their_classes(browser: Browser, tmp_path: Path) -> None:
    report = report_with([1, 20, 300, 4000], [2.0, 1.5, 1.0, 3.0])
    numbers = ("1 sample, 2.0", "20 samples, 30.0", "300 samples, 300.0", "4,000 samples, 12,000.0")
    expected = [f"{name}: {words} copies" for name, words in zip((*ODD, "class 3"), numbers, strict=True)]
    for kind in ("samples", "copies"):
        marks = f"[id^=classes-{kind}-] path"
        assert titles_under_pointer(browser, tmp_path / "page.html", report, marks, "figure") == expected


def test_points_have_the_names_of_their_classes(browser: Browser, tmp_path: Path) -> None:
    samples = [2**number for number in range(1, 21)]
    times = [1.0 + number % 3 for number in range(20)]
    times[7] = 0.0  # not drawn: it has no point, and the others keep their names
    report = report_with(samples, times)
    names = [name for number, name in enumerate((*ODD, *(f"class {number}" for number in range(3, 20)))) if number != 7]
    drawn = [(each, number) for each, number in zip(samples, times, strict=True) if number]
    copies = [f"{each:,} samples, {each * number:,.1f} copies" for each, number in drawn]
    shares = [f"{each / 10**9:.3g} of the samples, {number:.2f} times" for each, number in drawn]
    for plot, words in (("classes", copies), ("factors", shares)):
        titles = titles_under_pointer(browser, tmp_path / "page.html", report, f"#{plot}-copies use", "figure")
        assert titles == [f"{name}: {each}" for name, each in zip(names, words, strict=True)]


@pytest.mark.parametrize(("num_classes", "has_names"), [(DENSE, True), (DENSE + 1, False)])
def test_a_page_says_where_points_are_pixels_without_names(num_classes: int, has_names: bool) -> None:
    html = html_of(report_with(range(1, num_classes + 1), np.linspace(3, 1, num_classes).tolist()))
    assert html.count("<use ") >= num_classes or not has_names
    assert len(re.findall(r"<title>[^<]*copies</title>", html)) == (num_classes if has_names else 0)
    assert ("Hover for names." in html) == has_names
    assert ("More than 2,000 points have no names on hover" in html) != has_names
    assert ("<image " in html) != has_names


def test_classes_of_which_nothing_is_drawn_have_bars_with_names_too() -> None:
    report = report_with([1, 20, 300], [0.0, 1.0, 1.0])
    assert report.stats.classes is not None
    stats = replace(report.stats, classes=replace(report.stats.classes, factors=None))
    assert html_of(replace(report, stats=stats)).count("1 sample, 0.0 copies</title>") == 2
