"""States through `torch.distributed.checkpoint`, on gloo: with the same checks as without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.shards import write_sources
from helpers.torchrun import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(280)]

SCRIPT = Path(__file__).with_name("checkpoints.py")
STEPS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder, {"a": [40, 24], "b": [40], "c": [24]})
    return folder


def run(folder: Path, names: str, checkpoint: Path, how: str, results: Path, *, ranks: int) -> list[dict[str, Any]]:
    results.mkdir()
    ended = torchrun(SCRIPT, folder, names, checkpoint, how, results, ranks=ranks)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads((results / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def rest(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return the keys of each global batch that was left."""
    return [
        [key for part in step for key in part] for step in zip(*(result["batches"] for result in results), strict=True)
    ]


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """Return a checkpoint of four ranks, and the global batches that are left after it."""
    place = tmp_path_factory.mktemp("saved")
    results = run(folder, "a,b", place / "checkpoint", "save", place / "results", ranks=4)
    return place / "checkpoint", rest(results)


@pytest.mark.parametrize("how", ["load", "load_stateful"])
def test_two_ranks_continue_where_four_saved(
    how: str, folder: Path, saved: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    checkpoint, expected = saved
    results = run(folder, "a,b", checkpoint, how, tmp_path / "results", ranks=2)
    assert results[0]["position"] == [0, STEPS]
    assert rest(results) == expected


def test_a_checkpoint_that_is_saved_in_the_background_is_loaded(folder: Path, tmp_path: Path) -> None:
    saved = run(folder, "a,b", tmp_path / "checkpoint", "async_save", tmp_path / "first", ranks=2)
    loaded = run(folder, "a,b", tmp_path / "checkpoint", "load", tmp_path / "second", ranks=2)
    assert rest(loaded) == rest(saved)


@pytest.mark.parametrize(
    ("names", "message"),
    [("a", "source 'b' was 1 shards, 40 samples"), ("a,b,c", "source 'c' was not there and is 1 shards, 24 samples")],
)
def test_other_sources_are_refused_within_an_epoch(
    names: str, message: str, folder: Path, saved: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    results = run(folder, names, saved[0], "load", tmp_path / "results", ranks=2)
    assert all(message in result["error"] for result in results)
