"""Arguments that cannot be meant are refused where they are given: nothing is indexed, read or started here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds

import equitar
from equitar.checks import check_integer, check_number
from equitar.errors import PlanError, SourceError, StageError
from equitar.loading.batches import Batches, execution_of
from equitar.loading.request import Request
from equitar.planning.plan import PlanSpec
from equitar.planning.recipes import Mixed
from equitar.planning.repeat_factors import RepeatFactor
from equitar.samplers.label_rows import LabelRows
from equitar.samplers.samplers import RepeatFactorSampler
from equitar.sources import Source

A, B = Source("a", "a.tar"), Source("b", "b.tar")
SHARES = "`weights` must have one number for each of the sources a, b; "


@pytest.mark.parametrize(
    ("sources", "kind", "message"),
    [
        ("a.tar", SourceError, "`sources` must be a list of equitar.Source; got 'a.tar'"),
        (["a.tar"], SourceError, "`sources` must be a list of equitar.Source; got 'a.tar' in it"),
        ({"a": A}, SourceError, "`sources` must be a list of equitar.Source; got {'a': "),
        (3, SourceError, "`sources` must be a list of equitar.Source; got 3"),
        ([A, B, A], SourceError, "names of sources must be unique; two are called 'a'"),
        ([], PlanError, "`sources` must have at least one source; got none"),
    ],
)
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed, equitar.exact])
def test_sources_that_are_none(builder: Any, sources: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as raised:
        builder(sources, batch_size=4)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {"a": 1, "bb": 1}}, SHARES + "'b' has none and 'bb' (did you mean 'b'?) is not a source"),
        ({"weights": {"a": 1}}, SHARES + "'b' has none"),
        ({"weights": equitar.Passes({"a": 1, "b": 1, "c": 1})}, "`passes` must have one number for each"),
        ({"repeat": "lvis"}, "got 'lvis'"),
        ({"repeat": 2}, "`repeat` must be a threshold in [0, 1], 'median', a RepeatFactor or a function; got 2"),
        ({"repeat": True}, "got True"),
        ({"collate_fn": None}, "`collate_fn` must be a function of a list of samples; got None"),
        ({"handler": 1}, "`handler` must be None, 'skip_sample', 'skip_shard' or a function of an error; got 1"),
        ({"max_passes": "3"}, "`max_passes` must be a finite number > 0; got '3'"),
        ({"rank": 0}, "`rank` and `world_size` go together; got 0 and None"),
        ({"rank": 2, "world_size": 2}, "`rank` must be in [0, 2); got 2"),
        ({"rank": "0", "world_size": 2}, "`rank` must be an integer >= 0; got '0'"),
    ],
)
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed])
def test_what_a_builder_is_told_wrongly(builder: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as raised:
        builder([A, B], batch_size=4, **arguments)
    assert message in str(raised.value)


def test_weights_that_change_are_checked_at_each_change_and_are_not_for_mixed() -> None:
    changes: Any = [(0, {"a": 1, "b": 1}), (5, {"a": 1, "c": 1})]
    with pytest.raises(PlanError, match="'b' has none and 'c' is not a source"):
        equitar.debiased([A, B], batch_size=4, steps=10, weights=changes)
    with pytest.raises(PlanError, match=r"`weights` of `mixed` must map .*; only `debiased` changes them at steps"):
        equitar.mixed([A, B], batch_size=4, steps=10, weights=changes[:1])


def test_a_source_that_may_be_left_out_needs_no_weight() -> None:
    equitar.debiased([A, B], batch_size=4, weights={"a": 1}, small_sources="leave_out")


@pytest.mark.parametrize("stages", [wds.decode(), None, "pil"])
def test_stages_that_are_no_list(stages: Any) -> None:
    with pytest.raises(StageError, match=r"`stages` must be a list of stages|a stage must be a callable"):
        equitar.debiased([A], batch_size=4, stages=stages)
    with pytest.raises(StageError, match=r"`stages` must be a list of stages|a stage must be a callable"):
        equitar.debiased([Source("a", "a.tar", stages=stages)], batch_size=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 3}, "`name` must be a text; got a int for source 3"),
        ({"urls": 3}, "`urls` must be a text or a list of texts, such as str(path); got a int"),
        ({"urls": [Path("a.tar")]}, "`urls` must be texts, such as str(path); got a PosixPath for source 'a'"),
        ({"sidecars": Path("a")}, "`sidecars` must be a text, such as str(path); got a PosixPath"),
        ({"keep": ["key"]}, "`keep` must be 'FILE' of keys, '!FILE', a share, split(i, k) or a function; got a list"),
        ({"storage_options": "secret"}, "`storage_options` must be a dict; got a str for source 'a'"),
        ({"cache": 3}, "`cache` must be equitar.Cache(...) or the name of a folder; got a int"),
        ({"retries": 3}, "`retries` must be equitar.Retries(...); got a int"),
    ],
)
def test_a_source_of_wrong_kinds(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as raised:
        Source(**{"name": "a", "urls": "a.tar", **arguments})
    assert message in str(raised.value)


@pytest.mark.parametrize("function", [equitar.index, equitar.check, equitar.summarize, equitar.stats, equitar.export])
def test_commands_in_python_take_sources_not_texts(function: Any, tmp_path: Path) -> None:
    more = [str(tmp_path / "x.parquet")] if function is equitar.export else []
    with pytest.raises(SourceError, match=r"`sources` must be a list of equitar\.Source; got 'a\.tar'"):
        function("a.tar", *more)


@pytest.mark.parametrize(("name", "value"), [("num_workers", -1), ("num_workers", "4"), ("slots", -1)])
def test_a_loader_takes_whole_numbers(name: str, value: Any) -> None:
    batches = equitar.debiased([A], batch_size=4)
    with pytest.raises(PlanError, match=rf"`{name}` must be an integer >= 0; got {value!r}"):
        equitar.Loader(batches, **{"num_workers": 1, name: value})


@pytest.mark.parametrize(("part", "parts"), [(0.5, 2), (0, 2.5), ("0", 2), (True, 2)])
def test_parts_of_a_split_that_are_no_whole_numbers_are_refused(part: Any, parts: Any) -> None:
    with pytest.raises(ValueError, match=r"`parts?` must be an integer; got"):
        equitar.split(part, parts)


def request_of(batches: Batches) -> Request:
    return execution_of(batches).request


@pytest.mark.parametrize("function", [int, np.int8, np.int64, np.uint16])
def test_integers_of_numpy_are_integers_and_look_the_same_in_a_plan(function: Any) -> None:
    spec: dict[str, Any] = {"batch_size": 8, "world_size": 2, "lanes": 1, "seed": 3, "epoch": 1, "shuffle": 40}
    assert repr(PlanSpec(**{name: function(value) for name, value in spec.items()})) == repr(PlanSpec(**spec))
    recipes = [
        Mixed(
            weights={"a": kind(2)}, steps=kind(7), max_passes=None, restart_each_epoch=False, composition="stratified"
        )
        for kind in (function, int)
    ]
    assert repr(recipes[0]) == repr(recipes[1])
    batches = equitar.debiased(
        [A],
        batch_size=function(8),
        steps=function(4),
        accumulation_steps=function(2),
        rank=function(0),
        world_size=function(2),
    )
    assert repr(request_of(batches).recipe) == repr(
        request_of(equitar.debiased([A], batch_size=8, steps=4, accumulation_steps=2)).recipe
    )
    assert type(request_of(batches).batch_size) is type(request_of(batches).ranks.rank) is int


@pytest.mark.parametrize("value", [np.float64(8), np.bool_(True), True, 8.0, "8", None, np.array([8])])
def test_other_things_are_not_integers(value: Any) -> None:
    with pytest.raises(PlanError, match="`batch_size` must be an integer >= 1; got"):
        check_integer("batch_size", value, 1)


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(1), 0.5, 1])
def test_numbers_of_numpy_become_plain_numbers(value: Any) -> None:
    assert type(check_number("max_passes", value)) in (int, float)


@pytest.mark.parametrize("repeat", [0.5, np.float64(0.5), "median", equitar.RepeatFactor(0.5)])
def test_a_threshold_is_short_for_its_repeat_factor(repeat: Any) -> None:
    expected = equitar.RepeatFactor("median" if isinstance(repeat, str) else 0.5)
    assert repr(RepeatFactor.of(repeat)) == repr(expected)
    assert repr(request_of(equitar.debiased([A], batch_size=4, repeat=repeat)).repeat) == repr(expected)


ROWS = LabelRows.of_sets([[0]] * 99 + [[0, 1]])


def test_samplers_take_the_median_as_builders_do() -> None:
    by_name = RepeatFactorSampler(ROWS, "median", rank=0, world_size=1)
    assert list(by_name) == list(RepeatFactorSampler(ROWS, RepeatFactor("median"), rank=0, world_size=1))


@pytest.mark.parametrize("repeat", [True, "lvis", 2, -0.1, float("nan"), [0.5]])
def test_samplers_refuse_what_is_not_a_threshold(repeat: Any) -> None:
    with pytest.raises(PlanError, match="`repeat` must be a threshold in"):
        RepeatFactorSampler(ROWS, repeat, rank=0, world_size=1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": -1}, "`weights` must be finite numbers >= 0; got -1 for source 'a'"),
        ({"a": True}, "`weights` must be finite numbers >= 0; got True for source 'a'"),
        (equitar.Passes({"a": float("nan")}), "`passes` must be finite numbers >= 0; got nan for source 'a'"),
        (0.5, "`weights` must map the name of each source to a number; got 0.5"),
        ([0.5], "`weights` must map the name of each source to a number, or list pairs"),
        ([(0.5, {"a": 1})], "`from_step` must be an integer >= 0; got 0.5"),
    ],
)
def test_weights_are_checked_before_anything_is_read(weights: Any, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        equitar.debiased([A], batch_size=4, weights=weights)


def test_the_order_in_which_weights_are_written_is_lost_when_a_recipe_is_made() -> None:
    written, again = [{"b": np.float64(1), "a": 2}, {"a": 2, "b": 1.0}]
    first, second = (equitar.debiased([A, B], batch_size=4, steps=9, weights=weights) for weights in (written, again))
    assert repr(request_of(first).recipe) == repr(request_of(second).recipe)
