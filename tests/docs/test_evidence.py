"""Do the examples of evidence run, at a tiny size, write what they say, and give exactly nothing where both plans are the same?"""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import pytest

import demo_shards
import evidence

EXAMPLES = Path(demo_shards.__file__).parent


def written(folder: Path, name: str) -> list[dict[str, str]]:
    assert (folder / f"{name}.png").stat().st_size > 10_000
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_debiased_and_mixed_batches_are_compared_and_are_the_same_for_one_source(tmp_path: Path) -> None:
    import evidence_debiased

    rows = evidence_debiased.main(tmp_path, evidence_debiased.CASES, seeds=2, batch_size=64, steps=8, pairs=512)
    assert [row["case"] for row in written(tmp_path, "debiased")] == [row.case for row in rows]
    assert {row.case for row in rows} == set(evidence_debiased.CASES)
    difference = {(row.case, row.metric): row.difference for row in rows}
    assert difference["1 source", "top-1"] == 0
    assert difference["8 sources", "source probe"] != 0  # other batches, other weights
    probe = {row.case: row.before for row in rows if row.metric == "source probe"}
    assert probe["8 sources"] > 90  # eight colours
    assert probe["4 sources of one style"] < 40  # chance is 25


def test_repeats_are_compared_with_none_and_are_the_same_for_balanced_classes(tmp_path: Path) -> None:
    import evidence_repeats

    rows = evidence_repeats.main(tmp_path, seeds=2, batch_size=32, steps=20)
    assert [row["metric"] for row in written(tmp_path, "repeats")] == [row.metric for row in rows]
    assert {row.metric for row in rows} == {"rare", "common", "frequent", "mean"}
    assert all(row.difference == 0 for row in rows if row.case.startswith("balanced"))
    assert any(row.difference != 0 for row in rows if row.case == "long tail, t = 1")


def test_a_difference_has_the_interval_of_paired_seeds() -> None:
    values = {"mixed": (50.0, 60.0, 70.0), "debiased": (52.0, 61.0, 73.0)}
    runs = [
        evidence.Run("a", seed, arm, "top-1", value) for arm, each in values.items() for seed, value in enumerate(each)
    ]
    row = evidence.compare(runs, "a", "top-1", "mixed", "debiased")
    assert (row.before, row.after, row.difference, row.better) == (60, 62, 2, "3 of 3")
    assert row.half == pytest.approx(4.303 / 3**0.5, rel=1e-3)  # t of two degrees of freedom; the deviation is 1
    assert evidence.compare(runs[::3], "a", "top-1", "mixed", "debiased").half == float("inf")


@pytest.mark.parametrize("name", ["evidence_debiased", "evidence_repeats"])
def test_examples_of_evidence_are_short_and_may_be_imported(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 160
    *_, last = ast.parse(text).body
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
