"""How long does the error take that names the largest `batch_size` which works? Time until a plan that cannot be is refused.

Sources of 300, 307, 314, ... samples each, so that no batch of the size asked for can come from the smallest. Times are the
fastest of three rounds, in seconds of processor time.

    python benchmarks/bench_refusals.py [--out FOLDER] [--tiny] [--sources N] [--batch-size N]
"""

from __future__ import annotations

import re
import time

import numpy as np

from equitar.errors import PlanError
from equitar.planning.plan import PlanSpec
from equitar.planning.recipes import Debiased, Recipe
from equitar.planning.repeat_factors import ONE
from equitar.planning.supply import Supply
from equitar.planning.weights import Passes, Temperature, Weights, ZeroVL
from measure import Book, parser_of, print_figures


def supply_of(number: int) -> Supply:
    factors = np.full(300 + 7 * number, ONE, np.int64)
    return Supply.of(f"s{number:04}", ["0.tar"], [factors])


def debiased(weights: Weights | None, *, steps: int | None = None, max_passes: float | None = None) -> Debiased:
    return Debiased(
        weights=weights,
        steps=steps,
        max_passes=max_passes,
        restart_each_epoch=False,
        same_source_across="world",
        small_sources="error",
        accumulation_steps=1,
    )


def recipes(supplies: list[Supply]) -> dict[str, Recipe]:
    names = [supply.name for supply in supplies]
    shares = {name: 1.0 + number % 3 for number, name in enumerate(names)}
    return {
        "by size": debiased(None),
        "shares": debiased(shares),
        "shares, max_passes": debiased(shares, max_passes=1.5),
        "ZeroVL": debiased(ZeroVL()),
        "Passes": debiased(Passes(dict.fromkeys(names, 1.0))),
        "Temperature": debiased(Temperature(2.0)),
    }


def refused(recipe: Recipe, supplies: list[Supply], batch_size: int) -> dict[str, float]:
    """Return how long a refusal takes, and the batch size that it names."""
    spec = PlanSpec(batch_size=batch_size, world_size=1, lanes=1, seed=0, epoch=0, shuffle=0)
    seconds, message = [], ""
    for _ in range(3):
        before = time.process_time()
        try:
            recipe.plan(supplies, spec)
        except PlanError as error:
            message = str(error)
        seconds.append(time.process_time() - before)
    named = re.search(r"lower `batch_size` to at most (\d+)$", message)
    if named is None:
        raise AssertionError(f"no batch size is named: {message!r}")
    return {"s": min(seconds), "batch_size named": float(named[1])}


def main() -> None:
    """Measure every kind of weights, print a table, and write `bench_refusals.csv`."""
    parser = parser_of("Measure the error that names the largest batch size that works.")
    parser.add_argument("--sources", type=int, default=500, help="sources")
    parser.add_argument("--batch-size", type=int, default=4096, help="batch size per rank that is refused")
    arguments, book = parser.parse_args(), Book()
    num_sources = 20 if arguments.tiny else arguments.sources
    supplies = [supply_of(number) for number in range(num_sources)]
    figures = {name: refused(recipe, supplies, arguments.batch_size) for name, recipe in recipes(supplies).items()}
    case = f"{num_sources} sources, batches of {arguments.batch_size}"
    for name, values in figures.items():
        book.note_all(case, name, values)
    print_figures(f"Refusals: {case}", figures)
    book.write(arguments.out / "bench_refusals.csv")


if __name__ == "__main__":
    main()
