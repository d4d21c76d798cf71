"""What does resuming cost? Seconds to the first batch, at the start, middle and end of an epoch, and bytes of a state.

10 million synthetic samples in 10,000 shards of two sources, once and with repeats, for 8 ranks x 4 lanes. A process that has only
what is known of its shards takes a state and makes the plan ("plan s"), checks the state against it ("state s"), and knows its
first batch ("first batch s", all together). No tar is opened: reading that batch comes on top.

    python benchmarks/bench_resume.py [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.loading.request import Request, ResolvedRequest
from equitar.loading.state import State, check_state, pass_start_in, position_in, state_of
from equitar.planning.passes import PassStart
from equitar.planning.plan import Plan
from equitar.planning.repeat_factors import ONE
from equitar.planning.supply import Supply
from equitar.progress import Position
from equitar.sidecars.catalog import Catalog
from measure import Book, parser_of, print_figures
from planned import request_of

RANKS, LANES = 8, 4


class Case(NamedTuple):
    """A size: shards of each of two sources, rows of each shard."""

    num_shards: int
    num_rows: int


FULL, TINY = Case(5_000, 1_000), Case(20, 300)


def factors_of(num_rows: int) -> Callable[[int], Int64]:
    """Return long-tailed repeat factors: most rows come once, few up to four times."""

    def factors(shard: int) -> Int64:
        tail = np.random.default_rng(shard).random(num_rows) ** 8
        factors_of_rows: Int64 = ONE + (3 * ONE * tail).astype(np.int64)
        return factors_of_rows

    return factors


def supply(name: str, case: Case, *, repeats: bool) -> Supply:
    paths = [f"{name}-{shard:06}.tar" for shard in range(case.num_shards)]
    num_rows = np.full(case.num_shards, case.num_rows)
    once = Supply.once(name, paths, num_rows)
    if not repeats:
        return once
    factors = factors_of(case.num_rows)
    sums = np.array([int(factors(shard).sum()) for shard in range(case.num_shards)])
    return Supply(
        name=name,
        shard_ids=once.shard_ids,
        num_rows=num_rows,
        sums=sums,
        largest=4 * ONE,
        kept=once.kept,
        factors=factors,
    )


def order_of(supplies: list[Supply]) -> Request:
    catalog = Catalog(sources=(), sidecars=(), summaries=(), selections=())  # no shard is opened
    resolved = ResolvedRequest(catalog, supplies, RANKS - 1, RANKS)
    return request_of("debiased", ranks=RANKS, plan_workers=LANES, resolved=resolved)


def plan_of(order: Request, position: Position, walk: PassStart) -> Plan:
    return order.plan(position, LANES, walk)


def resume(supplies: list[Supply], saved: str) -> dict[str, float]:
    """Resume from a state, as a process that has only its supplies; return what it takes."""
    begin = time.perf_counter()
    state: State = json.loads(saved)
    order, position = order_of(supplies), position_in(state)
    plan = plan_of(order, position, pass_start_in(state))
    planned = time.perf_counter()
    check_state(state, state_of(order, plan, position))
    checked = time.perf_counter()
    plan.samples(position.step, *plan.share(position.step, RANKS - 1, RANKS))
    return {
        "plan s": planned - begin,
        "state s": checked - planned,
        "first batch s": time.perf_counter() - begin,
        "state bytes": len(saved),
    }


def measured(case: Case, *, repeats: bool) -> dict[str, dict[str, float]]:
    """Return the figures of each place in an epoch."""
    supplies = [supply(name, case, repeats=repeats) for name in ("one", "other")]
    order = order_of(supplies)
    plan = plan_of(order, Position(3, 0, 0, 0), PassStart())
    places = {"start": 0, "middle": plan.num_steps // 2, "end": plan.num_steps - 1}
    saved = {where: state_of(order, plan, Position(3, step, LANES, RANKS)) for where, step in places.items()}
    return {where: resume(supplies, json.dumps(state)) for where, state in saved.items()}


def main() -> None:
    """Measure, print a table, and write `bench_resume.csv`."""
    chosen, book = parser_of("Measure resuming at the start, middle and end of an epoch.").parse_args(), Book()
    case, rows = TINY if chosen.tiny else FULL, {}
    for repeats in (False, True):
        name = "repeats" if repeats else "no repeats"
        for where, figures in measured(case, repeats=repeats).items():
            rows[f"{name}, {where}"] = figures
            book.note_all(where, name, figures)
    print_figures(f"Resuming, {2 * case.num_shards * case.num_rows:,} samples", rows)
    book.write(chosen.out / "bench_resume.csv")


if __name__ == "__main__":
    main()
