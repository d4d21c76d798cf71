"""Is everything odd found, with its number, and nothing else? Each rule on numbers that it is about, and on ordinary ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equitar.planning.repeat_factors import IdOverlap
from equitar.reporting.findings import findings_of
from equitar.reporting.locality import Locality
from equitar.reporting.preview import Consumer, Preview, SourcePreview
from equitar.reporting.report import Report
from equitar.reporting.stats import ClassStats, SourceStats, Stats

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"

STATS = SourceStats(
    name="cc3m", listed="cc3m-{0..19}.tar", summary="ab", shards=20, bytes=10**9, rows=10_000, samples=10_000, labels=10_000,
    classes=3, unlabelled=0, pass_copies=10_000, passes=1, copies=10_000, share_before=0.5, share_after=0.5,
)  # fmt: skip
LOCALITY = Locality("cc3m", 16, 12.0, 19.2, 2.9, 3.0)
TAKEN = SourcePreview(name="cc3m", samples=9_984, batches=39, share=0.5, passes=0.998, remainder=16, most=1)


def report(
    *,
    source: dict[str, Any] | None = None,
    taken: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
    samples: Sequence[int] = (200, 300, 500),
    factors: Sequence[float] | None = (1.2, 1, 1),
    copies: Sequence[float] | None = None,
    without_samples: int = 0,
    repeat: str | None = "threshold 0.1",
    overlap: IdOverlap | None = None,
) -> Report:
    """Return an ordinary report of the sources sbu and cc3m, apart from what is given of cc3m, the plan and the classes."""
    counts = np.array(samples)
    emitted = counts * np.array(factors or 1.0) if copies is None else np.array(copies, np.float64)
    classes = ClassStats(
        names=("rare", "usual", "common"),
        samples=counts,
        frequency=counts / 1000,
        factors=None if factors is None else np.array(factors),
        pass_copies=emitted,
        copies=emitted,
        without_samples=without_samples,
    )
    preview = Preview(
        epoch=0, steps=78, batch_size=64, world_size=4, num_workers=2, plan_workers=2, seed=0, digest="cd",
        sources=(replace(TAKEN, name="sbu"), replace(TAKEN, **(taken or {}))), schedule=None,
        consumers=tuple(Consumer(index // 2, index % 2, 39, 5, 2496, 10**6) for index in range(8)), num_consumers=8, counted_steps=78,
        locality=(LOCALITY,),
    )  # fmt: skip
    return Report(
        stats=Stats(
            sources=(replace(STATS, name="sbu"), replace(STATS, **(source or {}))),
            classes=classes,
            repeat=repeat,
            id_overlap=overlap,
        ),
        plan=replace(preview, **(plan or {})),
        label_numbers=np.array([0, 20_000]),
        thresholds=(),
        arguments=(),
    )


ODD = {
    "never-drawn": (report(plan={"sources": (replace(TAKEN, name="sbu"),)}, source={"pass_copies": 200}), "problem", "has 200 samples"),
    "many-passes": (report(source={"passes": 100.0}), "problem", "cc3m is seen 100.0 times"),
    "part-of-a-pass": (report(source={"passes": 0.12}), "note", "goes through 12.0% of source cc3m"),
    "large-remainder": (report(taken={"remainder": 900}), "look", "9.0% of source cc3m"),
    "few-batches": (report(taken={"batches": 3}), "look", "cc3m is drawn at 3 of 78 steps"),
    "idle-workers": (
        report(plan={"consumers": (Consumer(0, 0, 1, 1, 64, 10), Consumer(0, 1, 0, 0, 0, 0))}),
        "problem",
        "1 of 2 workers read nothing, such as worker 1 of rank 0",
    ),
    "uneven-readers": (
        report(plan={"consumers": (*(Consumer(0, 0, 9, 1, 64, 10) for _ in range(3)), Consumer(1, 0, 9, 1, 64, 40))}),
        "look",
        "worker 0 of rank 1 reads 2.3 times",
    ),
    "local-batches": (
        report(plan={"locality": (LOCALITY._replace(classes=1.2),)}),
        "look",
        "a batch of source cc3m holds 12.0 shards and 1.2 classes, a random draw 19.2 and 3.0",
    ),
    "few-shards": (report(source={"shards": 3}), "note", "8 workers share the shards of cc3m (source cc3m has 3)"),
    "one-rank": (report(plan={"world_size": 1}), "note", "a single rank"),
    "no-plan": (replace(report(), plan=None), "note", "no batch size was given"),
    "no-labels": (report(source={"labels": None}), "look", "1 of 2 sources were indexed without labels: cc3m"),
    "samples-without-labels": (report(source={"unlabelled": 500}), "look", "500 samples of cc3m have no label (5.0%)"),
    "ids-overlap": (report(overlap=IdOverlap(("cc3m", "sbu"), 1, 7)), "look", "id 7 is a different class in each of the sources"),
    "few-samples": (report(samples=(2, 300, 500)), "look", "1 of 3 classes have fewer than 10 samples: rare"),
    "empty-classes": (report(without_samples=7), "look", "7 classes of the vocabulary"),
    "long-tail": (
        report(samples=(10, 300, 5000), factors=(1, 1, 1), repeat=None),
        "note",
        "class common has 500 times the samples of rare",
    ),
    "much-longer": (report(source={"pass_copies": 40_000}), "look", "2.50 times as long: 50,000 samples instead of 20,000"),
    "shifted-shares": (report(source={"pass_copies": 18_000}), "look", "share of source sbu from 50.0% to 35.7%"),
    "nothing-repeated": (report(factors=(1, 1, 1)), "problem", "the rarest, rare, has a frequency of 0.2"),
    "large-factors": (report(factors=(31.6, 1, 1)), "problem", "31.6 times, class rare with 200 samples"),
    "lifted-by-company": (
        report(copies=(240, 300, 1500)),
        "note",
        "common is drawn 3.00 times as often without being repeated itself, as rare classes share its samples; so are 0 others",
    ),
}  # fmt: skip


def test_an_ordinary_report_has_no_findings() -> None:
    assert findings_of(report()) == []


@pytest.mark.parametrize("kind", ODD)
def test_each_kind_is_found_with_its_number(kind: str) -> None:
    odd, level, words = ODD[kind]
    (result,) = [finding for finding in findings_of(odd) if finding.kind == kind][:1]
    assert result.level == level
    assert words in result.text
    assert len(result.todo) > 20


def test_the_worst_comes_first() -> None:
    result = findings_of(report(source={"passes": 100.0, "shards": 3}, taken={"batches": 3}))
    assert [finding.level for finding in result] == ["problem", "look", "note"]


@pytest.mark.parametrize(
    ("odd", "level"),
    [
        (report(source={"passes": 5.0}), "look"),
        (report(factors=(12, 1, 1)), "look"),
        (report(plan={"sources": (replace(TAKEN, name="sbu"),)}), "look"),
        (report(plan={"locality": (LOCALITY._replace(shards=1.0, classes=None, random_classes=None),)}), "look"),
        (report(plan={"locality": (LOCALITY._replace(shards=1.0),)}), "note"),
    ],
)
def test_what_is_less_bad_is_to_be_looked_at(odd: Report, level: str) -> None:
    assert [finding.level for finding in findings_of(odd)] == [level]


def test_many_small_sources_are_one_finding_that_names_what_draws_them() -> None:
    plain = report()
    small = tuple(replace(STATS, name=f"s{number}", pass_copies=10.0 * number) for number in range(1, 6))
    odd = replace(plain, stats=replace(plain.stats, sources=(*plain.stats.sources, *small)))
    (finding,) = [each for each in findings_of(odd) if each.kind == "never-drawn"]
    assert finding.text == (
        "5 sources never drawn: s1, s2, s3 and 2 more; a global batch has 256 samples, a pass of s5 has 50 samples"
    )
    assert 'small_sources="leave_out"` (`--small-sources leave_out`)' in finding.todo
    assert "`mixed` (`--mixed`)" in finding.todo


def test_what_passes_lift_is_not_blamed_on_company() -> None:
    thrice = report(source={"passes": 3.0})
    assert thrice.stats.classes is not None
    classes = replace(thrice.stats.classes, copies=3 * thrice.stats.classes.pass_copies)
    assert findings_of(replace(thrice, stats=replace(thrice.stats, classes=classes))) == []


def test_factors_of_a_function_are_not_judged() -> None:
    assert findings_of(report(factors=None, repeat="by a function")) == []


def test_every_kind_has_its_section_in_the_documentation() -> None:
    titles = [
        line.removeprefix("### ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("### ")
    ]
    assert sorted(titles) == sorted(ODD)
