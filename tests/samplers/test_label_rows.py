"""Label rows from everything that has labels: all ways to the same rows, nothing counted twice, and little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equitar
from equitar.errors import LabelError, SidecarError
from equitar.presence import Presence
from equitar.samplers.label_files import labels_from_file, labels_from_sidecars
from equitar.samplers.label_rows import LabelPresence, LabelRows, rows_of
from helpers.shards import rare_first, write_source, write_tars

label_sets = st.lists(st.lists(st.integers(0, 300), max_size=8), max_size=40)


def plainly(rows: LabelRows) -> list[dict[int, int]]:
    """Return for each row its labels with how often they occur."""
    counts = []
    for part in rows.parts():
        for row in range(part.num_rows):
            span = slice(part.indptr[row], part.indptr[row + 1])
            counts.append(dict(zip(part.ids[span].tolist(), part.counts[span].tolist(), strict=True)))
    return counts


@given(rows=label_sets)
def test_all_ways_lead_to_the_same_rows(rows: list[list[int]]) -> None:
    naive = [dict(Counter(row)) for row in rows]
    dense = np.zeros((len(rows), 301), np.uint8)
    for index, row in enumerate(rows):
        np.add.at(dense[index], row, 1)
    matrix = pytest.importorskip("scipy.sparse").csr_matrix(dense)
    flat = [label for row in rows for label in row]
    ends = np.cumsum([0, *map(len, rows)])
    ways = {
        "sets": LabelRows.of_sets(rows),
        "generator": LabelRows.of_sets(iter(row) for row in rows),
        "numpy CSR, unsorted and repeated": LabelRows.of_csr(ends, np.array(flat, np.int32)),
        "scipy": LabelRows.of_csr(matrix.indptr, matrix.indices, matrix.data),
        "dense": LabelRows.of_dense(dense),
        "chunks": LabelRows.of_dense(dense[first : first + 3] for first in range(0, len(dense), 3)),
    }
    for way, rows_again in ways.items():
        assert plainly(rows_again) == naive, way
        assert len(rows_again) == len(rows)
        assert rows_of(rows_again, way) is rows_again
    present = LabelRows.of_dense(dense > 0)
    assert plainly(present) == [dict.fromkeys(row, 1) for row in naive]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), max_size=40), st.data())
def test_rows_from_pairs_are_those_counted_one_by_one(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(1, 9), min_size=len(pairs), max_size=len(pairs)))
    naive: list[Counter[int]] = [Counter() for _ in range(10)]
    for (row, label), often in zip(pairs, times, strict=True):
        naive[row][label] += often
    row_of, ids = (np.array(column, np.int64) for column in (zip(*pairs, strict=True) if pairs else ([], [])))
    presence = Presence.of_entries(row_of, ids, np.array(times, np.int64), num_rows=10)
    as_dicts = [
        dict(
            zip(
                presence.labels(row).tolist(),
                presence.counts[presence.indptr[row] : presence.indptr[row + 1]].tolist(),
                strict=True,
            )
        )
        for row in range(10)
    ]
    assert as_dicts == [dict(sorted(counts.items())) for counts in naive]
    mask = np.arange(10) % 3 > 0
    kept = presence.kept(mask)
    assert [kept.labels(row).tolist() for row in range(kept.num_rows)] == [
        presence.labels(row).tolist() for row in range(10) if mask[row]
    ]


def test_rows_go_over_many_blocks() -> None:
    rows = [[row % 7] * (row % 3) for row in range(40_000)]
    assert plainly(LabelRows.of_sets(rows)) == [dict(Counter(row)) for row in rows]
    assert LabelRows.of_sets(rows).nbytes < 40_000 * 3


@pytest.mark.parametrize("absent", [0, -1, 0.5])
def test_values_below_one_are_absent(absent: float) -> None:
    assert plainly(LabelRows.of_dense(np.array([[absent, 1, 2]]))) == [{1: 1, 2: 2}]
    assert plainly(LabelRows.of_csr([0, 2], [4, 6], np.array([absent, 3]))) == [{6: 3}]


@pytest.mark.parametrize("wrong", [True, 1.0, "cat", None])
def test_what_is_no_label_is_named_with_its_row(wrong: Any) -> None:
    rows: list[list[Any]] = [[1]] * 20_000 + [[2, wrong]]
    with pytest.raises(LabelError, match=f"got {wrong!r} in row 20000"):
        LabelRows.of_sets(rows)


def test_a_label_outside_the_classes_is_an_error_with_its_row() -> None:
    with pytest.raises(LabelError, match="label 7 of row 2 is not one of the 2 classes"):
        LabelRows.of_sets([[0], [], [1, 7]], classes=["cat", "dog"])


def test_names_become_ids() -> None:
    assert plainly(LabelRows.of_sets([["dog", "cat", "dog"]], classes={90: "dog", 17: "cat"})) == [{17: 1, 90: 2}]


@pytest.mark.parametrize("pointers", [[0, 1], [0, 3, 2], [1, 2], []])
def test_pointers_that_do_not_fit_are_refused(pointers: list[int]) -> None:
    with pytest.raises(LabelError, match="`indptr` must run from 0"):
        LabelRows.of_csr(pointers, [1, 2])


def test_what_offers_something_else_is_refused() -> None:
    class Wrong:
        def label_presence(self) -> Any:
            return [[1]]

    assert isinstance(Wrong(), LabelPresence)
    with pytest.raises(LabelError, match="must return LabelRows; got list for source 'x'"):
        rows_of(Wrong(), "source 'x'")


def test_rows_of_sidecars_are_those_of_the_tars(tmp_path: Path) -> None:
    source = write_source(tmp_path, "coco", [3, 0, 4], label=rare_first)
    assert plainly(labels_from_sidecars(source)) == [{1: 1}, *[{0: 1}] * 6]


def test_a_source_without_labels_is_an_error(tmp_path: Path) -> None:
    write_tars(tmp_path, "bare", [2])
    source = equitar.Source("bare", str(tmp_path / "bare" / "*.tar"))
    equitar.index(source, labels=None, jobs=1, progress=False)
    with pytest.raises(SidecarError, match="source 'bare' must have labels"):
        labels_from_sidecars(source)


def test_rows_of_coco_annotations(tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    annotations = [{"image_id": 9, "category_id": category_id, "iscrowd": 0} for category_id in (17, 90, 17)]
    images = [{"id": image_id, "file_name": f"{image_id:012d}.jpg"} for image_id in (3, 9)]
    categories = [{"id": 17, "name": "cat"}, {"id": 90, "name": "toothbrush"}]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    rows = labels_from_file(str(path))
    assert plainly(rows) == [{}, {17: 2, 90: 1}]
    assert rows.names == {17: "cat", 90: "toothbrush"}
    assert plainly(labels_from_file(str(path), keys=["000000000009", "000000000003"])) == [{17: 2, 90: 1}, {}]
    with pytest.raises(LabelError, match="key '5' has none by its"):
        labels_from_file(str(path), keys=["3", "5"])


PEAK = """
import resource
import numpy as np
from equitar.samplers.label_rows import LabelRows

