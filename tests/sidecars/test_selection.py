"""`keep` of a source: which of its samples there are, and how often."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equitar
from equitar.errors import SourceError
from equitar.planning.repeat_factors import ONE
from equitar.reporting.report import report_of
from equitar.sidecars.catalog import catalog_of, supplies_of
from equitar.sidecars.selection import selection_of
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source
from helpers.shards import Labels, flat, key_of, keys_of, rare_first, write_source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """50 samples in two shards."""
    return write_source(tmp_path_factory.mktemp("sources"), "a", [30, 20])


def given(source: Source, keep: Any) -> list[str]:
    return flat(equitar.exact([replace(source, keep=keep)], batch_size=4))


def written(folder: Path, *lines: str) -> str:
    path = folder / "keys.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def even(sidecar: Sidecar) -> list[bool]:
    return [int(key[-1]) % 2 == 0 for key in sidecar.keys]


def odd(sidecar: Sidecar) -> list[bool]:
    return [not kept for kept in even(sidecar)]


def without_ends(sidecar: Sidecar) -> list[bool]:
    return [key not in ("a-0000", "a-0040") for key in sidecar.keys]


def rare_last(number: int) -> int:
    return int(number != 40)


def test_nothing_to_select_keeps_all(source: Source) -> None:
    assert selection_of(source) is None


def test_a_share_of_one_keeps_all(source: Source) -> None:
    assert selection_of(replace(source, keep=1.0)) is None


# ---- files of keys ------------------------------------------------------------------------------------------------------


def test_a_file_lists_the_keys_to_keep(source: Source, tmp_path: Path) -> None:
    assert given(source, written(tmp_path, "a-0003", "a-0040")) == ["a-0003", "a-0040"]


def test_a_file_lists_the_keys_to_leave_out(source: Source, tmp_path: Path) -> None:
    kept = given(source, "!" + written(tmp_path, "a-0003", "a-0040"))
    assert kept == [key for key in keys_of("a", 50) if key not in {"a-0003", "a-0040"}]


def test_a_file_may_name_the_shard_of_a_key(source: Source, tmp_path: Path) -> None:
    assert given(source, written(tmp_path, "000.tar\ta-0003", "000.tar\ta-0040", "001.tar\ta-0041")) == [
        "a-0003",
        "a-0041",
    ]


def test_empty_lines_of_a_file_are_no_keys(source: Source, tmp_path: Path) -> None:
    assert given(source, written(tmp_path, "", "a-0003", "")) == ["a-0003"]


def test_lines_of_a_file_may_end_as_on_windows(source: Source, tmp_path: Path) -> None:
    assert given(source, written(tmp_path, "a-0003\r", "a-0040\r")) == ["a-0003", "a-0040"]


def test_a_file_of_keys_that_is_not_there_is_named(source: Source, tmp_path: Path) -> None:
    with pytest.raises((SourceError, FileNotFoundError), match=r"no-such\.txt"):
        given(source, str(tmp_path / "no-such.txt"))


def test_keys_do_not_travel_with_the_selection(source: Source, tmp_path: Path) -> None:
    path = written(tmp_path, *keys_of("a", 50))
    selection = selection_of(replace(source, keep=path))
    assert selection is not None
    sidecar = catalog_of([source]).sidecars[0](0)
    selection("000.tar", sidecar)
    assert len(pickle.dumps(selection)) < 500


# ---- parts, shares, functions -------------------------------------------------------------------------------------------


def test_parts_of_a_split_hold_every_sample_once(source: Source) -> None:
    parts = [given(source, equitar.split(part, 3)) for part in range(3)]
    assert sorted(key for part in parts for key in part) == keys_of("a", 50)


def test_parts_of_a_split_do_not_overlap_under_two_names(source: Source) -> None:
    train, val = replace(source, name="train"), replace(source, name="val")
    assert sorted(given(train, equitar.split(0, 2)) + given(val, equitar.split(1, 2))) == keys_of("a", 50)


def test_parts_of_a_split_are_none_of_them_empty(source: Source) -> None:
    assert all(given(source, equitar.split(part, 3)) for part in range(3))


def test_a_key_stays_in_its_part_when_the_source_grows(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small, large = write_source(tmp_path / "small", "a", [20]), write_source(tmp_path / "large", "a", [20, 30])
    part = equitar.split(0, 2)
    assert given(small, part) == [key for key in given(large, part) if key < key_of("a", 20)]


@pytest.mark.parametrize(("part", "parts"), [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_there_is_not_is_named(part: int, parts: int) -> None:
    with pytest.raises(ValueError, match=rf"`part` must be in \[0, {parts}\); got {part}"):
        equitar.split(part, parts)


def test_a_function_selects_by_what_the_sidecar_says(source: Source) -> None:
    assert given(source, even) == [key for key in keys_of("a", 50) if int(key[-1]) % 2 == 0]


def test_a_function_may_ask_for_more_than_one_copy(source: Source) -> None:
    copies = Counter(given(source, lambda sidecar: [2.0 if key == "a-0003" else 1.0 for key in sidecar.keys]))
    assert copies == Counter([*keys_of("a", 50), "a-0003"])


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda sidecar: [1.0], r"shape \(1,\)"),
        (lambda sidecar: np.full(sidecar.num_rows, -1.0), "numbers down to -1.0"),
        (lambda sidecar: np.full(sidecar.num_rows, np.nan), "numbers down to nan"),
        (lambda sidecar: 1.0, r"shape \(\)"),
    ],
    ids=["too few", "negative", "NaN", "one"],
)
def test_a_function_that_gives_anything_else_is_named(
    function: Callable[[Sidecar], Any], shown: str, source: Source
) -> None:
    with pytest.raises(
        SourceError,
        match=rf"`keep` of source 'a' must give a finite number >= 0 for each of 30 rows of 000\.tar; got {shown}",
    ):
        given(source, function)


def test_a_share_keeps_as_much_of_a_pass(source: Source) -> None:
    assert len(given(source, 0.5)) in {25, 26}


def test_a_share_keeps_every_sample_in_its_turn(source: Source) -> None:
    batches = equitar.mixed([replace(source, keep=0.5)])
    seen = Counter(sample["__key__"] for _ in range(40) for sample in batches)
    assert set(seen) == set(keys_of("a", 50))


def test_a_share_keeps_no_sample_twice_in_a_pass(source: Source) -> None:
    batches = equitar.mixed([replace(source, keep=0.5)])
    assert all(max(Counter(sample["__key__"] for sample in batches).values()) == 1 for _ in range(5))


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.5, float("nan")], ids=str)
def test_a_share_that_is_none_is_named(keep: float) -> None:
    with pytest.raises(ValueError, match=rf"`keep` must be a share in \(0, 1\]; got {keep} for source 'a'"):
        Source("a", "a.tar", keep=keep)


# ---- what follows from it -----------------------------------------------------------------------------------------------


def test_what_is_left_out_does_not_count_for_steps(source: Source) -> None:
    assert len(equitar.debiased([replace(source, keep=even)], batch_size=5)) == 5


def test_what_is_left_out_does_not_count_for_frequencies(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [41], label=rare_first)  # f = 1/41, and 1/21 among the even ones
    rare = [
        supplies_of(catalog_of([selected]), 0.4)[0].largest / ONE for selected in (source, replace(source, keep=even))
    ]
    assert rare == pytest.approx([(0.4 * 41) ** 0.5, (0.4 * 21) ** 0.5], abs=1e-5)


@pytest.mark.parametrize("label", [rare_first, rare_last], ids=["largest id", "least id"])
def test_what_is_left_out_may_have_labels_of_its_own(tmp_path: Path, label: Labels) -> None:
    source = replace(write_source(tmp_path, "a", [20, 21], label=label), keep=without_ends)
    assert sorted(flat(equitar.mixed([source], batch_size=3, repeat=0.4))) == keys_of("a", 41)[1:-1]


def test_what_is_left_out_is_not_read_in_an_epoch(source: Source) -> None:
    whole, half = (report_of(selected).bytes_read for selected in (source, replace(source, keep=even)))
    assert half == pytest.approx(whole / 2)


def test_what_is_left_out_is_no_substitute(source: Source) -> None:
    def drops_some(samples: Any) -> Any:
        return (sample for sample in samples if not sample["__key__"].endswith("4"))

    batches = equitar.debiased([replace(source, keep=even)], batch_size=5, stages=[drops_some])
    assert {int(key[-1]) for key in flat(batches)} == {0, 2, 6, 8}


def test_two_sources_share_a_shard_if_both_select(source: Source) -> None:
    both = [replace(source, name="even", keep=even), replace(source, name="odd", keep=odd)]
    assert sorted(flat(equitar.exact(both, batch_size=4))) == keys_of("a", 50)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_selection_travels_to_the_workers(num_workers: int, source: Source, tmp_path: Path) -> None:
    keep = written(tmp_path, *keys_of("a", 24))
    loader = equitar.Loader(equitar.debiased([replace(source, keep=keep)], batch_size=4), num_workers=num_workers)
    assert sorted(flat(loader)) == keys_of("a", 24)
