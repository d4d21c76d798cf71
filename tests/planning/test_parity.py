"""Do the numbers agree with those of the peers? Their formulas once more, from the papers and as naive as can be.

| peer                                      | what                         | held to                                  |
|-------------------------------------------|------------------------------|------------------------------------------|
| Detectron2 `RepeatFactorTrainingSampler`  | factors, label sets and LVIS | 1e-6                                     |
|                                           | length of an epoch           | its mean and variance, over 400 passes   |
| mmdetection `ClassBalancedDataset`        | copies by `ceil`             | equal, sample by sample                  |
| mmdetection `InstanceBalancedDataset`     | factors of IRFS              | 1e-6                                     |
| super-gradients `ClassBalancedSampler`    | its tests of ordering        | rare classes gain share, common lose it  |
| ZeroVL `debias_train`                     | share of each dataset        | within one step, where it has sqrt(n p q) |
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.planning.line import Line
from equitar.planning.repeat_factors import ONE, RepeatFactor, class_factors, count_classes, repeat_factors
from equitar.planning.supply import Supply
from equitar.samplers.dataset_plan import factors_by_labels
from equitar.samplers.label_rows import LabelRows
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler

LVIS = (
    Path(__file__).parents[1] / "data" / "lvis_v1_image_counts.tsv"
)  # of detectron2 (Apache 2.0): category, train images
LVIS_IMAGES = 100_170

label_sets = st.lists(st.lists(st.integers(0, 12), max_size=6), min_size=1, max_size=60)


def naive_factors(rows: list[list[int]], threshold: float) -> list[float]:
    """Appendix B.1 of the LVIS paper, image by image."""
    images = {label: sum(label in row for row in rows) for row in rows for label in row}
    factor = {label: max(1.0, math.sqrt(threshold / (count / len(rows)))) for label, count in images.items()}
    return [max((factor[label] for label in row), default=1.0) for row in rows]


def naive_instance_factors(rows: list[list[int]], threshold: float) -> list[float]:
    """IRFS: the same with the geometric mean of the fractions of images and of boxes."""
    boxes = Counter(label for row in rows for label in row)
    images = Counter(label for row in rows for label in set(row))
    mean = {label: math.sqrt(images[label] / len(rows) * (boxes[label] / sum(boxes.values()))) for label in boxes}
    factor = {label: max(1.0, math.sqrt(threshold / frequency)) for label, frequency in mean.items()}
    return [max((factor[label] for label in row), default=1.0) for row in rows]


def our_factors(rows: list[list[int]], how: RepeatFactor) -> list[float]:
    factors = factors_by_labels({"only": LabelRows.of_sets(rows)}, how)["only"]
    return [factor / ONE for factor in factors.tolist()]


@given(rows=label_sets, threshold=st.floats(0, 1))
def test_factors_are_those_of_detectron2(rows: list[list[int]], threshold: float) -> None:
    assert our_factors(rows, RepeatFactor(threshold)) == pytest.approx(naive_factors(rows, threshold), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "threshold", "factors"),
    [
        ([[0, 1], [0], []], 0.5, [1.224745, 1, 1]),  # detectron2's own test
        ([[], [1], [2, 2], [3, 3, 3], [4, 4, 4, 4]], 1, [1, *[2.236068] * 4]),
    ],
)
def test_known_answers(rows: list[list[int]], threshold: float, factors: list[float]) -> None:
    assert our_factors(rows, RepeatFactor(threshold)) == pytest.approx(factors, abs=1e-6)


def test_factors_of_lvis_are_those_of_detectron2() -> None:
    counts = np.loadtxt(LVIS, dtype=np.int64)[:, 1]
    factors = repeat_factors(counts / LVIS_IMAGES, threshold=1e-3)
    naive = [max(1.0, math.sqrt(1e-3 / (count / LVIS_IMAGES))) for count in counts.tolist()]
    assert np.abs(factors - naive).max() < 1e-6
    assert (int((factors > 1).sum()), len(factors)) == (798, 1203)
    assert [factors.max(), factors.mean(), np.median(factors), factors.sum()] == pytest.approx(
        [10.008496, 2.696817, 1.645387, 3244.2706], abs=1e-4
    )


def test_epochs_of_bernoulli_are_as_long_as_detectron2s() -> None:
    """Its length is the sum of independent draws: floor(r), and one more with the probability of the rest."""
    factors = np.rint((1 + 3 * np.random.default_rng(1).random(2000) ** 3) * ONE).astype(np.int64)
    supply = Supply.of("lvis", [f"{shard}.tar" for shard in range(4)], np.split(factors, 4), "bernoulli")
    lengths = np.array([Line(supply, key=key, at_least=0).length for key in range(400)])
    rest = factors % ONE / ONE
    mean, variance = factors.sum() / ONE, (rest * (1 - rest)).sum()
    assert abs(lengths.mean() - mean) < 4 * math.sqrt(variance / 400)
    assert 0.7 < lengths.var() / variance < 1.35


@given(rows=label_sets, threshold=st.floats(0.01, 1))
def test_ceil_gives_the_copies_of_mmdetection(rows: list[list[int]], threshold: float) -> None:
    copies = our_factors(rows, RepeatFactor(threshold, rounding="ceil"))
    naive = [
        math.ceil(round(factor, 6)) for factor in naive_factors(rows, threshold)
    ]  # a factor of 2 + 1e-16 is 2 to us
    assert copies == naive


def test_an_epoch_of_ceil_holds_exactly_these_copies() -> None:
    rows = [[0]] * 90 + [[1]] * 9 + [[2]]
    sampler = RepeatFactorSampler(LabelRows.of_sets(rows), RepeatFactor(0.1, rounding="ceil"), rank=0, world_size=1)
    counts = Counter(sampler)
    naive = [math.ceil(factor) for factor in naive_factors(rows, 0.1)]
    assert [counts[row] for row in range(100)] == naive
    assert len(sampler) == sum(naive) == 90 + 9 * 2 + 4


@given(rows=label_sets, threshold=st.floats(0.01, 1))
def test_instance_factors_are_those_of_irfs(rows: list[list[int]], threshold: float) -> None:
    ours = our_factors(rows, RepeatFactor(threshold, heuristic="irfs"))
    assert ours == pytest.approx(naive_instance_factors(rows, threshold), abs=1e-6)


def _long_tailed(images: dict[int, int], total: int, seed: int) -> list[list[int]]:
    labels = np.repeat(list(images), list(images.values()))
    shuffled = np.random.default_rng(seed).permutation(labels)
    return [part.tolist() for part in np.array_split(shuffled, total)]


def _shares(rows: list[list[int]], indices: list[int]) -> dict[int, float]:
    counts = Counter(label for index in indices for label in rows[index])
    return {label: counts[label] / sum(counts.values()) for label in sorted(counts)}


def test_equally_frequent_classes_stay_so() -> None:
    rows = _long_tailed({0: 3000, 1: 3000, 2: 3000}, 6000, 0)
    sampler = RepeatFactorSampler(LabelRows.of_sets(rows), RepeatFactor("median"), rank=0, world_size=1)
    assert _shares(rows, list(sampler)) == pytest.approx(_shares(rows, list(range(6000))), abs=0.01)


def test_the_scarce_class_gains_share_and_the_others_lose_it() -> None:
    rows = _long_tailed({0: 10_000, 1: 1000, 2: 10_000}, 15_000, 0)
    sampler = RepeatFactorSampler(LabelRows.of_sets(rows), RepeatFactor("median"), rank=0, world_size=1)
    before, after = _shares(rows, list(range(15_000))), _shares(rows, list(sampler))
    assert after[1] > 1.5 * before[1]
    assert after[0] < before[0]
    assert after[2] < before[2]


def test_the_rarer_a_class_the_larger_its_gain() -> None:
    rows = [[label] for label, count in {0: 4000, 1: 1000, 2: 250, 3: 60}.items() for _ in range(count)]
    sampler = RepeatFactorSampler(LabelRows.of_sets(rows), 0.5, rank=0, world_size=1)
    before, after = Counter(row[0] for row in rows), Counter(rows[index][0] for index in sampler)
    gains = [after[label] / before[label] for label in range(4)]
    assert gains == sorted(gains)
    assert after[0] > after[1] > after[2] > after[3]  # a square root evens out, it does not turn over


def test_datasets_have_the_shares_of_zerovl() -> None:
    """ZeroVL draws a dataset at each step with probability n / N; here each has just that many steps."""
    sizes = {"sbu": 859_739 // 64, "cc3m": 2_857_000 // 64, "vg": 108_077 // 64, "coco": 113_287 // 64}
    steps = 1000
    sampler = DebiasedBatchSampler(sizes, batch_size=8, steps=steps, rank=0, world_size=1)
    counts = Counter(sampler.sources(0))
    for name, size in sizes.items():
        assert abs(counts[name] - steps * size / sum(sizes.values())) < 1


def test_the_median_threshold_is_that_of_the_classes_that_occur() -> None:
    rows = LabelRows.of_sets([[0]] * 8 + [[1]] * 2 + [[2]], classes=["a", "b", "c", "never", "nor this"])
    counts = count_classes(rows.parts(), names=rows.names, empty="keep")
    (factors,) = class_factors([counts], RepeatFactor("median"))
    assert (factors / ONE).tolist() == pytest.approx([1, 1, math.sqrt(2), 1, 1], abs=1e-6)
