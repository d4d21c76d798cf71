"""Meshes on four gloo processes: who gets which batches, and how ranks that do not fit together are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.shards import write_source
from helpers.torchrun import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
ON_TWO = [
    *("dp of dp x tp", "group of dp", "pairs of dp", "dp of accelerate"),
    *("repeats, dp of dp x tp", "debiased, dp of dp x tp", "wrapped, dp of dp x tp"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of four ranks wrote down."""
    folder = tmp_path_factory.mktemp("meshes")
    for name, sizes in {"a": [30, 10], "b": [24]}.items():
        write_source(folder / "sources", name, sizes)
    ran = torchrun(Path(__file__).with_name("mesh_ranks.py"), folder / "sources", folder, ranks=4)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def rows(batches: list[Any]) -> set[Any]:
    return {row for batch in batches for row in (batch if isinstance(batch, list) else [batch])}


@pytest.mark.parametrize("name", ON_TWO)
def test_tensor_parallel_peers_get_the_same_batches_and_data_parallel_ranks_others(
    name: str, ranks: list[dict[str, Any]]
) -> None:
    first, peer, other, peer_of_other = (rank[name] for rank in ranks)
    assert (first, other) == (peer, peer_of_other)
    assert not rows(first) & rows(other)


@pytest.mark.parametrize("name", ["group of dp", "pairs of dp"])
def test_mesh_group_and_pairs_mean_the_same(name: str, ranks: list[dict[str, Any]]) -> None:
    assert [rank[name] for rank in ranks] == [rank["dp of dp x tp"] for rank in ranks]


def test_several_dimensions_are_flattened_row_by_row(ranks: list[dict[str, Any]]) -> None:
    assert [rank["replicate x shard"] for rank in ranks] == [rank["no mesh"] for rank in ranks]
    assert len(set().union(*(rows(rank["no mesh"]) for rank in ranks))) == sum(
        len(rows(rank["no mesh"])) for rank in ranks
    )


@pytest.mark.parametrize("name", ["HSDP", "FSDP2 beside tensor parallelism"])
def test_sharded_models_train_alike_on_all_ranks(name: str, ranks: list[dict[str, Any]]) -> None:
    norms = [rank[name] for rank in ranks]
    assert len(norms[0]) == 2
    assert norms == [norms[0]] * 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("whole mesh", "`mesh` must have data-parallel dimensions only"),
        ("another seed on a peer", "global rank 3 has seed 1, plan "),
        ("another batch size by hand", "global rank 2 has batch_size 4, plan "),
        ("mesh forgotten on one rank", "global rank 2 has world_size 4, plan "),
        (
            "local ranks of two nodes",
            "of 4 processes none is rank 2, 3, whose samples would never be seen; rank 0 is taken by",
        ),
        ("a rank taken three times", "rank 1 is taken by the global ranks 1, 2, 3, and rank 0 by the global ranks 0"),
        ("ranks beyond the world", "of 4 processes none is rank 4, 5, 6, 7"),
        ("another draw", "global rank 2 has seed 1, plan "),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused_on_all_of_them(
    name: str, message: str, ranks: list[dict[str, Any]]
) -> None:
    refusals = [rank[name] for rank in ranks]
    assert any(message in text for text in refusals), refusals
    assert "not refused" not in refusals


def test_peers_in_groups_that_differ_are_refused_as_they_come(ranks: list[dict[str, Any]]) -> None:
    refusals = [rank["another seed on a peer's group"] for rank in ranks]
    assert sorted(text[:30] for text in refusals) == ["all peers of a data-parallel r"] * 2 + ["not refused"] * 2


def test_a_loader_on_one_rank_only_is_left_alone_if_it_says_so(ranks: list[dict[str, Any]]) -> None:
    assert len(rows(ranks[0]["rank 0 of 1"])) == 63


@pytest.mark.parametrize("name", ["group of those that load", "first of each pair"])
def test_one_process_of_each_pair_may_load_for_both(name: str, ranks: list[dict[str, Any]]) -> None:
    assert [ranks[0][name], ranks[2][name]] == [ranks[0]["dp of dp x tp"], ranks[2]["dp of dp x tp"]]
    assert [rank["all after the group"] for rank in ranks] == ["not refused"] * 4
    assert [rank["all after the pairs"] for rank in ranks] == ["not refused"] * 4


def test_a_rank_that_waits_in_vain_names_the_others_and_touches_no_collective(ranks: list[dict[str, Any]]) -> None:
    assert "but global ranks 1, 2, 3 did not come to the first batch within 2 s" in ranks[0]["rank 0 alone"]
    assert "for a loader on one rank only, pass `rank=0, world_size=1`" in ranks[0]["rank 0 alone"]
    assert [rank["all after one"] for rank in ranks] == ["not refused"] * 4
    assert [rank["sum of ranks"] for rank in ranks] == [6] * 4
