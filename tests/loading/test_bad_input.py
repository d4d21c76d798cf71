"""Bad input: an error of the right type, before the first step, that names what is wrong, where, and the mend."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equitar
from equitar.errors import LabelError, PlanError, ShardError, SidecarError, SourceError, StaleSidecarError
from equitar.loading.batches import Batches
from equitar.sidecars.container import pack, unpack
from equitar.sources import Source
from helpers.shards import indexed, rare_first, write_source, write_sources, write_tars

Builder = Callable[..., Batches]
BUILDERS = pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed, equitar.exact])
WEIGHED = pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("sources"), {"a": [30, 50, 20], "b": [40]})


def planned(builder: Builder, sources: list[Source], **arguments: Any) -> Any:
    """Plan, and read nothing."""
    return builder(sources, **{"batch_size": 8, **arguments}).plan()


# ---- shards and sidecars ------------------------------------------------------------------------------------------------


@BUILDERS
def test_no_such_shard(builder: Builder, tmp_path: Path) -> None:
    nothing = Source("a", str(tmp_path / "*.tar"))
    with pytest.raises(
        SourceError, match=r"source 'a' has the pattern '.*/\*\.tar', which matches no file; folder '.*' holds nothing"
    ):
        planned(builder, [nothing])


def test_no_such_shard_when_it_is_indexed(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"there-not\.tar"):
        indexed(Source("a", str(tmp_path / "there-not.tar")))


def test_a_shard_that_is_gone_since_it_was_indexed(tmp_path: Path) -> None:
    paths = write_tars(tmp_path, "a", [9, 9])
    source = indexed(Source("a", paths))
    os.unlink(paths[1])  # noqa: PTH108
    with pytest.raises(SourceError, match=r"a/001\.tar .*source 'a'.*is missing.*restore"):
        list(equitar.debiased([source], batch_size=8))


@BUILDERS
def test_no_sidecar(builder: Builder, tmp_path: Path) -> None:
    source = Source("a", write_tars(tmp_path, "a", [9]))
    with pytest.raises(SidecarError, match=r"000\.presence\.npz is missing .*; run `equitar index .*a=.*000\.tar.*`"):
        planned(builder, [source])


@BUILDERS
def test_a_sidecar_of_another_tar(builder: Builder, tmp_path: Path) -> None:
    small, large = write_source(tmp_path, "a", [9]), write_source(tmp_path, "b", [60])
    shutil.copy(f"{large.root}/000.tar", f"{small.root}/000.tar")
    with pytest.raises(StaleSidecarError, match=r"a/000\.tar has \d+ bytes but .* \d+; run `equitar index"):
        list(builder([small], batch_size=8))


def test_a_sidecar_that_was_swapped(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [9, 40])
    shutil.copy(f"{source.root}/001.presence.npz", f"{source.root}/000.presence.npz")
    with pytest.raises(
        StaleSidecarError, match=r"000\.presence\.npz is not the sidecar that the summary of 'a'.*index"
    ):
        list(equitar.debiased([source], batch_size=8))


@pytest.mark.parametrize("lie", [1 << 31, -9, None], ids=["a label too large", "a label too small", "a row too few"])
def test_a_sidecar_that_only_claims_to_be_that_of_the_summary(tmp_path: Path, lie: int | None) -> None:
    source = write_source(tmp_path, "a", [9, 40])
    sidecar = Path(f"{source.root}/001.presence.npz")
    arrays = unpack(sidecar.read_bytes())
    if lie is not None:
        arrays["label_ids"] = np.append(arrays["label_ids"][:-1], lie)
    else:  # the last two rows are one
        for name in ("key_lengths", "row_members"):
            arrays[name] = np.append(arrays[name][:-2], arrays[name][-2:].sum())
        arrays |= {name: arrays[name][:-1] for name in ("row_labels", "label_ids", "label_counts")}
    sidecar.write_bytes(pack(arrays))
    with pytest.raises(
        StaleSidecarError, match=r"001\.presence\.npz is not the sidecar that the summary of 'a'.*index"
    ):
        list(equitar.debiased([source], batch_size=8, repeat=0.5))


@BUILDERS
def test_a_source_without_shards(builder: Builder) -> None:
    with pytest.raises(ValueError, match=r"`urls` must name at least one shard; got .* for source 'a'"):
        planned(builder, [Source("a", [])])


@BUILDERS
def test_a_shard_in_two_sources(builder: Builder, sources: list[Source]) -> None:
    again = replace(sources[0], name="again")
    with pytest.raises(
        SourceError, match=r"belong to one source; .*/a/00.\.tar is in 'a' and in 'again' .*give both a `keep`"
    ):
        planned(builder, [*sources, again])


def test_a_shard_in_two_sources_by_another_spelling(sources: list[Source]) -> None:
    again = Source("again", f"file://{sources[0].root}/000.tar", root=sources[0].root)
    with pytest.raises(SourceError, match="is in 'a' and in 'again'"):
        planned(equitar.debiased, [*sources, again])


def test_a_shard_twice_in_one_source(tmp_path: Path) -> None:
    paths = write_tars(tmp_path, "a", [9])
    with pytest.raises(SourceError, match=r"source 'a' lists '000\.tar' twice, .*; list it once"):
        planned(equitar.debiased, [Source("a", paths * 2)])


@BUILDERS
def test_two_sources_of_one_name(builder: Builder, sources: list[Source]) -> None:
    with pytest.raises(SourceError, match="names of sources must be unique; two are called 'a'"):
        planned(builder, [sources[0], replace(sources[1], name="a")])


@BUILDERS
def test_no_sources(builder: Builder) -> None:
    with pytest.raises(PlanError, match="at least one source; got none"):
        planned(builder, [])


def test_a_choice_that_is_none_is_told_before_a_shard_is_read(tmp_path: Path) -> None:
    source = Source("a", write_tars(tmp_path, "a", [3]))
    wrong: Any = "skp"
    with pytest.raises(ValueError, match=r"`missing_shards` must be 'error' or 'skip'; got 'skp'"):
        equitar.index(source, missing_shards=wrong, progress=False)
    with pytest.raises(ValueError, match=r"`jobs` must be >= 1; got 0"):
        equitar.index(source, jobs=0, progress=False)
    assert not list(tmp_path.rglob("*.npz"))


def test_a_list_of_keys_that_meets_none_is_told(
    sources: list[Source], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys.txt").write_text("other/a-0001\n")
    planned(equitar.debiased, [replace(sources[0], keep=f"!{tmp_path}/keys.txt")])
    assert "source 'a': `keep` leaves out nothing, by '!" in caplog.text
    with pytest.raises(PlanError, match="source 'a' keeps none of its 100 samples"):
        planned(equitar.debiased, [replace(sources[0], keep=f"{tmp_path}/keys.txt")])


def test_lines_of_keys_may_end_as_on_windows(sources: list[Source], tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_bytes(b"a-0001\r\na-0002\r\n")
    plan = planned(equitar.debiased, [replace(sources[0], keep=f"{tmp_path}/keys.txt")], batch_size=2)
    assert [account.copies for account in plan.account] == [2]


def test_a_list_of_keys_that_is_not_there(sources: list[Source]) -> None:
    with pytest.raises(SourceError, match=r"`keep` file not found: no\.txt; check the path"):
        planned(equitar.debiased, [replace(sources[0], keep="!no.txt")])


# ---- labels -------------------------------------------------------------------------------------------------------------


def test_no_label_field(tmp_path: Path) -> None:
    source = Source("a", write_tars(tmp_path, "a", [3]))
    with pytest.raises(
        LabelError,
        match=r"labels are read from field 'json' but samples of .*a/000\.tar have .*; name one of these, or pass",
    ):
        indexed(source, labels="json:label")


def test_an_unparsable_label(tmp_path: Path) -> None:
    source = Source("a", write_tars(tmp_path, "a", [3]))
    with pytest.raises(
        ShardError, match=r"got 'text of a-0000' for key 'a-0000' of .*a/000\.tar; read such labels with"
    ):
        indexed(source, labels="txt")


@BUILDERS
def test_repeats_without_labels(builder: Builder, tmp_path: Path) -> None:
    source = indexed(Source("a", write_tars(tmp_path, "a", [9])), labels=None)
    with pytest.raises(
        SidecarError, match=r"`repeat` needs labels but source 'a' .*without; run `equitar index .*--labels"
    ):
        planned(builder, [source], repeat=0.1)


# ---- sizes --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty(tmp_path: Path) -> Source:
    return write_source(tmp_path, "empty", [0])


@WEIGHED
def test_an_empty_source(builder: Builder, empty: Source, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match="source 'empty' has no samples; leave it out or give it weight 0"):
        planned(builder, [*sources, empty])


@WEIGHED
def test_an_empty_source_of_no_weight_is_no_error(builder: Builder, empty: Source, sources: list[Source]) -> None:
    weights = {"a": 1, "b": 1, "empty": 0}
    assert planned(builder, [*sources, empty], weights=weights).num_steps == 17


def test_nothing_to_validate(empty: Source) -> None:
    with pytest.raises(PlanError, match="the sources empty have no samples; check `keep`"):
        planned(equitar.exact, [empty])


def test_a_source_smaller_than_a_global_batch(sources: list[Source]) -> None:
    with pytest.raises(
        PlanError,
        match=re.escape(
            "source 'b' has 40 samples but one global batch needs 48 (4 ranks x 12); use "
            '`small_sources="leave_out"` (`--small-sources leave_out`) or `mixed` (`--mixed`), or lower `batch_size` to at most 10'
        ),
    ):
        planned(equitar.debiased, sources, batch_size=12, rank=0, world_size=4)


def test_the_batch_size_of_the_mend_works(sources: list[Source]) -> None:
    assert planned(equitar.debiased, sources, batch_size=10, rank=0, world_size=4).num_steps == 3


def test_all_sources_together_smaller_than_a_global_batch(sources: list[Source]) -> None:
    with pytest.raises(
        PlanError, match=r"fewer than the 141 samples of one global batch.*lower `batch_size` to at most 140"
    ):
        planned(equitar.mixed, sources, batch_size=141)


def test_all_sources_left_out(sources: list[Source]) -> None:
    with pytest.raises(PlanError):
        planned(equitar.debiased, sources, batch_size=101, small_sources="leave_out")


@WEIGHED
def test_more_copies_of_a_sample_than_batches(builder: Builder, tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [40], label=rare_first)  # r = 4 at t = 0.4
    with pytest.raises(
        PlanError,
        match=r"source 'a' has up to 4 copies of a sample but 3 global batches.*lower `batch_size` to at most 1\d",
    ):
        planned(builder, [source], batch_size=14, repeat=0.4)


def test_more_copies_than_any_batch_size_can_part(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [4])
    with pytest.raises(PlanError, match=r"no smaller `batch_size` helps: repeat less \(`cap`, a lower threshold\)"):
        planned(equitar.debiased, [source], batch_size=1, steps=3, repeat=lambda sidecar: [30.0, 1.0, 1.0, 1.0])


# ---- weights ------------------------------------------------------------------------------------------------------------


@WEIGHED
@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"a": 1, "b": 1, "c": 1}, "one number for each of the sources a, b; 'c' is not a source"),
        ({"a": 1}, "one number for each of the sources a, b; 'b' has none"),
        ({"a": 1, "b": -0.5}, "finite numbers >= 0; got -0.5 for source 'b'"),
        ({"a": math.nan, "b": 1}, "finite numbers >= 0; got nan for source 'a'"),
        ({"a": math.inf, "b": 1}, "finite numbers >= 0; got inf for source 'a'"),
        ({"a": 0, "b": 0}, "positive for at least one source that has samples; got {'a': 0, 'b': 0}"),
        ({"a": "1", "b": 1}, "finite numbers >= 0; got '1' for source 'a'"),
    ],
    ids=["unknown", "missing", "negative", "NaN", "infinite", "all zero", "text"],
)
def test_wrong_weights(builder: Builder, weights: Any, complaint: str, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match=r"`weights` must (be|have) " + re.escape(complaint)):
        planned(builder, sources, weights=weights)


@WEIGHED
@pytest.mark.parametrize("weights", [[0.7, 0.3], [0.7], 0.5, (1, 2, 3)], ids=str)
def test_weights_that_are_no_mapping(builder: Builder, weights: Any, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match="`weights`"):
        planned(builder, sources, weights=weights)


def test_a_weight_that_rounds_to_no_step(sources: list[Source]) -> None:
    with pytest.raises(
        PlanError, match="source 'b' has a weight but its share of the steps rounds to none; raise it or"
    ):
        planned(equitar.debiased, sources, weights={"a": 1000, "b": 1}, steps=10)


# ---- numbers ------------------------------------------------------------------------------------------------------------


@BUILDERS
@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "8", True], ids=repr)
def test_wrong_batch_size(builder: Builder, batch_size: Any, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match=rf"`batch_size` must be an integer >= 1; got {re.escape(repr(batch_size))}"):
        planned(builder, sources, batch_size=batch_size)


@WEIGHED
@pytest.mark.parametrize(
    ("name", "lowest"),
    [("seed", 0), ("shuffle", 0), ("plan_workers", 1), ("steps", 1)],
    ids=["seed", "shuffle", "plan_workers", "steps"],
)
@pytest.mark.parametrize("value", [-1, 1.5, "3"], ids=repr)
def test_wrong_numbers(builder: Builder, name: str, lowest: int, value: Any, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match=rf"`{name}` must be an integer >= {lowest}; got {re.escape(repr(value))}"):
        planned(builder, sources, **{name: value})


@BUILDERS
def test_a_rank_without_its_world(builder: Builder, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match="`rank` and `world_size` go together; got 1 and None"):
        planned(builder, sources, rank=1)


@BUILDERS
def test_a_rank_outside_its_world(builder: Builder, sources: list[Source]) -> None:
    with pytest.raises(ValueError, match=r"`rank` must be in \[0, 2\); got 2"):
        list(builder(sources, batch_size=8, rank=2, world_size=2))


@pytest.mark.parametrize(("name", "value"), [("same_source_across", "all"), ("small_sources", "skip")])
def test_wrong_words(name: str, value: str, sources: list[Source]) -> None:
    with pytest.raises(PlanError, match=rf"`{name}` must be '\w+' or '\w+'; got '{value}'"):
        equitar.debiased(sources, batch_size=8, **{name: value})  # type: ignore[arg-type]


def test_fields_that_are_one_text(sources: list[Source]) -> None:
    with pytest.raises(ValueError, match="`fields` must be a collection of names; got the single 'txt'"):
        list(equitar.debiased(sources, batch_size=8, fields="txt"))


def test_fields_that_no_sample_has(sources: list[Source]) -> None:
    with pytest.raises(
        ValueError, match=r"`fields` must name a field of each shard; got \['jpeg'\] but .*tar has cls, txt"
    ):
        list(equitar.debiased(sources, batch_size=8, fields=["jpeg"]))