def label_sets():
    rng = np.random.default_rng(0)
    for _ in range(0, 1_700_000, 10_000):
        lengths = rng.integers(0, 13, 10_000)
        labels, at = rng.integers(0, 365, int(lengths.sum())).tolist(), 0
        for length in lengths.tolist():
            yield labels[at : at + length]
            at += length

rows = LabelRows.of_sets(label_sets())
print(len(rows), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_a_generator_of_the_size_of_objects365_stays_below_100_mb() -> None:
    # A process counts the memory of the one that started it as its own peak: start it from a small one.
    starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PEAK!r}], check=True)"
    ran = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True, check=True)
    length, megabytes = map(int, ran.stdout.split())
    assert length == 1_700_000
    assert megabytes < 100


def test_a_generator_is_gone_through_once_and_lazily() -> None:
    alive: list[int] = []

    def label_sets() -> Iterator[list[int]]:
        for row in range(50_000):
            alive.append(row)
            yield [row % 5]

    rows = LabelRows.of_sets(label_sets())
    assert (len(rows), len(alive)) == (50_000, 50_000)


@given(st.lists(st.lists(st.integers(-3, 3))), st.data())
def test_rows_are_sets_that_know_how_often_each_label_occurs_and_can_be_picked(
    rows: list[list[int]], data: st.DataObject
) -> None:
    whole = Presence.of(rows)
    chosen = data.draw(st.lists(st.integers(-1, len(rows) - 1)))
    for presence, lists in (
        (whole, rows),
        (whole.picked(np.array(chosen, np.int64)), [([*rows, []])[row] for row in chosen]),
    ):
        assert [presence.labels(row).tolist() for row in range(presence.num_rows)] == [
            sorted(set(labels)) for labels in lists
        ]
        assert presence.counts.tolist() == [labels.count(label) for labels in lists for label in sorted(set(labels))]
        assert {column.dtype for column in (presence.indptr, presence.ids, presence.counts)} == {np.dtype(np.int64)}
