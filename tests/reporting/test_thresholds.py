"""Does one look at the labels say what each threshold would do? Against `stats` and plans made with that threshold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equitar.errors import PlanError
from equitar.indexing.index import index
from equitar.loading.builders import debiased
from equitar.planning.repeat_factors import RepeatFactor
from equitar.reporting.report import report_of
from equitar.reporting.stats import stats
from equitar.reporting.thresholds import candidate_thresholds
from equitar.sidecars.catalog import Repeat
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source
from helpers.odd_tars import END, member

LEFT = [[[0], [0, 0, 1], [0], []], [[0, 2, 2], [0], [0, 1]], [[0], [0, 3], [0]]]
RIGHT = [[[4], [4, 1], [4]], [[4, 4], [], [4, 3]]]
NAMES = ("a", "b", "c", "d", "e", "none")


def halves(sidecar: Sidecar) -> list[float]:
    return [(0.0, 1.0, 0.5)[row % 3] for row in range(sidecar.num_rows)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    made = []
    for name, shards in (("left", LEFT), ("right", RIGHT)):
        folder = tmp_path_factory.mktemp(name)
        for shard, rows in enumerate(shards):
            members = (member(f"{row}.json", json.dumps({"n": each}).encode()) for row, each in enumerate(rows))
            (folder / f"{shard}.tar").write_bytes(b"".join(members) + END)
        made.append(Source(name, f"{folder}/*.tar"))
    index(made, labels="json:n", classes=NAMES, jobs=1, progress=False)
    return made


def selected(sources: Sequence[Source]) -> list[Source]:
    return [replace(source, keep=halves) for source in sources]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        RepeatFactor(0.3),
        RepeatFactor("median"),
        RepeatFactor(0.3, power=1, cap=1.5),
        RepeatFactor(0.3, ignore=["d", "b"]),
        RepeatFactor(0.3, min_count=2),
        RepeatFactor(0.3, empty="drop"),
        RepeatFactor(0.3, rounding="ceil"),
        RepeatFactor(0.3, scope="source"),
        RepeatFactor(0.3, heuristic="irfs"),
    ],
)
def test_every_row_is_what_stats_and_plans_say_at_that_threshold(
    sources: list[Source], how: RepeatFactor, keeps: bool
) -> None:
    chosen = selected(sources) if keeps else sources
    batches = debiased(chosen, batch_size=1, repeat=how, rank=0, world_size=1)
    rows = report_of(batches).thresholds
    assert [row.name for row in rows if row.is_chosen] == ["median" if how.threshold == "median" else "0.3"]
    assert len(rows) >= 4
    for row in rows:
        then = replace(how, threshold="median" if row.name == "median" else float(row.name))
        result = stats(chosen, repeat=then)
        assert row.copies == pytest.approx(result.copies, abs=1e-4)
        assert row.steps == len(debiased(chosen, batch_size=1, repeat=then, rank=0, world_size=1))
        assert result.classes is not None
        assert result.classes.factors is not None
        assert (row.repeated, row.largest) == ((result.classes.factors > 1).sum(), result.classes.factors.max())


def thrice(sidecar: Sidecar) -> list[float]:
    return [3.0] * sidecar.num_rows


@pytest.mark.parametrize(("keep", "steps"), [(None, 4), (thrice, 8)])
def test_a_threshold_that_cannot_be_planned_says_why(sources: list[Source], keep: Any, steps: int) -> None:
    chosen = [replace(source, keep=keep) for source in sources]
    rows = report_of(
        debiased(chosen, batch_size=2, weights={"left": 1, "right": 1}, steps=steps, rank=0, world_size=1)
    ).thresholds
    assert {row.problem is None for row in rows} == {True, False}
    for row in rows:
        how = RepeatFactor("median" if row.name == "median" else float(row.name))
        batches = debiased(
            chosen, batch_size=2, weights={"left": 1, "right": 1}, steps=steps, repeat=how, rank=0, world_size=1
        )
        if row.problem is None:
            assert row.steps == len(batches) == steps
        else:
            with pytest.raises(PlanError) as raised:
                len(batches)
            assert (row.steps, row.problem) == (None, str(raised.value))


def test_the_value_of_a_median_is_shown_where_there_is_one(sources: list[Source]) -> None:
    (shared,) = [outcome for outcome in report_of(sources).thresholds if outcome.name == "median"]
    own = [
        outcome
        for outcome in report_of(sources, repeat=RepeatFactor("median", scope="source")).thresholds
        if outcome.is_chosen
    ]
    classes = stats(sources).classes
    assert classes is not None
    assert shared.threshold == np.median(classes.frequency)
    assert [shard.threshold for shard in own] == [None]


@pytest.mark.parametrize(
    "repeat", [None, RepeatFactor(heuristic=lambda f: f + 1), lambda sidecar: [2] * sidecar.num_rows]
)
def test_where_repeats_are_no_threshold_the_table_is_lvis(sources: list[Source], repeat: Repeat) -> None:
    rows = report_of(sources, repeat=repeat).thresholds
    assert [row.is_chosen for row in rows] == [repeat is None, *[False] * (len(rows) - 1)]
    assert [row.copies for row in rows] == pytest.approx([stats(sources, repeat=row.threshold).copies for row in rows])


def test_numbers_of_labels_are_those_of_kept_samples(sources: list[Source]) -> None:
    everything = [len(set(row)) for shards in (LEFT, RIGHT) for shard in shards for row in shard]
    kept = [
        len(set(row)) for shards in (LEFT, RIGHT) for shard in shards for number, row in enumerate(shard) if number % 3
    ]
    for chosen, numbers in ((sources, everything), (selected(sources), kept)):
        result = report_of(chosen)
        assert result.label_numbers is not None
        assert result.label_numbers.tolist() == np.bincount(numbers).tolist()
        assert sum(source.unlabelled or 0 for source in result.stats.sources) == numbers.count(0)


def test_thresholds_go_from_the_rarest_class_to_ten_times_the_median() -> None:
    assert candidate_thresholds(np.full(10, 0.1)) == [0.3, 1.0]
    assert candidate_thresholds(np.array([1.0])) == []
    assert len(candidate_thresholds(np.geomspace(1e-9, 1, 1000))) == 9
