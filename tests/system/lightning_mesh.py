"""What one of two ranks of `test_trainers_on_ranks.py` does, as ``lightning_mesh.py SOURCES RESULTS``: tensor parallelism in Lightning."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import distributed

import equitar
from equitar.errors import PlanError
from equitar.lightning import data_ranks
from system.lightning_run import Net, quiet_trainer


class Parallel(Net):
    """Makes its batches where the strategy knows its ranks, or where it does not."""

    def __init__(self, folder: Path, *, is_told: bool) -> None:
        super().__init__()
        self.folder, self.is_told = folder, is_told

    def configure_model(self) -> None:
        """Leave the model whole: only its batches matter here."""

    def train_dataloader(self) -> equitar.Loader:
        sources = [
            equitar.Source(path.name, str(path / "*.tar"), root=str(path)) for path in sorted(self.folder.iterdir())
        ]
        ranks: Any = data_ranks(self.trainer) if self.is_told else {}
        return equitar.Loader(equitar.debiased(sources, batch_size=3, **ranks))


def seen(folder: Path, results: Path, *, is_told: bool) -> Any:
    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    net = Parallel(folder, is_told=is_told)
    trainer = quiet_trainer(results, [], enable_checkpointing=False, strategy=strategy, devices=2, max_epochs=1)
    try:
        trainer.fit(net)
    except (PlanError, RuntimeError) as error:  # Lightning's cleaning up may fail over it
        return str(error if isinstance(error, PlanError) else error.__context__)
    return net.seen


def main() -> None:
    folder, results = map(Path, sys.argv[1:])
    result = {"data_ranks": seen(folder, results, is_told=True), "forgotten": seen(folder, results, is_told=False)}
    (results / f"{distributed.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
