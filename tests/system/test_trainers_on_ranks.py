"""Trainers on two gloo processes: recipes of samplers and of tensor parallelism in Lightning, and what they warn of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import equitar
from helpers.pages import EXAMPLES, write_digits
from helpers.shards import write_source
from helpers.torchrun import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize("trainer", ["accelerate", "transformers", "lightning"])
def test_a_recipe_of_samplers_shows_every_row_once(trainer: str) -> None:
    pytest.importorskip(trainer)
    ran = torchrun(EXAMPLES / "trainer_samplers.py", trainer, ranks=2)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert re.findall(r"\d+ of \d+ rows are different", ran.stdout) == ["120 of 120 rows are different"] * 2


@pytest.mark.parametrize("script", ["mesh_training.py", "lightning_mesh.py"])
def test_a_recipe_of_meshes_gives_tensor_parallel_peers_the_same_batches(script: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    write_digits(tmp_path)
    equitar.index([equitar.Source(name, f"{tmp_path}/{name}-*.tar") for name in ("digits", "negatives")], jobs=1)
    ran = torchrun(EXAMPLES / script, tmp_path, "--steps", 4, ranks=2)
    assert ran.returncode == 0, ran.stderr[-4000:]
    batches = re.findall(r"^rank \d epoch 0 step (\d) (\w+ .+)$", ran.stdout, re.MULTILINE)
    assert len(batches) == 8
    assert len(set(batches)) == 4


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two tensor-parallel peers wrote down."""
    pytest.importorskip("lightning")
    folder = tmp_path_factory.mktemp("lightning")
    for name, sizes in {"a": [12], "b": [9]}.items():
        write_source(folder / "sources", name, sizes)
    ran = torchrun(Path(__file__).with_name("lightning_mesh.py"), folder / "sources", folder, ranks=2)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_tensor_parallel_peers_in_lightning_get_the_same_batches(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["data_ranks"] == ranks[1]["data_ranks"]
    assert len(ranks[0]["data_ranks"]) == 7


def test_lightning_without_its_ranks_is_refused(ranks: list[dict[str, Any]]) -> None:
    for rank, messages in enumerate(ranks):
        wanted = (
            f"ModelParallelStrategy has this process as data-parallel rank 0 of 1, but rank {rank} of 2 was detected"
        )
        assert wanted in messages["forgotten"]
        assert "with `**equitar.lightning.data_ranks(self.trainer)`" in messages["forgotten"]
