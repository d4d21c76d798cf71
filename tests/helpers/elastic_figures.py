"""Stops and resumes a run across pairs of (ranks, workers), in real processes, and counts what came.

    PYTHONPATH=tests python tests/helpers/elastic_figures.py

takes every pair of 1, 2, 3 ranks x 0..3 workers; `test_elastic.py` takes a share of them.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from helpers.shards import rare_first, write_source
from helpers.torchrun import torchrun

World: TypeAlias = tuple[int, int]  # ranks, workers
WORLDS: list[World] = list(product((1, 2, 3), (0, 1, 2, 3)))
STOPS = (1, 7)
SIZES = {"a": [30, 50, 3], "b": [64]}


@dataclass
class Figures:
    """What was compared."""

    pairs: int = 0
    steps: int = 0
    samples: int = 0
    byte_for_byte: int = 0
    mismatches: list[str] = field(default_factory=list)


def job(name: str, workers: int, *, resume: str | None = None, steps: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "workers": workers,
        "resume": resume,
        "steps": steps,
        "epochs": 1,
        "kill": False,
        "persistent": False,
        **more,
    }


def name_of(world: World, *more: object) -> str:
    return "-".join(map(str, (*world, *more)))


def launch(folder: Path, world_size: int, jobs: Sequence[dict[str, Any]]) -> int:
    """Do jobs in one run of torchrun, and return how it ended."""
    path = folder / f"jobs-{world_size}.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    ran = torchrun(
        Path(__file__).parents[1] / "system" / "elastic.py", folder / "sources", folder, path, ranks=world_size
    )
    if ran.returncode and not any(task["kill"] for task in jobs):
        raise RuntimeError(ran.stderr[-4000:])
    return ran.returncode


def ranks_of(folder: Path, world: World, *more: object) -> list[list[Any]]:
    """Return the batches that each rank wrote down."""
    paths = [folder / f"{name_of(world, *more)}.{rank}" for rank in range(world[0])]
    return [pickle.loads(path.read_bytes()) for path in paths]


Extra: TypeAlias = Mapping[int, list[dict[str, Any]]]  # by the number of ranks, jobs that are done in the same run


def begin(folder: Path, worlds: Sequence[World], extra: Extra = MappingProxyType({})) -> None:
    """Let every world train one whole epoch, and others that stop within it."""
    for world_size in sorted({world[0] for world in worlds}):
        jobs = list(extra.get(world_size, ()))
        for world in (candidate for candidate in worlds if candidate[0] == world_size):
            jobs.append(job(name_of(world, "whole"), world[1]))
            jobs += [job(name_of(world, stop), world[1], steps=stop) for stop in STOPS]
        launch(folder, world_size, jobs)


def resume(folder: Path, pairs: Sequence[tuple[World, World]], extra: Extra = MappingProxyType({})) -> None:
    """Let worlds go on where others stopped."""
    for world_size in sorted({after[0] for _, after in pairs}):
        mine = [(before, after) for before, after in pairs if after[0] == world_size]
        launch(
            folder,
            world_size,
            [
                *extra.get(world_size, ()),
                *(
                    job(name_of(before, stop, *after), after[1], resume=name_of(before, stop))
                    for before, after in mine
                    for stop in STOPS
                ),
            ],
        )


def compare(folder: Path, pairs: Sequence[tuple[World, World]]) -> Figures:
    """Compare what came after every resume with the run that was not stopped."""
    figures = Figures(pairs=len(pairs))
    for before, after in pairs:
        whole = ranks_of(folder, before, "whole")
        for stop in STOPS:
            what = f"{before} stopped at {stop}, {after} went on"
            paths = [folder / f"{name_of(before, stop, *after)}.{rank}" for rank in range(after[0])]
            went_on = [pickle.loads(path.read_bytes()) for path in paths]
            if before[0] == after[0]:
                figures.byte_for_byte += sum(len(batches) for batches in went_on)
                if went_on != [batches[stop:] for batches in whole]:
                    figures.mismatches.append(f"{what}: other bytes")
            if {len(batches) for batches in went_on} != {len(whole[0]) - stop}:
                figures.mismatches.append(f"{what}: other steps")
                continue
            for step in range(stop, len(whole[0])):
                expected = samples_at(whole, step)
                actual = samples_at(went_on, step - stop)
                sources = {batches[step - stop]["__source__"] for batches in went_on}
                figures.steps += 1
                figures.samples += actual.total()
                if actual != expected or len(sources) != 1:
                    figures.mismatches.append(f"{what}: step {step}")
    return figures


def samples_at(ranks: list[list[Any]], step: int) -> Counter[tuple[Any, ...]]:
    """Return the samples of a global batch, whatever their order."""
    columns = ("__key__", "__copy__", "txt", "cls")
    return Counter(row for batches in ranks for row in zip(*(batches[step][name] for name in columns), strict=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source, sizes in SIZES.items():
            write_source(folder / "sources", source, sizes, label=rare_first)
        pairs = list(product(WORLDS, WORLDS))
        begin(folder, WORLDS)
        resume(folder, pairs)
        figures = compare(folder, pairs)
    print(
        f"{figures.pairs} pairs of (ranks, workers), stopped at steps {STOPS}: {figures.steps} global batches of "
        f"{figures.samples} samples compared as sets, {figures.byte_for_byte} batches byte for byte, "
        f"{len(figures.mismatches)} mismatches"
    )
    print(*figures.mismatches[:20], sep="\n")


if __name__ == "__main__":
    main()
