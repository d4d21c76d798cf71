"""Ids of several sources are different classes unless they are said to be shared; nothing about it is silent."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import escape

from equitar.cli.app import main
from equitar.errors import LabelError
from equitar.indexing.index import index
from equitar.loading.builders import debiased, exact, mixed
from equitar.planning.repeat_factors import (
    ONE,
    ClassCounts,
    RepeatFactor,
    class_factors,
    count_classes,
    id_overlap,
    shared_vocabulary,
)
from equitar.presence import Presence
from equitar.reporting.exporting import export
from equitar.reporting.findings import findings_of
from equitar.reporting.page import page_of
from equitar.reporting.report import report_of
from equitar.reporting.stats import Stats, stats
from equitar.reporting.text import stats_json, stats_text
from equitar.samplers.label_rows import LabelRows
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler
from equitar.sidecars.catalog import catalog_of, supplies_of
from equitar.sources import Source
from helpers.odd_tars import END, member

Rows = Sequence[Sequence[int]]
LEFT: Rows = [[0], [0, 1], [0], [], [0], [2]]
RIGHT: Rows = [[1], [1, 5], [1], [2]]


def write(folder: Path, name: str, rows: Rows, classes: Sequence[str] | None = None) -> Source:
    members = (member(f"{row}.json", json.dumps({"n": labels}).encode()) for row, labels in enumerate(rows))
    (folder / f"{name}.tar").write_bytes(b"".join(members) + END)
    source = Source(name, f"{folder}/{name}.tar")
    index(source, labels="json:n", classes=classes, jobs=1, progress=False)
    return source


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    return [write(tmp_path, "left", LEFT), write(tmp_path, "right", RIGHT)]


def naive(rows: Rows, threshold: float) -> dict[int, float]:
    """Return r(c) over all rows together."""
    labels = {label for row in rows for label in row}
    frequency = {label: sum(label in row for row in rows) / len(rows) for label in labels}
    return {label: max(1.0, (threshold / frequency[label]) ** 0.5) for label in labels}


def classes_of(result: Stats) -> dict[str, tuple[int, float]]:
    assert result.classes is not None
    assert result.classes.factors is not None
    columns = (result.classes.names, result.classes.samples.tolist(), result.classes.factors.tolist())
    return {name: (samples, factor) for name, samples, factor in zip(*columns, strict=True)}


def test_shared_ids_are_the_classes_of_all_rows_together(sources: list[Source]) -> None:
    apart, shared = stats(sources, repeat=0.5), stats(sources, repeat=0.5, labels_shared=True)
    assert len(classes_of(apart)) == 6
    expected = naive([*LEFT, *RIGHT], 0.5)
    assert {name: factor for name, (_, factor) in classes_of(shared).items()} == pytest.approx(
        {str(label): factor for label, factor in expected.items()}, abs=1e-5
    )
    assert {name: samples for name, (samples, _) in classes_of(shared).items()} == {"0": 4, "1": 4, "2": 2, "5": 1}
    total = sum(max((expected[label] for label in row), default=1.0) for row in [*LEFT, *RIGHT])
    assert shared.copies == pytest.approx(total, abs=1e-4)


def test_statistics_and_reports_say_that_ids_overlap_unless_they_are_shared(sources: list[Source]) -> None:
    words = "2 ids, such as 1, are a different class in each of the sources left, right"
    assert words in stats_text(stats(sources))
    assert stats_json(stats(sources))["id_overlap"] == {"sources": ("left", "right"), "ids": 2, "example": 1}
    assert [finding.level for finding in findings_of(report_of(sources)) if finding.kind == "ids-overlap"] == ["look"]
    assert words not in stats_text(stats(sources, labels_shared=True))
    assert stats_json(stats(sources, labels_shared=True))["id_overlap"] is None
    assert "ids-overlap" not in {finding.kind for finding in findings_of(report_of(sources, labels_shared=True))}


NAMES = ("a", "b", "c", "d", "e", "f")
SCOPED = RepeatFactor(0.5, scope="source")


@pytest.mark.parametrize(
    ("named", "repeat", "labels_shared", "words"),
    [
        ("xy", SCOPED, False, "separate: classes are counted in each source alone (scope='source')"),
        ("", 0.5, True, "pooled: an id is the same class in all sources (labels_shared)"),
        ("xyz", 0.5, False, "pooled: classes of one name are counted together over all sources"),
        ("x", None, False, "separate: without class names, an id is a class of its own source alone"),
        ("xz", None, False, "pooled by class name in x, z; separate in y, without class names"),
    ],
)
def test_statistics_and_the_page_say_whether_ids_are_pooled_and_classes_are(
    tmp_path: Path, named: str, repeat: float | RepeatFactor | None, labels_shared: bool, words: str
) -> None:
    sources = [write(tmp_path, name, LEFT, NAMES if name in named else None) for name in "xyz"]
    actual = stats(sources, repeat=repeat, labels_shared=labels_shared)
    assert stats_json(actual)["ids"] == words
    assert f"ids      {words}" in stats_text(actual).splitlines()
    report = report_of(sources, repeat=repeat, labels_shared=labels_shared)
    page = page_of(report, command=None, created=datetime(2026, 5, 1, tzinfo=timezone.utc))
    assert f'<span id="ids">{escape(words)}</span>' in page
    assert actual.classes is not None
    together = {"": 3, "x": 9, "xz": 6, "xy": 6, "xyz": 3}[named]  # classes 0, 1 and 2, of so many sources apart
    assert len(actual.classes.names) == together


def test_of_fewer_than_two_sources_with_labels_nothing_is_said_about_ids(tmp_path: Path) -> None:
    (tmp_path / "bare.tar").write_bytes(member("0.txt", b"a") + END)
    bare = Source("bare", f"{tmp_path}/bare.tar")
    index(bare, jobs=1, progress=False)
    sources = [write(tmp_path, "left", LEFT), bare]
    assert stats_json(stats(sources))["ids"] is None
    assert "ids " not in stats_text(stats(sources))
    page = page_of(report_of(sources), command=None, created=datetime(2026, 5, 1, tzinfo=timezone.utc))
    assert 'id="ids"' not in page


def test_sources_with_class_names_or_other_ids_are_no_finding(tmp_path: Path) -> None:
    named = [write(tmp_path, name, LEFT, classes=("a", "b", "c")) for name in ("n1", "n2")]
    other = write(tmp_path, "other", [[7], [8]])
    for listed in (named, [named[0], write(tmp_path, "left", LEFT)], [write(tmp_path, "right", RIGHT), other], [other]):
        assert stats(listed).id_overlap is None


@pytest.mark.parametrize("build", [debiased, mixed, exact])
def test_builders_join_shared_ids_and_warn_of_others(
    sources: list[Source], caplog: pytest.LogCaptureFixture, build: type
) -> None:
    with caplog.at_level(logging.WARNING, "equitar"):
        apart = build(sources, batch_size=1, repeat=0.5, rank=0, world_size=1)
        apart.plan(0, num_workers=0)
        assert caplog.text.count("such as 1, are a different class in each of the sources left, right") == 1
        caplog.clear()
        shared = build(sources, batch_size=1, repeat=0.5, labels_shared=True, rank=0, world_size=1)
        of_source = RepeatFactor(0.5, scope="source")
        digests = [batches.plan(0, num_workers=0).digest for batches in (apart, shared)]
        build(sources, batch_size=1, repeat=of_source, rank=0, world_size=1).plan(0, num_workers=0)
        build(sources, batch_size=1, rank=0, world_size=1).plan(0, num_workers=0)
    assert not caplog.records
    assert len(set(digests)) == 2
    expected = stats(sources, repeat=0.5, labels_shared=True)
    assert stats(shared).copies == pytest.approx(expected.copies, rel=0.2)
    assert stats(shared, repeat=0.5).id_overlap is None


def test_shared_ids_that_change_no_factor_leave_the_plan_as_it_is(sources: list[Source]) -> None:
    digests = {
        debiased(sources, batch_size=1, labels_shared=shared, rank=0, world_size=1).plan(0).digest
        for shared in (False, True)
    }
    assert len(digests) == 1


def test_an_export_has_the_factors_of_shared_ids(sources: list[Source], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "rows.parquet")
    export(sources, path, repeat=0.5, labels_shared=True, progress=False)
    expected = naive([*LEFT, *RIGHT], 0.5)
    rows = [max((expected[label] for label in row), default=1.0) for row in [*LEFT, *RIGHT]]
    assert parquet.read_table(path)["repeat_factor"].to_pylist() == pytest.approx(rows, abs=1e-5)


def test_the_command_line_shares_ids(sources: list[Source], tmp_path: Path) -> None:
    words = [f"{source.name}={source.urls}" for source in sources]
    apart = CliRunner().invoke(main, ["stats", *words, "--repeat", "0.5"])
    assert "pass --shared-ids" in apart.output
    shared = CliRunner().invoke(main, ["stats", *words, "--repeat", "0.5", "--shared-ids", "--json"])
    assert len(json.loads(shared.output)["classes"]) == 4
    plan = ["plan", *words, "--repeat", "0.5", "--batch-size", "1"]
    assert CliRunner().invoke(main, plan).output != CliRunner().invoke(main, [*plan, "--shared-ids"]).output
    page = CliRunner().invoke(main, ["report", *words, "--repeat", "0.5", "--shared-ids", "-o", f"{tmp_path}/r.html"])
    assert page.exit_code == 0, page.output
    assert "different class" not in page.output


@pytest.mark.parametrize("kind", [RepeatFactorSampler, DebiasedBatchSampler])
def test_samplers_join_shared_ids_and_warn_of_others(caplog: pytest.LogCaptureFixture, kind: type) -> None:
    labels = {"left": LabelRows.of_sets(LEFT), "right": LabelRows.of_sets(RIGHT)}
    with caplog.at_level(logging.WARNING, "equitar"):
        apart = kind(labels, repeat=0.5, batch_size=1, rank=0, world_size=1)
        assert "such as 1, are a different class" in caplog.text
        caplog.clear()
        shared = kind(labels, repeat=0.5, batch_size=1, labels_shared=True, rank=0, world_size=1)
    assert not caplog.records
    expected = naive([*LEFT, *RIGHT], 0.5)
    total = sum(max((expected[label] for label in row), default=1.0) for row in [*LEFT, *RIGHT])
    assert sum(account.copies for account in shared.account()) == pytest.approx(total, abs=2)
    assert shared.account() != apart.account()


def test_names_of_one_source_are_those_of_shared_ids_in_others(tmp_path: Path) -> None:
    named = write(tmp_path, "named", LEFT, classes=("cat", "1", "emu"))
    bare = write(tmp_path, "bare", RIGHT)
    shared = classes_of(stats([named, bare], repeat=0.5, labels_shared=True))
    assert {name: samples for name, (samples, _) in shared.items()} == {"cat": 4, "1": 4, "emu": 2, "5": 1}


def test_an_id_with_two_names_cannot_be_shared(tmp_path: Path) -> None:
    sources = [
        write(tmp_path, "a", LEFT, classes=("cat", "dog", "emu")),
        write(tmp_path, "b", LEFT, classes=("cat", "emu", "dog")),
        write(tmp_path, "bare", RIGHT),
    ]
    assert stats(sources).id_overlap is None
    with pytest.raises(LabelError, match="1 is 'dog' in source 'a' and 'emu' in source 'b'"):
        stats(sources, labels_shared=True)


rows = st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.sampled_from(["lvis", "irfs"]))
def test_factors_of_shared_ids_are_those_of_one_source_with_all_rows(
    parts: list[list[list[int]]], threshold: float, heuristic: str
) -> None:
    factor = RepeatFactor(threshold, heuristic=heuristic)  # type: ignore[arg-type]
    counts = [count_classes([Presence.of(part)], names=None, empty="keep") for part in parts]
    shared = shared_vocabulary({str(number): (count.ids, None) for number, count in enumerate(counts)})
    together = count_classes([Presence.of([row for part in parts for row in part])], names=None, empty="keep")
    (expected,) = class_factors([together], factor)
    for factors in class_factors([count.over(*shared) for count in counts], factor):
        assert shared[0].tolist() == together.ids.tolist()
        assert factors.tolist() == expected.tolist()
    overlap = id_overlap({str(number): count.ids for number, count in enumerate(counts)})
    several = [label for label in range(7) if sum(label in count.ids for count in counts) > 1]
    assert (0 if overlap is None else overlap.ids) == len(several)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=3), st.sampled_from([0.1, 0.5]))
def test_supplies_of_shared_ids_are_those_of_a_naive_count(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[list[int]]], threshold: float
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    sources = [write(folder, f"s{number}", part) for number, part in enumerate(parts)]
    expected = naive([row for part in parts for row in part], threshold)
    for supply, part in zip(supplies_of(catalog_of(sources, labels_shared=True), threshold), parts, strict=True):
        factors = [max((expected[label] for label in row), default=1.0) for row in part]
        assert supply.factors(0) / ONE == pytest.approx(factors, abs=1e-5)


def test_365_classes_of_four_sources_are_joined_at_once() -> None:
    ids = np.arange(365)
    counts = [
        ClassCounts(ids=ids, num_samples=np.arange(1, 366) * number, total=10**6, num_instances=ids + 1)
        for number in range(1, 5)
    ]
    begin = time.perf_counter()
    shared = shared_vocabulary({str(number): (count.ids, None) for number, count in enumerate(counts)})
    assert id_overlap({str(number): count.ids for number, count in enumerate(counts)}) is not None
    class_factors([count.over(*shared) for count in counts], RepeatFactor(0.001))
    assert time.perf_counter() - begin < 0.5
