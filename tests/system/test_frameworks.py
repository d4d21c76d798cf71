"""Loaders of others: torchdata's StatefulDataLoader, Lightning, and accelerate, which must not share out again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import equitar
from equitar.errors import PlanError
from equitar.loading.batches import Batches, own_copy
from equitar.sources import Source
from helpers.shards import Drops, keys_of_batches, write_sources

if TYPE_CHECKING:
    from system.lightning_run import Net

TESTS = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata 0.11 with torch 2.13
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(lightning|torchmetrics|accelerate|torchdata)"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.fixture(scope="module")
def sources(folder: Path) -> list[Source]:
    return write_sources(folder, {"a": [30, 50, 20], "b": [40]})


def debiased(sources: list[Source], **arguments: Any) -> Batches:
    return equitar.debiased(sources, **{"batch_size": 8, **arguments})


# ---- torchdata ----------------------------------------------------------------------------------------------------------


def stateful(batches: Batches, num_workers: int) -> Any:
    stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
    return stateful_dataloader.StatefulDataLoader(batches, batch_size=None, num_workers=num_workers)


@pytest.mark.parametrize("steps", [0, 1, 8, 16])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_a_stateful_data_loader_goes_on_byte_for_byte(num_workers: int, steps: int, sources: list[Source]) -> None:
    batches = debiased(sources, stages=[Drops(3)])
    whole = list(stateful(own_copy(batches), num_workers))
    loader = stateful(own_copy(batches), num_workers)
    given = iter(loader)
    assert [next(given) for _ in range(steps)] == whole[:steps]
    state = loader.state_dict()
    again = stateful(own_copy(batches), num_workers)
    again.load_state_dict(state)
    assert list(again) == whole[steps:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_data_loader_at_its_end_goes_on_with_the_next_epoch(num_workers: int, sources: list[Source]) -> None:
    own = own_copy(debiased(sources))
    loader = stateful(own, num_workers)
    own.set_epoch(4)
    list(loader)
    state = loader.state_dict()
    other = own_copy(debiased(sources))
    again = stateful(other, num_workers)
    again.load_state_dict(state)
    list(again)  # nothing is left of the epoch, or it is the next one already
    other.set_epoch(5)
    expected = own_copy(debiased(sources, plan_workers=max(1, num_workers)))
    expected.set_epoch(5)
    assert keys_of_batches(again) == keys_of_batches(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_data_loader_refuses_a_state_of_another_run(num_workers: int, sources: list[Source]) -> None:
    loader = stateful(debiased(sources), num_workers)
    list(islice(iter(loader), 3))
    again = stateful(debiased(sources, seed=1), num_workers)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(PlanError, match="seed was 0 and is 1"):
        next(iter(again))


# ---- Lightning ----------------------------------------------------------------------------------------------------------


def fit(folder: Path, batches: Any, *, callbacks: bool = True, checkpoint: Path | None = None, **arguments: Any) -> Net:
    pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    from equitar.lightning import SetEpoch
    from system.lightning_run import Net, quiet_trainer

    validation, save = arguments.pop("validation", None), arguments.pop("save", None)
    used: list[Callback] = [SetEpoch()] if callbacks else []
    if save is not None:
        used.append(ModelCheckpoint(dirpath=folder, save_top_k=-1, **save))
    net = Net()
    trainer = quiet_trainer(folder, used, enable_checkpointing=save is not None, **arguments)
    trainer.fit(net, batches, validation, ckpt_path=checkpoint, weights_only=False)
    return net


def of_epochs(batches: Batches, steps: int | None, *epochs: int) -> list[tuple[int, int, list[str]]]:
    """Return what a run must see of epochs, each as long as `steps`."""
    alone, result = own_copy(batches), []
    for epoch in epochs:
        alone.set_epoch(epoch)
        result += [(epoch, batch["__step__"], batch["__key__"]) for batch in islice(alone, steps)]
    return result


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("kind", ["Loader", "DataLoader"])
def test_every_epoch_of_a_trainer_has_its_own_data(
    kind: str, limit: int | None, num_workers: int, sources: list[Source], tmp_path: Path
) -> None:
    batches = debiased(sources, plan_workers=2)
    loader = (
        equitar.Loader(batches, num_workers=num_workers)
        if kind == "Loader"
        else DataLoader(own_copy(batches), batch_size=None, num_workers=num_workers)
    )
    net = fit(tmp_path, loader, limit_train_batches=limit)
    assert net.seen == of_epochs(batches, limit, 0, 1, 2)


def test_a_loader_needs_no_callback_where_epochs_are_complete(sources: list[Source], tmp_path: Path) -> None:
    batches = debiased(sources, steps=6)
    assert fit(tmp_path, equitar.Loader(batches), callbacks=False).seen == of_epochs(batches, None, 0, 1, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_validation_and_its_sanity_check_do_not_disturb_training(
    num_workers: int, sources: list[Source], tmp_path: Path
) -> None:
    batches, validation = debiased(sources, plan_workers=2), equitar.exact(sources, batch_size=20)
    loaders = [equitar.Loader(planned, num_workers=num_workers) for planned in (batches, validation)]
    net = fit(tmp_path, loaders[0], validation=loaders[1], val_check_interval=5, num_sanity_val_steps=2)
    assert net.seen == of_epochs(batches, None, 0, 1, 2)
    assert net.validated == 2 + 3 * 3 * 7  # each of three times an epoch, all of it


@pytest.mark.parametrize("callbacks", [True, False])
def test_within_an_epoch_a_checkpoint_leads_on_with_the_next_batch(
    callbacks: bool, sources: list[Source], tmp_path: Path
) -> None:
    batches = debiased(sources, stages=[Drops(3)])
    whole = fit(tmp_path, equitar.Loader(batches), callbacks=callbacks, save={"every_n_train_steps": 4}, max_epochs=2)
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == 8
    for checkpoint in checkpoints:
        done = int(checkpoint.stem.rpartition("=")[2])
        net = fit(tmp_path, equitar.Loader(batches), callbacks=callbacks, checkpoint=checkpoint, max_epochs=2)
        assert net.seen == whole.seen[done:]


@pytest.mark.parametrize("limit", [None, 5])
def test_from_the_end_of_an_epoch_a_checkpoint_leads_on_with_the_next(
    limit: int | None, sources: list[Source], tmp_path: Path
) -> None:
    batches, save = debiased(sources), {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    whole = fit(tmp_path, equitar.Loader(batches), save=save, limit_train_batches=limit)
    for checkpoint in sorted(tmp_path.glob("*.ckpt"))[:2]:
        done = int(checkpoint.stem.rpartition("=")[2])
        net = fit(tmp_path, equitar.Loader(batches), checkpoint=checkpoint, limit_train_batches=limit)
        assert net.seen == whole.seen[done:]


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_from_its_checkpoint(folder: Path, sources: list[Source], tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    command = [sys.executable, "-W", "ignore", str(TESTS / "system" / "lightning_run.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *(path for path in sys.path if path)])}

    def run(into: Path, kill_at: int) -> int:
        into.mkdir(exist_ok=True)
        ran = subprocess.run([*command, str(into), str(kill_at)], env=environment, timeout=120, check=False)
        return ran.returncode

    def seen(into: Path) -> list[Any]:
        return [json.loads(line) for line in (into / "seen.jsonl").read_text(encoding="utf-8").splitlines()]

    assert run(tmp_path / "whole", 0) == 0
    assert run(tmp_path / "killed", 23) == -signal.SIGKILL  # in the second epoch, two steps after a checkpoint
    assert run(tmp_path / "killed", 0) == 0
    whole, killed = seen(tmp_path / "whole"), seen(tmp_path / "killed")
    assert len(whole) == 51
    assert killed[:23] == whole[:23]
    assert killed[23:] == whole[21:]


# ---- accelerate ---------------------------------------------------------------------------------------------------------

TELLS = "would (share this stream out|shard) again"


class IterableDatasetShard(IterableDataset[Any]):
    """Shares out as the Trainer of transformers does: each process keeps every n-th batch."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.dataset, 0, None, 2)


