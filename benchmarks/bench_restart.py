"""What does a run see twice that is changed within an epoch? Samples of the next epoch that came before the stop, and those given up.

Two sources of 30,000 and 20,000 samples, four workers on each rank. The run stops within an epoch and goes on with other
weights, or with other ranks, from where the state of its sources stands. Only plans are asked: no tar is read.

    seen again      share of the samples before the stop that come again in the next epoch, in %
    given up        samples that neither come before the stop nor are left for the next epoch

    python benchmarks/bench_restart.py [--out FOLDER] [--tiny]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equitar.planning.passes import PassStart
from equitar.planning.plan import Plan, PlanSpec
from equitar.planning.recipes import Debiased, Mixed
from equitar.planning.repeat_factors import ONE
from equitar.planning.supply import Supply
from measure import Book, parser_of, print_figures


class World(NamedTuple):
    """What an epoch is made with."""

    ranks: int
    batch_size: int
    steps: int
    weight: float  # share of the first source; the second has the rest


class Change(NamedTuple):
    """A run that stops within an epoch, and with what it goes on."""

    before: World
    stop: int
    after: World


CHANGES = {
    "weights at step 50 of 100": Change(World(8, 16, 100, 0.5), 50, World(8, 16, 100, 0.8)),
    "8 to 6 ranks at step 30 of 60": Change(World(8, 16, 60, 0.5), 30, World(6, 16, 60, 0.5)),
}


def plan_of(kind: str, supplies: list[Supply], world: World, epoch: int, start: PassStart) -> Plan:
    weights = {"a": world.weight, "b": 1 - world.weight}
    spec = PlanSpec(
        batch_size=world.batch_size,
        world_size=world.ranks,
        lanes=4,
        seed=0,
        epoch=epoch,
        shuffle=1000,
        pass_start=start,
    )
    if kind == "mixed":
        mixed = Mixed(
            weights=weights, steps=world.steps, max_passes=None, restart_each_epoch=False, composition="stratified"
        )
        return mixed.plan(supplies, spec)
    debiased = Debiased(
        weights=weights,
        steps=world.steps,
        max_passes=None,
        restart_each_epoch=False,
        same_source_across="world",
        small_sources="error",
        accumulation_steps=1,
    )
    return debiased.plan(supplies, spec)


def samples_of(plan: Plan, stop: int) -> set[tuple[int, int, int]]:
    """Return (source, shard, row) of all samples before a step."""
    steps = [plan.samples(step, 0, plan.global_batch) for step in range(stop)]
    return {sample for step in steps for sample in zip(*(column.tolist() for column in step[:3]), strict=True)}


def changed(kind: str, change: Change, supplies: list[Supply]) -> dict[str, float]:
    plan = plan_of(kind, supplies, change.before, 0, PassStart())
    before = samples_of(plan, change.stop)
    start = PassStart(epoch=1, positions=plan.pass_positions(change.stop))
    after = samples_of(plan_of(kind, supplies, change.after, 1, start), change.after.steps)
    return {
        "seen again %": 100 * len(before & after) / len(before),
        "given up": float(sum(plan.given_up(change.stop).values())),
    }


def main() -> None:
    """Measure every change, print a table, and write `bench_restart.csv`."""
    arguments, book = parser_of("Measure what a run that is changed within an epoch sees twice.").parse_args(), Book()
    rows = 1_000 if arguments.tiny else 10_000
    supplies = [
        Supply.of(name, [f"{shard}.tar" for shard in range(shards)], [np.full(rows, ONE, np.int64)] * shards)
        for name, shards in (("a", 3), ("b", 2))
    ]
    for case, change in CHANGES.items():
        if arguments.tiny:
            change = change._replace(  # noqa: PLW2901 - the same change, at a tenth of the batch size
                before=change.before._replace(batch_size=2), after=change.after._replace(batch_size=2)
            )
        figures = {kind: changed(kind, change, supplies) for kind in ("debiased", "mixed")}
        for kind, values in figures.items():
            book.note_all(case, kind, values)
        print_figures(f"Restart: {case}", figures)
    book.write(arguments.out / "bench_restart.csv")


if __name__ == "__main__":
    main()
