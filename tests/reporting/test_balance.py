"""Is what a threshold brings, as the report says, what a count over plain lists gives?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import log2
from pathlib import Path

import numpy as np
import pytest

from equitar.indexing.index import index
from equitar.reporting.balance import GROUPS, balance_of, group_of_classes
from equitar.reporting.report import report_of
from equitar.sources import Source
from helpers.odd_tars import END, member

Rows = Sequence[Sequence[int]]
SIZES = (1, 10, 11, 40, 100, 101, 150)  # samples of each class: two rare ones, three common ones, two frequent ones


def rows_of(sizes: Sequence[int], first: int = 0) -> list[list[int]]:
    """Return rows with so many samples of each class: neighbours among the classes share one, and three rows have no label."""
    labels = range(first, first + len(sizes))
    shared = [[label, label + 1] for label in labels[:-1]]
    alone = [
        [label]
        for label, size in zip(labels, sizes, strict=True)
        for _ in range(size - sum(label in row for row in shared))
    ]
    return [*alone, *shared, [], [], []]


def write(folder: Path, name: str, rows: Rows) -> Source:
    members = (member(f"{row:04d}.json", json.dumps({"n": [*labels]}).encode()) for row, labels in enumerate(rows))
    (folder / f"{name}.tar").write_bytes(b"".join(members) + END)
    source = Source(name, f"{folder}/{name}.tar")
    index(source, labels="json:n", classes=[f"class {label}" for label in range(9)], jobs=1, progress=False)
    return source


class Naive:
    """What one pass emits at a threshold, counted over all rows."""

    def __init__(self, rows: Rows, threshold: float, cap: float = np.inf) -> None:
        labels = sorted({label for row in rows for label in row})
        samples = {label: sum(label in row for row in rows) for label in labels}
        factor = {label: min(cap, max(1.0, (threshold * len(rows) / samples[label]) ** 0.5)) for label in labels}
        of_rows = [max((factor[label] for label in row), default=1.0) for row in rows]
        copies = {label: sum(r for r, row in zip(of_rows, rows, strict=True) if label in row) for label in labels}
        groups = [
            [label for label in labels if low <= samples[label] <= high]
            for low, high in ((1, 10), (11, 100), (101, 10**9))
        ]
        self.total = sum(of_rows)
        self.times = [
            sum(copies[label] / samples[label] for label in group) / len(group) if group else None for group in groups
        ]
        holds_rare = [any(label in groups[0] for label in row) for row in rows]
        self.rare_share = sum(r for r, rare in zip(of_rows, holds_rare, strict=True) if rare) / self.total
        shares = [number / sum(copies.values()) for number in copies.values()]
        self.bits = -sum(share * log2(share) for share in shares)
        self.evenness = self.bits / log2(len(shares)) if len(shares) > 1 else 1.0
        self.ratio = max(copies.values()) / min(copies.values())


@pytest.mark.parametrize(
    ("parts", "empty"),
    [
        ([rows_of(SIZES)], ()),
        ([rows_of((1, 8, 60)), rows_of((2, 80, 30), first=1)], ()),  # a class counts over both
        ([rows_of((3, 9, 4))], ("common", "frequent")),
        ([[[0]] * 200], ("rare", "common")),
    ],
)
def test_every_threshold_brings_what_a_naive_count_says(
    tmp_path: Path, parts: list[Rows], empty: Sequence[str]
) -> None:
    sources = [write(tmp_path, f"s{number}", part) for number, part in enumerate(parts)]
    together = [row for part in parts for row in part]
    outcomes = report_of(sources, repeat=0.07).thresholds
    assert {outcome.is_chosen for outcome in outcomes} == {True, False}
    for outcome in outcomes:
        assert outcome.threshold is not None
        assert outcome.balance is not None
        expected = Naive(together, outcome.threshold)
        assert outcome.copies == pytest.approx(expected.total, abs=1e-3)
        times = [None if number is None else pytest.approx(number, abs=1e-5) for number in expected.times]
        assert list(outcome.balance.times) == times
        assert [name for name, number in zip(GROUPS, outcome.balance.times, strict=True) if number is None] == [*empty]
        assert outcome.balance.rare_share == pytest.approx(expected.rare_share, abs=1e-6)
        assert outcome.balance.bits == pytest.approx(expected.bits, abs=1e-5)
        assert outcome.balance.evenness == pytest.approx(expected.evenness, abs=1e-5)
        assert outcome.balance.ratio == pytest.approx(expected.ratio, rel=1e-5)


def test_samples_of_rare_classes_are_a_larger_share_and_classes_more_even_the_higher_the_threshold(
    tmp_path: Path,
) -> None:
    rows = [[label] for label, size in enumerate(SIZES) for _ in range(size)]
    balances = [outcome.balance for outcome in report_of([write(tmp_path, "s", rows)]).thresholds]
    assert None not in balances
    for name, sign in (("rare_share", 1), ("bits", 1), ("ratio", -1)):
        numbers = [sign * getattr(balance, name) for balance in balances]
        assert numbers == sorted(numbers)
        assert numbers[0] < numbers[-1]


def test_groups_are_those_of_lvis() -> None:
    names = [GROUPS[group] for group in group_of_classes(np.array([1, 10, 11, 100, 101, 10**6]))]
    assert names == ["rare", "rare", "common", "common", "frequent", "frequent"]


def test_equal_classes_are_even_and_one_class_is_too() -> None:
    equal = balance_of(np.array([5, 5, 5, 5]), np.full(4, 7.0), rare_copies=28.0, total=28.0)
    assert (equal.bits, equal.evenness, equal.ratio, equal.rare_share) == (2.0, 1.0, 1.0, 1.0)
    assert balance_of(np.array([3]), np.array([3.0]), rare_copies=3.0, total=3.0).evenness == 1.0


def test_sources_of_which_no_sample_has_a_label_have_no_balance(tmp_path: Path) -> None:
    assert {outcome.balance for outcome in report_of([write(tmp_path, "s", [[], []])]).thresholds} == {None}
