"""LVIS repeat factors: the published numbers, real long-tailed labels, and what others get wrong."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.arrays import Float64, Int64
from equitar.errors import LabelError
from equitar.planning.repeat_factors import (
    ONE,
    ClassCounts,
    RepeatFactor,
    class_factors,
    frequencies,
    power_of,
    rarest_labels,
    repeat_factors,
    sample_factors,
)
from equitar.presence import Presence
from helpers import real_data


def counted(rows: list[list[int]], vocabulary: list[int], names: tuple[str, ...] | None = None) -> ClassCounts:
    """Return how many rows hold each label: a set per row."""
    numbers = [sum(label in row for row in rows) for label in vocabulary]
    return ClassCounts(ids=np.array(vocabulary), num_samples=np.array(numbers), total=len(rows), names=names)


def factors_of(rows: list[list[int]], threshold: float, **how: Any) -> list[float]:
    """Return r of each row, all from one source."""
    counts = counted(rows, sorted({label for row in rows for label in row}))
    (factors,) = class_factors([counts], RepeatFactor(threshold, **how))
    return [factor / ONE for factor in sample_factors(Presence.of(rows), counts.ids, factors).tolist()]


def test_labels_of_detectron2s_own_test() -> None:
    assert factors_of([[0, 1], [0], []], 0.5) == pytest.approx([1.224745, 1, 1], abs=1e-6)


def test_images_are_counted_not_boxes() -> None:
    rows = [[], [1], [2, 2], [3, 3, 3], [4, 4, 4, 4]]
    assert factors_of(rows, 1.0) == pytest.approx([1, *[2.236068] * 4], abs=1e-6)
    one_of_ten = counted([[0] * 50, *[[1]] * 9], [0, 1])
    assert frequencies([one_of_ten], scope="all")[0].tolist() == [0.1, 0.9]


def test_lvis_v1_at_its_own_threshold() -> None:
    counts = real_data.lvis_image_counts()
    assert (len(counts), counts.sum()) == (1203, 360_952)
    source = ClassCounts(ids=np.arange(1, 1204), num_samples=counts, total=100_170)
    (whole,) = class_factors([source], RepeatFactor(0.001))
    factors = repeat_factors(counts / 100_170, threshold=0.001)
    assert np.abs(whole / ONE - factors).max() <= 0.5 / ONE
    assert (factors > 1).sum() == 798
    assert factors.max() == pytest.approx(10.008496, abs=1e-6)
    assert factors.mean() == pytest.approx(2.696817, abs=1e-6)
    assert np.median(factors) == pytest.approx(1.645387, abs=1e-6)
    assert factors.sum() == pytest.approx(3244.2706, abs=1e-4)


@pytest.mark.parametrize(
    ("ratio", "power", "expected"), [(4, 0.5, 2.0), (2, 0.5, 1.414214), (4, 1.0, 4.0), (2, 1.0, 2.0), (8, 1 / 3, 2.0)]
)
def test_the_factor_is_the_power_of_threshold_over_frequency(ratio: float, power: float, expected: float) -> None:
    (factor,) = repeat_factors(np.array([0.1 / ratio]), threshold=0.1, power=power).tolist()
    assert factor == pytest.approx(expected, abs=1e-6)


def test_the_default_power_is_the_square_root() -> None:
    assert RepeatFactor(0.1).power == 0.5


def test_a_sample_has_the_largest_factor_of_its_labels_and_none_has_one() -> None:
    rows = Presence.of([[3, 9], [], [9], [3], []])
    factors = sample_factors(rows, np.array([3, 9]), np.array([4 * ONE, 2 * ONE]))
    assert (factors // ONE).tolist() == [4, 1, 2, 4, 1]


def test_rows_without_labels_shift_no_factor_to_a_neighbour() -> None:
    assert factors_of([[], [0], [], [], [1], [0], [0], []], 0.5)[4] == 2.0
    assert factors_of([[0], [], [1], [0], []], 0.3) == pytest.approx([1, 1, 1.224745, 1, 1], abs=1e-6)
    assert sample_factors(Presence.of([]), np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
    assert sample_factors(Presence.of([[], []]), np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == [ONE, ONE]


def test_classes_without_images_neither_divide_by_zero_nor_move_others() -> None:
    rows = [[0, 1], [1, 2], [1, 3], [1]]
    with_absent, without = counted(rows, list(range(10))), counted(rows, list(range(4)))
    how = RepeatFactor(0.5)
    (wide,), (narrow,) = class_factors([with_absent], how), class_factors([without], how)
    assert wide[:4].tolist() == narrow.tolist()
    assert (wide[4:] == ONE).all()


def test_no_samples_at_all_give_no_error() -> None:
    assert class_factors([counted([], [1, 2])], RepeatFactor(0.5))[0].tolist() == [ONE, ONE]


def test_frequencies_are_those_of_all_sources_that_know_the_label() -> None:
    a = counted([[0], [0], [1], [1], [1]], [0, 1], ("cat", "dog"))
    b = counted([[5], [5], [5], [6], [6]], [5, 6], ("cat", "owl"))
    assert [frequency.tolist() for frequency in frequencies([a, b], scope="all")] == [[0.5, 0.6], [0.5, 0.4]]
    assert [frequency.tolist() for frequency in frequencies([a, b], scope="source")] == [[0.4, 0.6], [0.6, 0.4]]


def test_ids_without_names_mean_something_within_their_source_only() -> None:
    a, b = counted([[0], [1]], [0, 1]), counted([[0], [0], [0], [1]], [0, 1])
    assert [frequency.tolist() for frequency in frequencies([a, b], scope="all")] == [[0.5, 0.5], [0.75, 0.25]]


def test_factors_of_parts_taken_together_are_those_of_the_whole() -> None:
    """A label that lies in one part of eight is as rare as it is in the whole, wherever one looks from."""
    rows = [[label % 3] for label in range(80)]
    rows[7] = [7]
    parts = [counted(rows[part::8], [0, 1, 2, 7], ("a", "b", "c", "d")) for part in range(8)]
    (whole,) = class_factors([counted(rows, [0, 1, 2, 7], ("a", "b", "c", "d"))], RepeatFactor(0.5))
    for part in class_factors(parts, RepeatFactor(0.5)):
        assert part.tolist() == whole.tolist()


def test_a_cap_bounds_factors_and_ignored_labels_repeat_nothing() -> None:
    counts = counted([[0], *[[1]] * 99], [0, 1], ("rare", "common"))
    assert (class_factors([counts], RepeatFactor(1.0))[0] / ONE)[0] == 10
    assert (class_factors([counts], RepeatFactor(1.0, cap=3))[0] / ONE)[0] == 3
    for label in ("rare", 0):
        assert (class_factors([counts], RepeatFactor(1.0, ignore=[label]))[0] / ONE)[0] == 1


def test_an_ignored_label_that_no_source_knows_is_named() -> None:
    with pytest.raises(LabelError, match="no source has 'persn'"):
        class_factors([counted([[0]], [0], ("person",))], RepeatFactor(0.1, ignore=["persn"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": -0.1}, r"`threshold` must be in \[0, 1\].*; got -0\.1"),
        ({"threshold": 1.5}, r"`threshold` must be in \[0, 1\].*; got 1\.5"),
        ({"threshold": float("nan")}, r"`threshold` must be in \[0, 1\].*; got nan"),
        ({"threshold": 0.1, "power": -1}, "`power` must be a finite number >= 0; got -1"),
        ({"threshold": 0.1, "power": float("inf")}, "`power` must be a finite number >= 0; got inf"),
        ({"threshold": 0.1, "cap": 0.5}, r"`cap` must be a finite number >= 1; got 0\.5"),
        ({"threshold": 0.1, "scope": "both"}, "`scope` must be 'all' or 'source'; got 'both'"),
        ({"threshold": 0.1, "rounding": "floor"}, "`rounding` must be .*; got 'floor'"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepeatFactor(**arguments)


def test_a_threshold_of_zero_repeats_nothing() -> None:
    assert factors_of([[0], [1], [1]], 0.0) == [1, 1, 1]


@given(st.floats(1e-9, 1e9), st.floats(0, 3))
def test_powers_are_those_of_the_c_library_to_its_own_precision(value: float, power: float) -> None:
    assert power_of(value, power) == pytest.approx(value**power, rel=1e-12)


def plain_factors(rows: list[list[int]], factor_of: dict[int, int]) -> list[int]:
    """Return the largest factor of each row's labels, label by label."""
    return [max([ONE, *(factor_of[label] for label in row)]) for row in rows]


