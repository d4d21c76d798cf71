"""Results show themselves in a few lines, and as tables in notebooks, however many sources and classes there are."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from equitar.benchmarking.result import Bench, Speed
from equitar.display import Overview
from equitar.reporting.preview import Preview, SourcePreview
from equitar.reporting.report import Report
from equitar.reporting.stats import ClassStats, SourceStats, Stats

HOSTILE = "<script>alert(1)</script>\n" + "long" * 100
NAMES = [HOSTILE, *(f"source-{number}" for number in range(999))]
SOURCE = SourceStats(
    name="", listed="x.tar", summary="ab", shards=1, bytes=1, rows=10, samples=10, labels=10, classes=3, unlabelled=0,
    pass_copies=20.0, passes=1.0, copies=20.0, share_before=0.001, share_after=0.001,
)  # fmt: skip
CLASSES = ClassStats(
    names=(HOSTILE, *(f"class-{number}" for number in range(9_999))),
    samples=np.arange(1, 10_001),
    frequency=np.arange(1, 10_001).astype(np.float64) / 1e5,
    factors=np.full(10_000, 2.0),
    pass_copies=np.arange(1, 10_001).astype(np.float64) * 2,
    copies=np.arange(1, 10_001).astype(np.float64) * 2,
    without_samples=0,
)
STATS = Stats(sources=tuple(replace(SOURCE, name=name) for name in NAMES), classes=CLASSES, repeat="threshold 0.1")
PREVIEW = Preview(
    epoch=3, steps=1_000, batch_size=64, world_size=1, num_workers=2, plan_workers=2, seed=0, digest="cd" * 16,
    sources=tuple(
        SourcePreview(name=name, samples=64, batches=1, share=0.001, passes=1.0, remainder=0, most=1) for name in NAMES
    ),
    schedule=(np.arange(1_000),), consumers=(), num_consumers=2, counted_steps=0, locality=(),
)  # fmt: skip
REPORT = Report(stats=STATS, plan=None, label_numbers=np.arange(3), thresholds=(), arguments=())
SPEED = Speed(group="read", name=HOSTILE, is_plain=False, rounds=(1.0, 2.0, 9.0), first=None, bytes=1.0, ratio=None)
BENCH = Bench(
    samples=64, batch_size=8, num_workers=1, cores=2, speeds=(SPEED,) * 100, sources=(), shards=(), busy=None,
    receiving=None, is_remote=False, in_blocks=False, missed=(), refused=None,
)  # fmt: skip
RESULTS = {"stats": STATS, "preview": PREVIEW, "report": REPORT, "bench": BENCH}


class Tables(HTMLParser):
    """The rows of all tables in a page, and the tags that it uses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")


@pytest.mark.parametrize("name", RESULTS)
def test_a_repr_has_a_few_lines_however_much_there_is(name: str) -> None:
    lines = repr(RESULTS[name]).splitlines()
    assert lines[0].startswith(f"{type(RESULTS[name]).__name__}: ")
    assert 2 <= len(lines) <= 20
    assert max(map(len, lines)) <= 200


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_gets_tables_in_which_names_are_only_text(name: str) -> None:
    text = RESULTS[name]._repr_html_()
    page = Tables(text)
    assert page.tags == {"div", "p", "table", "tr", "td", "th"}
    assert len(text) < 8_000
    assert len({len(row) for row in page.rows}) <= 2  # one width for each of two tables


def test_rows_that_are_not_shown_are_counted() -> None:
    lines = repr(STATS).splitlines()
    assert lines[0] == "Stats: 10,000 samples, 20,000 copies in an epoch (repeats by threshold 0.1)"
    assert [line.split()[:3] for line in lines if "more" in line] == [["and", "990", "more"]]
    assert lines[13].split()[:4] == ["rarest", "of", "10,000", "classes"]
    assert "1,000 steps of 64 samples x 1 rank" in repr(PREVIEW)
    assert "2" in repr(BENCH).splitlines()[2].split()


def test_an_overview_says_what_it_is() -> None:
    with pytest.raises(NotImplementedError):
        repr(Overview())
