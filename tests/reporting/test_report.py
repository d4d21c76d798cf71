"""Does the page of a report say what `stats` and `preview` say, to a person with any browser, and to nobody else?"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Browser, ConsoleMessage, Error, Request

import equitar
from equitar.cli.app import main
from equitar.indexing.index import index
from equitar.loading.batches import Batches
from equitar.loading.builders import debiased, exact, mixed
from equitar.reporting.page import page_of, require_report
from equitar.reporting.preview import emissions, plan
from equitar.reporting.report import report_of
from equitar.reporting.stats import ClassStats, stats
from equitar.sources import Source
from helpers.odd_tars import END, member

LONG = "a&amp;b' {{ 7*7 }} " + "long" * 50
HOSTILE = ("<script>alert(1)</script>", LONG, "$x_{$", "日本", '"><img src=http://x/ onerror=alert(1)>', "dog")
MINUS = "\N{MINUS SIGN}"
CREATED = datetime(2026, 5, 1, tzinfo=timezone.utc)
ELEMENTS = re.findall(
    r"\w+",
    "html head meta title style body header main section footer nav h1 h2 p ul li a dl dt dd div span i data table caption "
    "thead tbody tr th td figure figcaption details summary pre code svg defs g path use text clippath rect image",
)


class Page(HTMLParser):
    """What a page holds: elements with their attributes, numbers by id, and tables by id, numbers as they were counted."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.numbers: dict[str, str] = {}
        self.findings: list[list[str]] = []  # word and text of each
        self.below: dict[str, str] = {}  # text below each number with an id
        self.text = ""
        self._rows: list[list[str]] = []
        self._named = self._in_tile = ""
        self._in_data = self._in_cell = False
        self._in_finding = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        actual = dict(attrs)
        self.elements.append((tag, actual))
        if actual.get("class") == "level":
            self._in_finding = "level"
        elif tag == "p" and self.findings and len(self.findings[-1]) == 1:
            self._in_finding = "p"
        if tag == "table":
            self._rows = self.tables.setdefault(actual.get("id") or "", [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")
            self._in_cell = True
        elif tag == "dd":
            self._named = actual.get("id") or ""
            self._in_tile = self._named or self._in_tile
        elif tag == "data":
            self._in_data = True
            value = actual["value"] or ""
            if self._named:
                self.numbers[self._named] = value
            elif self._in_cell:
                self._rows[-1][-1] = value

    def handle_endtag(self, tag: str) -> None:
        if tag == "data":
            self._in_data = False
        elif tag == "dd":
            self._named = ""
        elif tag == "div":
            self._in_tile = ""
        elif tag in ("th", "td"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_tile and not self._in_data:
            self.below[self._in_tile] = self.below.get(self._in_tile, "") + data
        if self._in_finding == "level":
            self.findings.append([data])
        elif self._in_finding == "p":
            self.findings[-1].append(data.removesuffix("."))
        self._in_finding = ""
        if self._in_cell and not self._in_data:
            self._rows[-1][-1] += data

    def tile(self, name: str) -> str:
        """Return what stands below a headline number."""
        return self.below.get(name, "")

    def column(self, table: str, name: str) -> list[str]:
        head, *rows = [
            row for row in self.tables[table] if row[0] or len(row) > 3
        ]  # without what stands over the heads
        return [row[head.index(name)] for row in rows]

    def floats(self, table: str, name: str) -> list[float]:
        return [float(value) for value in self.column(table, name)]


def write(
    folder: Path, name: str, shards: Sequence[Sequence[Sequence[int]]], *, labels: str | None = "json:labels"
) -> Source:
    for shard, rows in enumerate(shards):
        members = (member(f"{row:03d}.json", json.dumps({"labels": each}).encode()) for row, each in enumerate(rows))
        (folder / f"{name}-{shard}.tar").write_bytes(b"".join(members) + END)
    source = Source(name, f"{folder}/{name}-{{0..{len(shards) - 1}}}.tar", root=str(folder))
    index(source, labels=labels, classes=HOSTILE if labels else None, jobs=1, progress=False)
    return source


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Two sources with labels: a long tail, and a few samples without any."""
    folder = tmp_path_factory.mktemp("shards")
    left = [[[5], [5, 0]] + [[5]] * 30, [[5, 1, 2], [3], []] + [[5, 3]] * 20]
    right = [[[5, 4]] * 40 + [[4, 2]] * 3 + [[]] * 5]
    return [write(folder, "cc3m", left), write(folder, "sbu", right)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return write(tmp_path_factory.mktemp("bare"), "bare", [[[0]] * 20], labels=None)


def planned(sources: Sequence[Source]) -> Batches:
    return debiased(sources, batch_size=4, repeat=0.2, seed=3, rank=0, world_size=2)


def page(printed: equitar.Batches | Sequence[Source], num_workers: int = 2) -> Page:
    return Page(
        page_of(report_of(printed, epoch=1, num_workers=num_workers), command="equitar report", created=CREATED)
    )


@pytest.fixture(scope="module")
def shown(sources: list[Source]) -> Page:
    """The page of `planned` batches."""
    return page(planned(sources))


def test_sources_are_those_of_stats_and_preview(sources: list[Source], shown: Page) -> None:
    batches = planned(sources)
    actual, planned_epoch = stats(batches), plan(batches, epoch=1, num_workers=2)
    table = "source-table"
    for name in ("shards", "samples", "bytes", "labels", "classes"):
        assert shown.floats(table, name) == [getattr(source, name) for source in actual.sources]
    assert shown.column(table, "source") == [f"{source.name[0]}{source.name}" for source in actual.sources]
    assert shown.floats(table, "global batches") == [source.batches for source in planned_epoch.sources]
    assert shown.floats(table, "emitted") == [source.samples for source in planned_epoch.sources]
    assert shown.floats(table, "share of steps") == [source.share for source in planned_epoch.sources]
    assert shown.floats(table, "passes") == [source.passes for source in planned_epoch.sources]
    assert shown.floats(table, "remainder") == [source.remainder for source in planned_epoch.sources]
    assert shown.floats(table, "most copies") == [source.most for source in planned_epoch.sources]
    by_repeats, by_weights = shown.floats(table, "extra by repeats"), shown.floats(table, "extra by weights")
    in_pass = [source.copies / source.passes for source in actual.sources]
    assert by_repeats == pytest.approx(
        [copies - source.samples for copies, source in zip(in_pass, actual.sources, strict=True)]
    )
    assert by_weights == [0, 0]
    assert (int(shown.numbers["steps"]), int(shown.numbers["global-batch"])) == (planned_epoch.steps, 8)
    assert int(shown.numbers["emitted"]) == sum(source.samples for source in planned_epoch.sources)
    assert planned_epoch.digest in shown.text


def test_classes_are_those_of_stats(sources: list[Source], shown: Page) -> None:
    classes = stats(planned(sources)).classes
    assert classes is not None
    assert classes.factors is not None
    assert shown.column("rarest", "class") == list(classes.names)
    assert shown.floats("rarest", "samples") == classes.samples.tolist()
    assert shown.floats("rarest", "frequency") == classes.frequency.tolist()
    assert shown.floats("rarest", "factor") == classes.factors.tolist()
    assert shown.floats("rarest", "extra by repeats") == (classes.pass_copies - classes.samples).tolist()
    assert shown.floats("rarest", "times") == (classes.copies / classes.samples).tolist()
    assert int(shown.numbers["classes-with-samples"]) == len(classes.names)


def test_readers_are_those_of_preview(sources: list[Source], shown: Page) -> None:
    planned_epoch = plan(planned(sources), epoch=1, num_workers=2)
    assert [[int(cell) for cell in row] for row in shown.tables["reader-table"][1:]] == [
        [*consumer] for consumer in planned_epoch.consumers
    ]
    summary = {row[0]: [float(cell) for cell in row[1:]] for row in shown.tables["reader-summary"][1:]}
    for name, numbers in summary.items():
        each = [getattr(consumer, name) for consumer in planned_epoch.consumers]
        assert numbers == [min(each), np.median(each), max(each)]


@pytest.mark.parametrize("repeat", [None, 0.2])
def test_extra_copies_by_weights_stand_apart_from_those_by_repeats(sources: list[Source], repeat: float | None) -> None:
    batches = debiased(
        sources, batch_size=2, repeat=repeat, weights={"cc3m": 1, "sbu": 4}, steps=30, seed=3, rank=0, world_size=2
    )
    shown, table = page(batches), "source-table"
    emitted = Counter(emission.source for emission in emissions(batches, epoch=1))
    by_weights, left_out = shown.floats(table, "extra by weights"), shown.floats(table, "remainder")
    by_repeats = [source.copies - source.samples for source in stats(sources, repeat=repeat).sources]
    assert shown.floats(table, "extra by repeats") == pytest.approx(by_repeats)
    assert (sum(by_repeats) > 0) == (repeat is not None)
    assert by_weights[0] < 0 < by_weights[1]
    for source, *numbers in zip(sources, shown.floats(table, "samples"), by_repeats, by_weights, left_out, strict=True):
        samples, repeats, weights, remainder = numbers
        assert emitted[source.name] == pytest.approx(samples + repeats + weights - remainder, abs=1)
    assert ("by repeats" in shown.tile("emitted")) == (repeat is not None)
    assert f"{'+' if sum(by_weights) > 0 else MINUS}{abs(round(sum(by_weights)))} by weights" in shown.tile("emitted")


def test_extra_copies_of_classes_by_weights_are_those_of_more_than_one_pass(sources: list[Source], shown: Page) -> None:
    assert "extra by weights" not in shown.tables["rarest"][0]
    batches = debiased(sources, batch_size=2, repeat=0.2, weights={"cc3m": 1, "sbu": 4}, steps=30, rank=0, world_size=2)
    weighted, actual = page(batches), stats(batches)
    passes = {source.name: source.passes for source in actual.sources}
    in_pass = stats(sources, repeat=0.2).classes
    assert in_pass is not None
    of_sbu = HOSTILE[4]  # samples of sbu alone have it
    copies = in_pass.copies[in_pass.names.index(of_sbu)]
    row = weighted.column("rarest", "class").index(of_sbu)
    assert weighted.floats("rarest", "extra by weights")[row] == pytest.approx(copies * (passes["sbu"] - 1))
    for name in ("extra by repeats", "samples", "factor"):
        assert weighted.floats("rarest", name) == shown.floats("rarest", name)


def many_classes(num_classes: int, rng: np.random.Generator) -> ClassStats:
    samples = np.sort(rng.integers(1, 3000, num_classes))
    in_pass = samples * rng.uniform(1, 4, num_classes)
    return ClassStats(
        names=tuple(f"class {number}" for number in range(num_classes)),
        samples=samples,
        frequency=samples / samples.sum(),
        factors=np.ones(num_classes),
        pass_copies=in_pass,
        copies=in_pass,
        without_samples=0,
    )


@pytest.mark.parametrize("num_classes", [6, 12, 13, 20, 40, 200])
def test_tables_of_classes_share_no_row(sources: list[Source], num_classes: int) -> None:
    classes = many_classes(num_classes, np.random.default_rng(num_classes))
    actual = report_of(sources, repeat=0.2)
    changed = replace(actual, stats=replace(actual.stats, classes=classes))
    shown = Page(page_of(changed, command=None, created=CREATED))
    rows = {name: shown.column(name, "class") for name in ("rarest", "most-repeated", "grown") if name in shown.tables}
    together = [name for names in rows.values() for name in names]
    assert len(together) == len(set(together)) == min(num_classes, 36)
    names, times, extra = classes.names, classes.copies / classes.samples, classes.copies - classes.samples
    assert rows["rarest"] == [*names[:12]]
    others = set(range(12, num_classes))
    most = sorted(others, key=lambda row: -times[row])[:12]
    assert rows.get("most-repeated", []) == [names[row] for row in most]
    assert rows.get("grown", []) == [names[row] for row in sorted(others - {*most}, key=lambda row: -extra[row])[:12]]


def test_the_strip_is_the_schedule(sources: list[Source], shown: Page) -> None:
    titles = [actual["title"] for tag, actual in shown.elements if tag == "i" and "title" in actual]
    names = planned(sources).sources(1)
    assert names is not None
    assert titles == [f"step {step}: {name}" for step, name in enumerate(names)]


def test_thresholds_are_what_stats_and_plans_with_them_say(sources: list[Source], shown: Page) -> None:
    table = "threshold-table"
    thresholds = [word.split()[0] for word in shown.column(table, "threshold")]
    assert thresholds[0] == "no"
    assert {"median", "0.2", "1"} <= set(thresholds)
    extra, steps = shown.floats(table, "extra copies"), shown.floats(table, "steps")
    for number, word in enumerate(thresholds):
        how = equitar.RepeatFactor("median" if word == "median" else 0 if word == "no" else float(word))
        classes = stats(sources, repeat=how).classes
        assert classes is not None
        assert classes.factors is not None
        assert extra[number] == pytest.approx(stats(sources, repeat=how).copies - stats(sources).samples, abs=1e-4)
        assert steps[number] == len(debiased(sources, batch_size=4, repeat=how, rank=0, world_size=2))
        assert shown.floats(table, "classes repeated")[number] == (classes.factors > 1).sum()
        assert shown.floats(table, "largest factor")[number] == classes.factors.max()
    assert [outcome.is_chosen for outcome in report_of(planned(sources)).thresholds] == [
        word == "0.2" for word in thresholds
    ]


def test_names_are_text_whatever_they_hold(shown: Page) -> None:
    assert {tag for tag, _ in shown.elements} <= set(ELEMENTS)
    assert set(HOSTILE) == set(shown.column("rarest", "class"))
    assert not [name for _, actual in shown.elements for name in actual if name.startswith("on")]


def test_the_name_of_a_source_is_text_too(tmp_path: Path) -> None:
    name = "\"'><b onclick=alert(1)>$_{"
    (tmp_path / "x").mkdir()
    source = replace(write(tmp_path / "x", "x", [[[0]] * 20]), name=name)
    shown = page(debiased([source, write(tmp_path, "y", [[[0]] * 20])], batch_size=4, rank=0, world_size=1))
    assert "b" not in {tag for tag, _ in shown.elements}
    assert shown.column("source-table", "source") == [f'"{name}', "yy"]
    assert {f"step {step}: {name}" for step in range(10)} & {actual.get("title") for _, actual in shown.elements}


def test_the_page_names_nothing_to_load(shown: Page) -> None:
    loads = [
        actual[name] for _, actual in shown.elements for name in ("src", "href", "xlink:href", "data") if name in actual
    ]
    assert all(link is not None and link.startswith(("#", "data:image/png")) for link in loads)
    ids = [actual["id"] for _, actual in shown.elements if "id" in actual]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in loads if link and link.startswith("#")} <= set(ids)
    policies = [
        actual["content"] for _, actual in shown.elements if actual.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_the_same_report_is_the_same_page_and_needs_no_tar(sources: list[Source], tmp_path: Path) -> None:
    whole = page_of(report_of(planned(sources)), command=None, created=CREATED)
    for path in Path(str(sources[0].root)).iterdir():
        if path.suffix != ".tar":
            shutil.copy(path, tmp_path)
    moved = [
        replace(source, root=str(tmp_path), urls=str(source.urls).replace(str(source.root), str(tmp_path)))
        for source in sources
    ]
    away = page_of(report_of(planned(moved)), command=None, created=CREATED)
    assert away == whole.replace(str(sources[0].root), str(tmp_path))


def test_sources_without_labels_have_a_page_without_classes(bare: Source) -> None:
    shown = page(debiased([bare], batch_size=4, rank=0, world_size=1))
    assert "No source was indexed with labels" in shown.text
    assert not {"rarest", "threshold-table"} & set(shown.tables)
    assert not [tag for tag, _ in shown.elements if tag == "svg"]
    assert shown.floats("source-table", "samples") == [20]


def test_a_source_without_labels_beside_others_leaves_steps_of_thresholds_out(
    sources: list[Source], bare: Source
) -> None:
    shown = page(debiased([*sources, bare], batch_size=4, rank=0, world_size=1))
    steps = shown.column("threshold-table", "steps")
    assert int(steps[0]) == int(shown.numbers["steps"])
    assert set(steps[1:]) == {"\N{EN DASH}"}


def test_samples_without_any_label_have_a_page_without_curves(tmp_path: Path) -> None:
    shown = page([write(tmp_path, "empty", [[[]] * 9])])
    assert "No sample has a label." in shown.text
    assert not [tag for tag, _ in shown.elements if tag == "svg"]


def test_ranks_that_draw_apart_have_a_strip_each(sources: list[Source]) -> None:
    batches = debiased(sources, batch_size=2, same_source_across="rank", rank=0, world_size=6)
    actual = page(batches)
    strips = [element.get("aria-label") for _, element in actual.elements if element.get("class") == "strip"]
    assert strips == [f"Sources of the first {len(batches)} steps of rank {rank}" for rank in range(4)]
    assert "on the first 4 of 6 ranks" in actual.text


@pytest.mark.parametrize("build", [mixed, exact])
def test_other_batches_have_a_page_too(sources: list[Source], build: Callable[..., Batches]) -> None:
    batches = build(sources, batch_size=4, rank=0, world_size=2)
    shown = page(batches)
    assert int(shown.numbers["steps"]) == len(batches)
    assert "Every batch holds all sources" in shown.text


def test_sources_alone_have_a_page_without_steps(sources: list[Source], tmp_path: Path) -> None:
    actual = equitar.report(sources, str(tmp_path / "report.html"), repeat=0.2)
    shown = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert actual.plan is None
    assert float(shown.numbers["emitted"]) == pytest.approx(actual.stats.copies)
    assert "steps" not in shown.numbers
    assert "reader-table" not in shown.tables


@pytest.mark.parametrize("num_classes", [1203, 21_000])
def test_pages_of_many_classes_and_sources_stay_small(sources: list[Source], num_classes: int) -> None:
    samples = np.arange(1, num_classes + 1) ** 2
    classes = ClassStats(
        names=tuple(f"a name of usual length {label}" for label in range(num_classes)),
        samples=samples,
        frequency=samples / samples.sum(),
        factors=np.sqrt(samples.max() / samples),
        pass_copies=np.asarray(samples * 1.7 + np.arange(num_classes) % 13, np.float64),
        copies=np.asarray(samples * 1.7 + np.arange(num_classes) % 13, np.float64),
        without_samples=0,
    )
    actual = report_of(planned(sources))
    many = [replace(source, name=f"source {number}") for number in range(25) for source in actual.stats.sources]
    actual = replace(actual, plan=None, stats=replace(actual.stats, classes=classes, sources=tuple(many)))
    assert len(page_of(actual, command=None, created=CREATED).encode()) < 1_500_000


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["report", *words])


def test_the_command_writes_the_page_and_tells_the_findings(sources: list[Source], tmp_path: Path) -> None:
    output = str(tmp_path / "report.html")
    words = [f"{source.name}={source.urls}" for source in sources]
    options = [
        "--root",
        str(sources[0].root),
        "--batch-size",
        "4",
        "--world-size",
        "2",
        "--seed",
        "3",
        "--repeat",
        "0.2",
    ]
    result = run(*words, *options, "-o", output)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == f"written  {output}"
    assert "look     3 of 6 classes have fewer than 10 samples" in result.output
    shown = Page(Path(output).read_text(encoding="utf-8"))
    assert [finding.split(maxsplit=1) for finding in result.output.splitlines()[:-1]] == shown.findings
    assert plan(planned(sources)).digest in shown.text
    assert f"--batch-size 4 --world-size 2 --seed 3 --repeat 0.2 -o {output}" in " ".join(shown.text.split())


def test_a_command_shows_no_secret(sources: list[Source], tmp_path: Path) -> None:
    from equitar.cli.inspection import _command
    from equitar.cli.plan_options import PlanOptions

    printed = _command(PlanOptions(), ["a=https://me:secret@host/x.tar?sig=abc"] * 9, None, None, "o.html")
    assert printed == "equitar report " + "a=https://host/x.tar " * 8 + "... -o o.html"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=x.tar"], "Missing option '-o'"),
        (["a=x.tar", "-o", "x.html", "--world-size", "2"], "`--world-size` needs `--batch-size`"),
        (["a=x.tar", "-o", "x.html", "--cap", "2"], "`--cap` needs `--repeat`"),
        (["a=x.tar", "-o", "x.html", "--batch-size", "2", "--weights", "x"], "must be name=number"),
        (["nothing", "-o", "x.html"], "must be name=urls"),
    ],
)
def test_what_a_user_gets_wrong_is_told(words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit), result.exception
    assert message in " ".join(result.output.split())


def test_a_report_without_its_libraries_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match=r"needs jinja2 and matplotlib.*pip install 'equitar\[report\]'"):
        require_report()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_browser_shows_all_of_it_and_asks_for_nothing(
    browser: Browser, sources: list[Source], bare: Source, tmp_path: Path, width: int, labelled: bool
) -> None:
    batches = planned(sources) if labelled else debiased([bare], batch_size=4, rank=0, world_size=1)
    equitar.report(batches, str(tmp_path / "report.html"), epoch=1, num_workers=2)
    context = browser.new_context(viewport={"width": width, "height": 900})
    opened, requests, messages = context.new_page(), list[str](), list[str]()

    def on_request(request: Request) -> None:
        requests.append(request.url)

    def on_console(message: ConsoleMessage) -> None:
        messages.append(message.text)

    def on_error(error: Error) -> None:
        messages.append(str(error))

    opened.on("request", on_request)
    opened.on("console", on_console)
    opened.on("pageerror", on_error)
    url = (tmp_path / "report.html").as_uri()
    opened.goto(url)
    assert requests == [url]
    assert messages == []
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    overflowing = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg') && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML)"
    assert opened.evaluate(overflowing) == []
    sections = [
        "findings",
        "sources",
        "classes",
        *(["thresholds"] if labelled else []),
        "schedule",
        "readers",
        "origin",
    ]
    assert [element.get_attribute("id") for element in opened.locator("h2").all()] == sections
    assert all(element.is_visible() for element in opened.locator("h2, #source-table, #reader-summary").all())
    plots = [element.bounding_box() for element in opened.locator("figure svg").all()]
    assert len(plots) == (3 if labelled else 0)
    assert all(box is not None and box["width"] > 300 and box["height"] > 150 for box in plots)
    named = opened.locator("[role=img]").evaluate_all("all => all.map(element => element.getAttribute('aria-label'))")
    assert all(len(name) > 20 for name in named)
    opened.emulate_media(media="print")
    opened.set_viewport_size({"width": 720, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") == 720  # nothing is cut off on paper
    context.close()


def test_plots_have_the_colors_of_a_dark_page(browser: Browser, sources: list[Source], tmp_path: Path) -> None:
    equitar.report(sources, str(tmp_path / "report.html"), repeat=0.2)
    context = browser.new_context(color_scheme="dark")
    opened = context.new_page()
    opened.goto((tmp_path / "report.html").as_uri())
    ink = opened.evaluate("getComputedStyle(document.body).color")
    fills = opened.locator("figure svg text").evaluate_all("all => all.map(text => getComputedStyle(text).fill)")
    assert set(fills) == {ink}
    assert "rgb(0, 0, 0)" not in opened.locator("figure svg use").evaluate_all(
        "all => all.map(mark => getComputedStyle(mark).stroke)"
    )
    context.close()


BROKEN_WORDS = """[...document.querySelectorAll('thead th')].flatMap(head => {
    const text = head.firstChild;
    return [...text.data.matchAll(/\\S+/g)].filter(word => {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        return range.getClientRects().length > 1;
    }).map(word => word[0]);
})"""


@pytest.mark.parametrize("width", [1280, 390])
def test_heads_of_tables_are_broken_between_words_only(
    browser: Browser, sources: list[Source], tmp_path: Path, width: int
) -> None:
    equitar.report(planned(sources), str(tmp_path / "report.html"), num_workers=2)
    context = browser.new_context(viewport={"width": width, "height": 900})
    opened = context.new_page()
    opened.goto((tmp_path / "report.html").as_uri())
    assert opened.locator("thead th").count() > 30
    assert opened.evaluate(BROKEN_WORDS) == []
    context.close()