def by_rarest(presence: Presence, ids: Int64, frequency: Float64, factors: Int64) -> Int64:
    """Return r of each row from its rarest label alone."""
    rarest = rarest_labels(presence, ids, frequency)
    return np.where(rarest >= 0, factors[rarest], ONE)


@pytest.mark.parametrize("name", ["openimages_common214", "imagenet_multi1000"])
def test_the_rarest_label_gives_the_factor_of_every_real_image(name: str) -> None:
    rows = real_data.label_sets(name)
    presence = real_data.presence(name)
    counts = counted_quickly(rows)
    frequency = frequencies([counts], scope="all")[0]
    for threshold, power, cap in [
        (0.001, 0.5, None),
        (0.05, 0.5, None),
        (1.0, 0.5, None),
        (0.02, 1.0, 8.0),
        (0.3, 1 / 3, 2.5),
    ]:
        (factors,) = class_factors([counts], RepeatFactor(threshold, power=power, cap=cap))
        factor_of = dict(zip(counts.ids.tolist(), factors.tolist(), strict=True))
        plain = plain_factors(rows, factor_of)
        assert sample_factors(presence, counts.ids, factors).tolist() == plain
        assert by_rarest(presence, counts.ids, frequency, factors).tolist() == plain


def counted_quickly(rows: list[list[int]]) -> ClassCounts:
    numbers: dict[int, int] = {}
    for row in rows:
        for label in set(row):
            numbers[label] = numbers.get(label, 0) + 1
    ids = sorted(numbers)
    return ClassCounts(ids=np.array(ids), num_samples=np.array([numbers[label] for label in ids]), total=len(rows))


