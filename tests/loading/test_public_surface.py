from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equitar
from equitar.loading.batches import Batches, execution_of
from equitar.sidecars import catalog
from equitar.sources import Source
from helpers.shards import flat, write_source, write_sources

BUILDERS = (equitar.debiased, equitar.mixed, equitar.exact)
MOST_CHARACTERS, MOST_LINES = 1500, 15


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("surface"), {"a": [9, 7], "b": [12, 4]})


@pytest.mark.parametrize("builder", BUILDERS)
def test_builders_take_a_single_source(builder: Callable[..., Batches], sources: list[Source]) -> None:
    single, listed = builder(sources[0], batch_size=4), builder(sources[:1], batch_size=4)
    assert flat(single) == flat(listed) != []


@pytest.mark.parametrize("builder", BUILDERS)
def test_batches_show_what_users_need_and_nothing_more(builder: Callable[..., Batches], sources: list[Source]) -> None:
    public = [name for name in dir(builder(sources, batch_size=4)) if not name.startswith("_")]
    assert sorted(public) == [
        "compose",
        "extract_keys",
        "load_state_dict",
        "map",
        "map_dict",
        "map_tuple",
        "plan",
        "rename",
        "rename_keys",
        "set_epoch",
        "sources",
        "state_dict",
        "to_tuple",
    ]
    assert all(getattr(Batches, name).__doc__ for name in public)


def test_own_attributes_of_batches_are_private(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    of_webdataset = {"length", "repetitions", "nsamples"}
    assert {name for name in vars(batches) if not name.startswith("_")} <= of_webdataset


def test_a_loader_shows_what_users_need_and_nothing_more(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=4))
    public = [name for name in dir(loader) if not name.startswith("_")]
    assert sorted(public) == [
        "counters",
        "epoch",
        "last",
        "load_state_dict",
        "num_workers",
        "reweight",
        "set_epoch",
        "state_dict",
        "step",
    ]
    assert all(hasattr(loader, name) for name in public)


def test_the_source_of_a_debiased_batch_is_one_name(sources: list[Source]) -> None:
    assert {batch["__source__"] for batch in equitar.debiased(sources, batch_size=4)} == {"a", "b"}


@pytest.mark.parametrize("stages", [[], [iter]])
def test_the_source_of_a_mixed_batch_is_a_name_for_each_sample(stages: list[Any], sources: list[Source]) -> None:
    for batch in equitar.mixed(sources, batch_size=4, stages=stages):
        assert batch["__source__"] == [key.partition("-")[0] for key in batch["__key__"]]


def test_numbers_of_numpy_are_numbers(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=np.int64(4), seed=np.int32(1))
    assert flat(batches) == flat(equitar.debiased(sources, batch_size=4, seed=1))


def test_text_of_batches_says_what_they_are(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4, rank=0, world_size=2)
    assert repr(batches) == "Batches(debiased, 2 sources, batch_size=4)\n  source  samples\n  a\n  b"
    num_steps = len(batches)
    assert repr(batches) == (
        f"Batches(debiased, 2 sources, batch_size=4, rank 0 of 2, {num_steps} steps per epoch)\n"
        "  source  samples\n  a            16\n  b            16"
    )
    assert "single samples" in repr(equitar.mixed(sources))


def test_text_of_a_loader_says_where_it_stands(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=4))
    next(iter(loader))
    first, *_ = repr(loader).splitlines()
    assert first == "Loader(num_workers=0, epoch 0, step 1)"
    assert (
        repr(loader).splitlines()[1].startswith("  Batches(debiased, 2 sources, batch_size=4, rank 0 of 1, 8 steps per")
    )


@pytest.mark.parametrize("builder", BUILDERS)
def test_text_of_a_plan_says_what_it_is(builder: Callable[..., Batches], sources: list[Source]) -> None:
    plan = builder(sources, batch_size=4, rank=0, world_size=2).plan(3)
    assert re.match(
        r"\w*Plan\(epoch 3, \d+ steps, global batch 8\)\n  source  samples\n  a            16\n  b            16",
        repr(plan),
    )


def many_sources(count: int) -> list[Source]:
    return [Source(f"source-{number:04}", f"/data/{number}.tar") for number in range(count)]


def test_texts_are_short_for_a_thousand_sources() -> None:
    batches = equitar.mixed(many_sources(1000), batch_size=4)
    for value in (batches, equitar.Loader(batches)):
        assert len(repr(value)) < MOST_CHARACTERS
        assert repr(value).count("\n") < MOST_LINES
        assert "source-0000" in repr(value)
        assert "990 more" in repr(value)
        assert len(value._repr_html_()) < 2 * MOST_CHARACTERS


def test_the_text_of_a_source_is_short_for_two_thousand_shards() -> None:
    source = Source("many", [f"s3://bucket/{number:06}.tar" for number in range(2000)], keep=str)
    assert len(repr(source)) < 400
    assert "1,998 more" in repr(source)
    assert len(repr(Source("long", "x" * 9999))) < 400


def test_texts_read_no_file(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a text must not read")

    batches = equitar.debiased(sources, batch_size=4)
    loader = equitar.Loader(batches)
    monkeypatch.setattr(builtins, "open", refused)
    monkeypatch.setattr(Path, "open", refused)
    for module in (catalog, __import__("equitar.loading.request", fromlist=["request"])):
        monkeypatch.setattr(module, "catalog_of", refused)
    texts = [repr(sources), repr(batches), batches._repr_html_(), repr(loader), loader._repr_html_()]
    assert all(texts)
    assert execution_of(batches).request.resolved_already is None


def test_texts_show_no_secrets() -> None:
    source = Source("a", "https://user:secret@host/a.tar?token=secret", storage_options={"key": "secret"})
    batches = equitar.debiased(source, batch_size=4)
    loader = equitar.Loader(batches)
    for text in (repr(source), repr(batches), batches._repr_html_(), repr(loader), loader._repr_html_()):
        assert "secret" not in text


def test_tables_for_notebooks_escape_names(tmp_path: Path) -> None:
    source = write_source(tmp_path, "plain", [8])
    source = Source("<b>&", source.urls, root=source.root)
    batches = equitar.debiased(source, batch_size=4)
    plan = batches.plan(0)
    for html in (batches._repr_html_(), equitar.Loader(batches)._repr_html_(), plan._repr_html_()):
        assert "&lt;b&gt;&amp;" in html
        assert "<b>" not in html
        assert html.count("<tr>") == html.count("</tr>") == 2
