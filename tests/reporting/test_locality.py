"""Does a report say of how many shards and classes batches are, and what a random draw would give? Against naive counts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from equitar.indexing.index import index
from equitar.loading.batches import Batches
from equitar.loading.builders import debiased, exact, mixed
from equitar.reporting.findings import Finding, findings_of
from equitar.reporting.preview import emissions, plan
from equitar.reporting.report import report_of
from equitar.sources import Source
from helpers.odd_tars import END, member

Shards = Sequence[Sequence[Sequence[int]]]
LEFT: Shards = [[[0], [0, 1], [1], [0], [0]], [[2], [], [1], [1]], [[0], [3]]]
RIGHT: Shards = [[[1]], [[1, 2], [4], [1], [4], [4]], [[4], [1], [2]]]
LABELS = {"left": LEFT, "right": RIGHT}


def write(folder: Path, name: str, shards: Shards, *, labels: str | None = "json:n") -> Source:
    (folder / name).mkdir()
    for shard, rows in enumerate(shards):
        members = (member(f"{row:04d}.json", json.dumps({"n": [*each]}).encode()) for row, each in enumerate(rows))
        (folder / name / f"{shard:03d}.tar").write_bytes(b"".join(members) + END)
    source = Source(name, f"{folder}/{name}/*.tar", root=f"{folder}/{name}")
    classes = [f"class {label}" for label in range(50)] if labels else None
    index(source, labels=labels, classes=classes, jobs=1, progress=False)
    return source


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp("shards")
    return [write(folder, name, shards) for name, shards in LABELS.items()]


def held(batches: Batches) -> dict[str | None, list[tuple[int, int]]]:
    """Return how many shards and classes each batch of the first two ranks has, by the source of the batch."""
    samples = defaultdict(list)
    for emission in emissions(batches):
        if emission.rank < 2:
            samples[emission.step, emission.rank].append(emission)
    is_mixed, result = batches.sources(0) is None, defaultdict(list)
    for batch in samples.values():
        labels = [LABELS[each.source][int(each.shard[:3])][each.row] for each in batch]
        shards = {(each.source, each.shard) for each in batch}
        result[None if is_mixed else batch[0].source].append(
            (len(shards), len({label for row in labels for label in row}))
        )
    return result


def random_draws(name: str, size: int) -> tuple[float, float]:
    """Return how many shards and classes random draws of so many samples of a source have: the mean over all there are."""
    samples = [(shard, row) for shard, rows in enumerate(LABELS[name]) for row in rows]
    draws = list(product(samples, repeat=size))
    shards = [len({shard for shard, _ in draw}) for draw in draws]
    classes = [len({label for _, row in draw for label in row}) for draw in draws]
    return float(np.mean(shards)), float(np.mean(classes))


@pytest.mark.parametrize("build", [debiased, mixed])
@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_are_of_what_they_emit(sources: list[Source], build: Callable[..., Batches], world_size: int) -> None:
    batches = build(sources, batch_size=2, shuffle=2, repeat=0.2, rank=0, world_size=world_size)
    preview = report_of(batches).plan
    assert preview is not None
    expected = held(batches)
    assert {locality.source for locality in preview.locality} == expected.keys()
    for locality in preview.locality:
        numbers = expected[locality.source]
        assert locality.batches == len(numbers)
        assert (locality.shards, locality.classes) == pytest.approx(tuple(np.mean(numbers, axis=0)))
    alone = plan(batches).locality  # what a random draw has of repeated classes takes a look at the rows
    assert [each[:5] for each in alone] == [each[:5] for each in preview.locality]
    assert {each.random_classes for each in alone} == {None}
    plain = build(sources, batch_size=2, shuffle=2, rank=0, world_size=world_size)
    in_report = report_of(plain).plan
    assert in_report is not None
    assert plan(plain).locality == in_report.locality


@pytest.mark.parametrize("size", [2, 3])
def test_a_random_draw_is_the_mean_over_all_draws(sources: list[Source], size: int) -> None:
    preview = report_of(debiased(sources, batch_size=size, rank=0, world_size=1)).plan
    assert preview is not None
    for locality in preview.locality:
        assert locality.source is not None
        assert (locality.random_shards, locality.random_classes) == pytest.approx(random_draws(locality.source, size))


def test_a_random_draw_of_a_mixed_batch_has_as_many_samples_of_each_source(sources: list[Source]) -> None:
    batches = mixed(sources, batch_size=2, weights={"left": 1, "right": 1}, steps=4, rank=0, world_size=1)
    preview = report_of(batches).plan
    assert preview is not None
    (locality,) = preview.locality
    left, right = ([(shard, row) for shard, rows in enumerate(LABELS[name]) for row in rows] for name in LABELS)
    draws = list(product(left, right))
    assert locality.random_shards == 2
    assert locality.random_classes == pytest.approx(np.mean([len({*a, *b}) for (_, a), (_, b) in draws]))


def test_repeats_change_what_a_random_draw_gives(sources: list[Source]) -> None:
    plain, repeated = (
        report_of(debiased(sources, batch_size=2, repeat=repeat, rank=0, world_size=1)).plan for repeat in (None, 1.0)
    )
    assert plain is not None
    assert repeated is not None
    assert [each.random_classes for each in plain.locality] != [each.random_classes for each in repeated.locality]


def test_classes_are_not_known_where_a_source_has_no_labels(sources: list[Source], tmp_path: Path) -> None:
    bare = write(tmp_path, "bare", LEFT, labels=None)
    preview = report_of(debiased([sources[0], bare], batch_size=2, rank=0, world_size=1)).plan
    assert preview is not None
    assert {each.source: each.classes is None for each in preview.locality} == {"bare": True, "left": False}
    (together,) = report_of(mixed([sources[0], bare], batch_size=6, rank=0, world_size=1)).plan.locality  # type: ignore[union-attr]
    assert (together.classes, together.random_classes) == (None, None)


def test_batches_in_order_and_single_samples_are_not_judged(sources: list[Source]) -> None:
    assert plan(exact(sources, batch_size=2, rank=0, world_size=1)).locality == ()
    assert plan(mixed(sources, rank=0, world_size=1)).locality == ()


def test_ranks_that_draw_apart_are_looked_at_by_their_own_schedules(sources: list[Source]) -> None:
    batches = debiased(sources, batch_size=2, same_source_across="rank", rank=0, world_size=2)
    expected = held(batches)
    assert {each.source: each.batches for each in plan(batches).locality} == {
        name: len(numbers) for name, numbers in expected.items()
    }


def test_of_a_long_epoch_some_batches_are_looked_at(sources: list[Source]) -> None:
    batches = debiased(sources, batch_size=2, weights={"left": 1, "right": 1}, steps=10_000, rank=0, world_size=1)
    assert [each.batches for each in plan(batches).locality] == [16, 16]


def local(batches: Batches) -> list[Finding]:
    return [finding for finding in findings_of(report_of(batches)) if finding.kind == "local-batches"]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """The same 1,600 samples of 40 classes in 40 shards: class by class, in a random order, and so without labels."""
    folder = tmp_path_factory.mktemp("orders")
    labels = np.repeat(np.arange(40), 40)
    drawn = np.random.default_rng(0).permutation(labels)

    def shards(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Shards:
        return [[[label] for label in part] for part in order.reshape(40, 40).tolist()]

    return {
        "sorted": write(folder, "sorted", shards(labels)),
        "drawn": write(folder, "drawn", shards(drawn)),
        "bare": write(folder, "bare", shards(drawn), labels=None),
    }


def test_batches_of_few_classes_are_to_be_looked_at(orders: dict[str, Source]) -> None:
    (finding,) = local(debiased([orders["sorted"]], batch_size=32, shuffle=64, rank=0, world_size=1))
    assert finding.level == "look"
    assert "source sorted" in finding.text
    assert "a random draw" in finding.text


def test_few_shards_are_to_be_looked_at_where_classes_are_not_known_and_only_noted_where_they_are_mixed(
    orders: dict[str, Source],
) -> None:
    for name, level in (("bare", "look"), ("drawn", "note")):
        (finding,) = local(debiased([orders[name]], batch_size=32, shuffle=64, rank=0, world_size=1))
        assert (name, finding.level) == (name, level)
        assert "shards" in finding.text


def test_batches_of_about_as_many_as_a_random_draw_are_no_finding(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 40, (3, 400)).tolist()
    source = write(tmp_path, "few", [[[label] for label in part] for part in labels])
    assert local(debiased([source], batch_size=32, shuffle=600, rank=0, world_size=1)) == []


def test_the_source_with_the_fewest_is_named_and_others_are_counted(orders: dict[str, Source]) -> None:
    (finding,) = local(debiased([*orders.values()], batch_size=32, shuffle=64, rank=0, world_size=1))
    assert finding.text.startswith("a batch of source sorted")
    assert "2 other sources" in finding.text


def test_a_locality_says_nothing_of_sources_that_are_never_drawn(sources: list[Source]) -> None:
    batches = debiased(sources, batch_size=2, weights={"left": 1, "right": 0}, steps=3, rank=0, world_size=1)
    assert [each.source for each in plan(batches).locality] == ["left"]
