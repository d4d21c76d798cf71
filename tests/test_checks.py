"""Arguments that cannot be meant are refused where they are given: nothing is indexed, read or started here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

import equitar
from equitar.errors import PlanError, SourceError, StageError
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
        (A, PlanError, "`sources` must be a list of sources; got the single source 'a'"),
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
        ({"weights": {"a": 1, "bb": 1}}, SHARES + "'b' has none and 'bb' is not a source"),
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
    with pytest.raises(ValueError, match=r"`parts?` must be an int; got"):
        equitar.split(part, parts)
