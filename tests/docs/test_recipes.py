"""Do the recipes do what their pages say? A page shows parts of a script in `examples/`, and the scripts run here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import equitar
from helpers.pages import EXAMPLES, is_part_of, python_blocks, write_digits

SCRIPT_OF = {
    "recipes/ddp.md": "ddp_contrastive",
    "recipes/detection.md": "detection",
    "recipes/hugging_face.md": "hf_trainer accelerate_loop",
    "recipes/lightning.md": "lightning_clip",
    "recipes/meshes.md": "mesh_training lightning_mesh",
    "recipes/samplers.md": "trainer_samplers",
    "recipes/open_clip.md": "open_clip_data",  # run by tests/system/test_open_clip.py
}
BATCH = re.compile(r"^rank (\d) epoch (\d) step (\d+) (\w+) (.*)$", re.MULTILINE)
STEP = re.compile(r"step +(\d+) (\w+) +loss ([\d.]+)")


def run(script: str, *words: object, ranks: int = 0) -> str:
    """Run a script, as a rank alone or by torchrun with more of them, and return what it printed."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # what torchrun would set
    paths = os.pathsep.join([str(Path(equitar.__file__).parents[1]), str(EXAMPLES)])
    ran = subprocess.run(
        [sys.executable, *(torchrun if ranks > 1 else []), str(EXAMPLES / script), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={
            **os.environ,
            **(alone if ranks == 1 else {}),
            "PYTHONPATH": paths,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes") / "shards"
    write_digits(folder)
    index(folder)
    return folder


def index(folder: Path) -> None:
    sources = [equitar.Source(name, f"{folder}/{name}-*.tar") for name in ("digits", "negatives")]
    equitar.index(sources, jobs=1, progress=False)


def links_to(shards: Path, folder: Path) -> None:
    """Make a folder of the same shards, for a run that leaves its checkpoints beside them."""
    folder.mkdir(exist_ok=True)
    for path in shards.glob("*.tar"):
        (folder / path.name).symlink_to(path)
    index(folder)


@pytest.mark.parametrize("page", SCRIPT_OF)
def test_a_page_shows_parts_of_the_script_that_runs(page: str) -> None:
    script = "\n".join((EXAMPLES / f"{name}.py").read_text(encoding="utf-8") for name in SCRIPT_OF[page].split())
    blocks = python_blocks(page)
    assert len(blocks) >= 2
    for block in blocks:
        assert is_part_of(block, script), f"{page} shows what is not in the script:\n{block}"


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_gathered_loss_on_two_ranks_trains_as_on_one_with_the_same_sources_at_every_step(digits: Path) -> None:
    # The script itself asserts equal sources.
    pair = STEP.findall(run("ddp_contrastive.py", digits, "--steps", 6, "--save-at", 2, ranks=2))
    alone = STEP.findall(run("ddp_contrastive.py", digits, "--steps", 6, "--resume", ranks=1))
    assert [int(step) for step, *_ in pair] == list(range(6))
    assert {source for _, source, _ in pair} == {"digits", "negatives"}
    assert [step[:2] for step in alone] == [step[:2] for step in pair[2:]]
    assert [float(loss) for *_, loss in alone] == pytest.approx([float(loss) for *_, loss in pair[2:]], abs=1e-4)
    assert float(pair[-1][2]) < float(pair[0][2])


def test_rare_classes_come_more_often_by_their_factor_to_a_detector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import detection

    epochs, batch_size = 2, 16
    detection.main(tmp_path, 0.5, epochs)
    out = capsys.readouterr().out
    rows = re.findall(r"^(\w+) +(\d+) +([\d.]+) +(\d+) +(\d+)$", out, re.MULTILINE)
    assert {name: float(factor) > 1 for name, _, factor, _, _ in rows} == {"small": True, "tall": True, "wide": False}
    name, images, factor, plain, repeated = rows[0]
    # The rarest class makes the factor of its images. A pass leaves out less than a batch of copies.
    assert name == "small"
    assert int(plain) == pytest.approx(epochs * int(images), abs=epochs * 3)
    assert int(repeated) == pytest.approx(epochs * int(images) * float(factor), abs=epochs * (batch_size // 4))
    losses = re.search(r"loss ([\d.]+) -> ([\d.]+)", out)
    assert losses is not None
    assert float(losses[2]) < float(losses[1]) / 2


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(lightning|torchmetrics)")
def test_a_lightning_run_that_stopped_in_an_epoch_ends_as_one_that_did_not(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    import lightning_clip

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        links_to(digits, folder)
    first = lightning_clip.main(whole, epochs=2, steps=5, devices=1)
    lightning_clip.main(broken, epochs=2, steps=5, devices=1, stop_after=6)  # one step into the second epoch
    again = lightning_clip.main(broken, epochs=2, steps=5, devices=1)
    assert [epoch for epoch, _ in first.came] == [0] * 5 + [1] * 5
    assert len({source for _, source in first.came}) == 2
    assert again.came == first.came[6:]
    for parameter, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, other)


@pytest.mark.distributed
@pytest.mark.slow  # processes that import torch and more
def test_lightning_trains_on_two_devices_with_the_same_sources(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    links_to(digits, tmp_path)
    out = run("lightning_clip.py", tmp_path, "--devices", 2, "--steps", 6, "--epochs", 1)
    came = re.findall(r"rank (\d) epoch 0 (\w+)", out)
    by_rank = [[source for rank, source in came if rank == of_rank] for of_rank in "01"]
    assert len(by_rank[0]) == 6
    assert by_rank[0] == by_rank[1]


def of_ranks(folder: Path, world_size: int, **arguments: Any) -> list[tuple[str, ...]]:
    """Return what `BATCH` must find in the output of a run of two epochs, sorted."""
    from ddp_contrastive import sources_in

    batches_of_ranks = []
    for rank in range(world_size):
        batches = equitar.debiased(
            sources_in(folder), batch_size=32 // world_size, rank=rank, world_size=world_size, **arguments
        )
        loader = equitar.Loader(batches)
        for epoch in range(2):
            for batch in loader:
                words = (str(rank), str(epoch), str(batch["__step__"]), batch["__source__"], " ".join(batch["__key__"]))
                batches_of_ranks.append(words)
    assert {words[3] for words in batches_of_ranks} == {"digits", "negatives"}
    return sorted(batches_of_ranks)


@pytest.mark.distributed
@pytest.mark.slow  # processes that import torch and more
def test_the_trainer_of_transformers_gives_each_of_two_ranks_its_own_batches(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    links_to(digits, tmp_path)
    out = run("hf_trainer.py", tmp_path, "--steps", 5, ranks=2)
    assert sorted(BATCH.findall(out)) == of_ranks(tmp_path, 2, steps=5)


@pytest.mark.filterwarnings("ignore")  # other libraries' business
def test_the_trainer_of_transformers_resumes_within_an_epoch(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    import hf_trainer

    links_to(digits, tmp_path)
    whole = of_ranks(tmp_path, 1, steps=5)
    hf_trainer.main(tmp_path, 5, 6, resume=False)
    assert BATCH.findall(capfd.readouterr().out) == whole[:6]
    hf_trainer.main(tmp_path, 5, -1, resume=True)
    assert BATCH.findall(capfd.readouterr().out) == whole[6:]


@pytest.mark.distributed
@pytest.mark.slow  # processes that import torch and more
def test_a_loop_by_accelerate_gives_each_of_two_ranks_its_own_batches(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    links_to(digits, tmp_path)
    expected = of_ranks(tmp_path, 2, steps=6, accumulation_steps=2)
    out = run("accelerate_loop.py", tmp_path, "--steps", 6, "--accumulate", 2, ranks=2)
    assert sorted(BATCH.findall(out)) == [words for words in expected if words[1] == "0"]


def test_accelerate_saves_and_loads_where_a_loader_stands(digits: Path, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from ddp_contrastive import sources_in

    batches = equitar.debiased(sources_in(digits), batch_size=32, steps=5)
    loader, again = equitar.Loader(batches), equitar.Loader(batches)
    assert len([*loader, *islice(loader, 2)]) == 7  # two steps into the second epoch
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.register_for_checkpointing(loader)
    accelerator.save_state(str(tmp_path))
    another = accelerate.Accelerator(cpu=True)
    another.register_for_checkpointing(again)
    another.load_state(str(tmp_path))
    assert [(again.last.epoch, again.last.step) for _ in again if again.last] == [(1, 2), (1, 3), (1, 4)]