@pytest.mark.parametrize(
    ("name", "rows", "classes", "empty"),
    [("openimages_common214", 57_224, 214, 157), ("imagenet_multi1000", 50_000, 1_000, 3_163)],
)
def test_the_real_labels_are_read_whole(name: str, rows: int, classes: int, empty: int) -> None:
    presence = real_data.presence(name)
    assert presence.num_rows == rows
    assert len(np.unique(presence.ids)) == classes
    assert int((np.diff(presence.indptr) == 0).sum()) == empty


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=5), min_size=1, max_size=40),
    st.floats(0, 1),
    st.sampled_from([0.5, 1.0, 0.25]),
)
def test_the_rarest_label_gives_the_factor_of_any_row(rows: list[list[int]], threshold: float, power: float) -> None:
    counts = counted(rows, list(range(9)))
    (factors,) = class_factors([counts], RepeatFactor(threshold, power=power))
    presence, frequency = Presence.of(rows), frequencies([counts], scope="all")[0]
    plain = plain_factors(rows, dict(enumerate(factors.tolist())))
    assert sample_factors(presence, counts.ids, factors).tolist() == plain
    assert by_rarest(presence, counts.ids, frequency, factors).tolist() == plain


def test_a_million_samples_of_1203_classes_need_no_dense_matrix() -> None:
    rows, classes = 1_000_000, 1203
    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(0, classes, (rows, 3)), axis=1)
    ids[:, 1:] += (np.arange(1, 3) + classes)[None, :]  # increasing within a row
    presence = Presence(indptr=np.arange(rows + 1) * 3, ids=ids.ravel(), counts=np.ones(3 * rows, np.int64))
    vocabulary = np.arange(3 * classes)
    factors = np.full(len(vocabulary), 2 * ONE)
    tracemalloc.start()
    per_sample = sample_factors(presence, vocabulary, factors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(per_sample) == rows
    assert peak < 100_000_000  # a dense matrix of bytes alone would take 1.2 GB


def test_rows_that_are_no_rows_are_refused() -> None:
    single = np.ones(1, np.int64)
    with pytest.raises(ValueError, match="`indptr` must run from 0 to the number of ids, 1"):
        Presence(indptr=np.array([0, 2]), ids=single, counts=single)
    with pytest.raises(ValueError, match="`counts` must have one entry for each of 1 ids; got 0"):
        Presence(indptr=np.array([0, 1]), ids=single, counts=single[:0])


def test_joined_rows_are_those_of_the_parts_one_after_another() -> None:
    parts = [[[1, 2], []], [], [[3, 3]]]
    whole = Presence.joined([Presence.of(part) for part in parts])
    assert [whole.labels(row).tolist() for row in range(whole.num_rows)] == [[1, 2], [], [3]]
    assert whole.counts.tolist() == [1, 1, 2]
    assert Presence.joined([]).num_rows == 0