def refused(loader: Any) -> str:
    with pytest.raises(PlanError, match=TELLS) as caught:
        list(loader)
    traceback.clear_frames(
        caught.tb
    )  # a DataLoader that only the garbage collector frees waits five seconds for each worker
    return str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_that_accelerate_prepared_is_refused_with_the_reason(num_workers: int, sources: list[Source]) -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(equitar.Loader(debiased(sources), num_workers=num_workers))
    assert "do not `prepare` it" in refused(prepared)


def test_a_data_loader_that_accelerate_dispatches_is_refused_with_the_reason(sources: list[Source]) -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(debiased(sources), batch_size=None))
    assert "without `accelerator.prepare`" in refused(prepared)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_single_samples_that_accelerate_would_share_out_are_refused(num_workers: int, sources: list[Source]) -> None:
    data_loader = pytest.importorskip("accelerate.data_loader")
    loader: DataLoader[Any] = DataLoader(equitar.mixed(sources), batch_size=4, num_workers=num_workers)
    prepared = data_loader.prepare_data_loader(
        loader, num_processes=2, process_index=0, dispatch_batches=False, put_on_device=False
    )
    assert "each rank already gets its own part" in refused(prepared)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_the_trainer_of_transformers_does_is_refused(num_workers: int, sources: list[Source]) -> None:
    sharded = IterableDatasetShard(debiased(sources))
    assert "IterableDatasetShard" in refused(DataLoader(sharded, batch_size=None, num_workers=num_workers))


def test_after_a_refusal_the_loader_itself_still_works(sources: list[Source]) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = equitar.Loader(debiased(sources))
    refused(accelerate.Accelerator(cpu=True).prepare(loader))
    assert len(list(loader)) == 17
    list(islice(loader, 3))
    refused(accelerate.Accelerator(cpu=True).prepare(loader))  # nor after a pass that was broken off


def test_accelerate_moves_what_a_loader_gives(sources: list[Source]) -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.utils import send_to_device

    device = accelerate.Accelerator(cpu=True).device
    assert [send_to_device(batch, device)["__step__"] for batch in equitar.Loader(debiased(sources))] == list(range(17))
