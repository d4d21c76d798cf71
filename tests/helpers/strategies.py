"""What plans are drawn from: sources in plain numbers, worlds, weights. Drawn once, for all properties.

How many cases a test draws is a setting: ``drawn(60)`` is 60 in a usual run and 60 N with ``pytest --examples N``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from equitar.errors import PlanError
from equitar.planning.plan import Composition, Plan, PlanSpec, SameSourceAcross, SmallSources
from equitar.planning.recipes import Debiased, Mixed
from equitar.planning.repeat_factors import ONE, Rounding
from equitar.planning.step_plan import StepPlan
from equitar.planning.supply import Supply
from equitar.planning.weights import Passes, Temperature, Weights
from helpers import oracle

Changes: TypeAlias = Sequence[tuple[int, Weights | None]]
Kind: TypeAlias = Literal["debiased", "mixed"]


def drawn(number: int) -> settings:
    """Return settings with so many cases in a usual run, more or fewer as the profile says."""
    return settings(max_examples=max(1, number * settings().max_examples // 100))


class Item(NamedTuple):
    """One planned copy."""

    name: str
    shard: int
    row: int
    copy: int

    @property
    def sample(self) -> tuple[str, int, int]:
        """What must not come twice."""
        return self[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A source in plain numbers: for each shard the repeat factor of each row, in units of 2**-20 copies."""

    name: str
    shards: tuple[tuple[int, ...], ...]
    rounding: Rounding = "systematic"

    @property
    def total(self) -> int:
        return sum(map(sum, self.shards))

    @property
    def copies(self) -> int:
        return self.total // ONE

    @property
    def largest(self) -> int:
        return max((max(rows, default=0) for rows in self.shards), default=0)

    def most(self, copies: int) -> int:
        """Return the most copies of one sample where so many copies of the source are wanted."""
        return ceil(oracle.passes_of(self.total, copies) * Fraction(self.largest, ONE)) if self.total else 0

    def supply(self) -> Supply:
        paths = [f"{shard:03}.tar" for shard in range(len(self.shards))]
        return Supply.of(self.name, paths, [np.array(rows, np.int64) for rows in self.shards], self.rounding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything a plan is made from, but the epoch."""

    kind: Kind
    stocks: tuple[Stock, ...]
    batch_size: int
    world_size: int
    workers: int
    seed: int
    shuffle: int
    weights: Weights | Changes | None
    steps: int | None
    same_source_across: SameSourceAcross = "world"
    small_sources: SmallSources = "error"
    composition: Composition = "stratified"

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    def spec(self, epoch: int) -> PlanSpec:
        return PlanSpec(
            batch_size=self.batch_size,
            world_size=self.world_size,
            lanes=max(1, self.workers),
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
        )

    def recipe(self, *, max_passes: float | None = None, restart_each_epoch: bool = False) -> Debiased | Mixed:
        if self.kind == "mixed":
            assert not isinstance(self.weights, Sequence)
            return Mixed(
                weights=self.weights,
                steps=self.steps,
                max_passes=max_passes,
                restart_each_epoch=restart_each_epoch,
                composition=self.composition,
            )
        return Debiased(
            weights=self.weights,
            steps=self.steps,
            max_passes=max_passes,
            restart_each_epoch=restart_each_epoch,
            same_source_across=self.same_source_across,
            small_sources=self.small_sources,
            accumulation_steps=1,
        )

    def supplies(self) -> list[Supply]:
        return [stock.supply() for stock in self.stocks]

    def plan(self, epoch: int = 0) -> StepPlan:
        plan = self.recipe().plan(self.supplies(), self.spec(epoch))
        assert isinstance(plan, StepPlan)
        return plan

    def in_pass(self, stock: Stock) -> int:
        """Return the copies that a pass of a source gives."""
        return stock.copies // self.global_batch * self.global_batch if self.kind == "debiased" else stock.copies

    def stretches(self) -> list[oracle.WeightPhase]:
        """Return quotas as the design says: in batches for `debiased`, in copies for `mixed`."""
        unit = self.global_batch if self.kind == "debiased" else 1
        in_pass = [stock.copies // unit for stock in self.stocks]
        if (
            self.kind == "debiased"
            and self.steps is None
            and not isinstance(self.weights, Sequence | Mapping | Temperature)
        ):
            passes = [Fraction(1) if self.weights is None else self._passes(stock) for stock in self.stocks]
            quotas = [
                copies if self.weights is None else int(number * stock.total / ONE) // unit
                for number, stock, copies in zip(passes, self.stocks, in_pass, strict=True)
            ]
            return [oracle.WeightPhase(0, quotas, [number > 0 for number in passes])]
        if self.kind == "debiased":
            total = sum(in_pass) if self.steps is None else self.steps
        elif isinstance(self.weights, Passes) and self.steps is None:
            asked = [int(self._passes(stock) * stock.total / ONE) for stock in self.stocks]
            total = sum(asked) // self.global_batch * self.global_batch
            shares = [Fraction(copies) for copies in asked]
            quotas = oracle.share_out(shares, total) if total else [0] * len(shares)
            return [oracle.WeightPhase(0, quotas, [copies > 0 for copies in asked])]
        else:
            total = (sum(in_pass) // self.global_batch if self.steps is None else self.steps) * self.global_batch
        changes = self.weights if isinstance(self.weights, Sequence) else [(0, self.weights)]
        starts = [start for start, _ in changes]
        result = []
        for (start, weights), stop in zip(changes, [*starts[1:], total], strict=True):
            shares = [self._share(weights, stock) for stock in self.stocks]
            quotas = oracle.share_out(shares, stop - start) if any(shares) else [0] * len(shares)
            result.append(oracle.WeightPhase(start, quotas, [share > 0 for share in shares]))
        return result

    def _passes(self, stock: Stock) -> Fraction:
        assert isinstance(self.weights, Passes)
        return Fraction(self.weights.passes[stock.name])

    def _share(self, weights: Weights | None, stock: Stock) -> Fraction:
        if weights is None:
            return Fraction(stock.total if self.kind == "debiased" else stock.copies)
        if isinstance(weights, Temperature):
            return Fraction(float(stock.copies) ** (1 / weights.temperature))
        if isinstance(weights, Passes):
            return Fraction(weights.passes[stock.name]) * stock.total
        assert isinstance(weights, Mapping)  # no other kinds of weights are drawn
        return Fraction(weights[stock.name])

    def quota(self) -> dict[str, int]:
        """Return the copies of each source in an epoch."""
        unit = self.global_batch if self.kind == "debiased" else 1
        columns = zip(*(part.quotas for part in self.stretches()), strict=True)
        return {stock.name: unit * sum(column) for stock, column in zip(self.stocks, columns, strict=True)}

    def most(self) -> dict[str, int]:
        """Return the most copies of one sample of each source in an epoch, or in a pass where that is longer."""
        quota = self.quota()
        return {
            stock.name: stock.most(max(quota[stock.name], self.in_pass(stock))) if quota[stock.name] else 0
            for stock in self.stocks
        }

    def _has_zero_weight(self, stock: Stock) -> bool:
        """Return whether a source is left out by name."""
        changes = self.weights if isinstance(self.weights, Sequence) else [(0, self.weights)]
        by_name = [weights.passes if isinstance(weights, Passes) else weights for _, weights in changes]
        return all(isinstance(weights, Mapping) and weights[stock.name] == 0 for weights in by_name)

    def is_feasible(self) -> bool:
        """Return whether all promises can be kept: no sample has more copies than its source has steps."""
        parts, quota, most = self.stretches(), self.quota(), self.most()
        num_steps = sum(quota.values()) // self.global_batch
        if not num_steps:
            return False
        for source, stock in enumerate(self.stocks):
            wanted = any(part.wanted[source] for part in parts)
            if not stock.total and not self._has_zero_weight(stock):
                return False
            if self.kind == "debiased" and wanted and not quota[stock.name]:
                return False
            turns = quota[stock.name] // self.global_batch if self.kind == "debiased" else num_steps
            if most[stock.name] > turns:
                return False
        return True


PLAIN = Case(
    kind="debiased",
    stocks=(),
    batch_size=1,
    world_size=1,
    workers=0,
    seed=0,
    shuffle=0,
    weights=None,
    steps=None,
)


def refusal(case: Case, epoch: int = 0) -> str | None:
    """Return why a case has no plan; None if it has one."""
    try:
        case.plan(epoch)
    except PlanError as error:
        return str(error)
    return None


def emitted(plan: StepPlan, case: Case, steps: Iterable[int] | None = None) -> list[list[Item]]:
    """Return the global batch of each step."""
    return [read(plan, step, 0, case.global_batch) for step in (range(plan.num_steps) if steps is None else steps)]


def read(plan: Plan, step: int, first: int, last: int) -> list[Item]:
    """Return what lies in slots [first, last) of a step."""
    source, shard, row, copy = (column.tolist() for column in plan.samples(step, first, last))
    names = [plan.names[index] for index in source]
    return [Item(*fields) for fields in zip(names, shard, row, copy, strict=True)]


def by_rank(plan: StepPlan, case: Case, step: int) -> list[list[Item]]:
    """Return the batch of each rank, each asked alone."""
    return [read(plan, step, rank * case.batch_size, (rank + 1) * case.batch_size) for rank in range(case.world_size)]


def _factors(kind: str, num_rows: int, rng: np.random.Generator) -> list[int]:
    once = np.full(num_rows, ONE)
    if kind == "long tail":
        once = np.rint((1 + 9 * rng.random(num_rows) ** 4) * ONE)
    elif kind == "some whole":
        once = np.where(rng.random(num_rows) < 0.1, rng.integers(1, 11, num_rows) * ONE, ONE)
    elif kind == "halves":
        once = rng.integers(2, 7, num_rows) * (ONE // 2)
    elif kind == "selection":
        once = np.where(rng.random(num_rows) < 0.5, 0, np.where(rng.random(num_rows) < 0.3, ONE // 3, ONE))
    elif kind == "selected repeats":
        once = np.rint(rng.choice([0, 0.25, 1], num_rows) * (1 + 4 * rng.random(num_rows) ** 3) * ONE)
    return [int(factor) for factor in once]


KINDS = ("once", "long tail", "some whole", "halves", "selection", "selected repeats")


@st.composite
def stocks(
    draw: DrawFn,
    name: str,
    *,
    kinds: Sequence[str] = KINDS,
    rows: tuple[int, int] = (0, 300),
    rounding: Rounding = "systematic",
) -> Stock:
    """Draw a source of 1 to 7 shards, some of which may be empty."""
    num_rows = draw(st.integers(*rows))
    num_shards = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    factors = _factors(draw(st.sampled_from(kinds)), num_rows, rng)
    cuts = [0, *sorted(rng.integers(0, num_rows + 1, num_shards - 1).tolist()), num_rows]
    shards = tuple(tuple(factors[first:last]) for first, last in itertools.pairwise(cuts))
    return Stock(name=name, shards=shards, rounding=rounding)


def _weights(names: Sequence[str]) -> SearchStrategy[Weights | None]:
    shares = st.fixed_dictionaries({name: st.integers(0, 9) for name in names}).filter(
        lambda weights: any(weights.values())
    )
    quarters = st.integers(0, 16).map(lambda count: count / 4)
    passes = st.fixed_dictionaries(dict.fromkeys(names, quarters)).filter(lambda weights: any(weights.values()))
    temperature = st.sampled_from([1.0, 2.0, 5.0]).map(Temperature)
    return st.one_of(st.none(), st.none(), shares, temperature, passes.map(Passes))


@st.composite
def cases(
    draw: DrawFn, kind: Kind, *, same_source_across: SameSourceAcross = "world", kinds: Sequence[str] = KINDS
) -> Case:
    """Draw everything a plan is made from, feasible or not."""
    names = "abcde"[: draw(st.integers(1, 5))]
    drawn_stocks = tuple(draw(stocks(name, kinds=kinds)) for name in names)
    steps = draw(st.none() | st.integers(1, 60))
    weights: Weights | Changes | None = draw(_weights(names))
    if kind == "debiased" and steps is not None and steps > 3 and draw(st.integers(0, 3)) == 0:
        later = sorted(draw(st.sets(st.integers(1, steps - 1), max_size=2)))
        weights = [(start, draw(_weights(names))) for start in (0, *later)]
    return Case(
        kind=kind,
        stocks=drawn_stocks,
        batch_size=draw(st.integers(1, 16)),
        world_size=draw(st.integers(1, 5)),
        workers=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 1 << 30)),
        shuffle=draw(st.integers(0, 60)),
        weights=weights,
        steps=steps,
        same_source_across=same_source_across,
    )


def made_feasible(case: Case) -> Case | None:
    """Return the case with the largest batch size, up to its own, with which it must be planned; None without one."""
    smaller = (replace(case, batch_size=batch_size) for batch_size in range(case.batch_size, 0, -1))
    return next((candidate for candidate in smaller if candidate.is_feasible()), None)


@st.composite
def feasible_cases(
    draw: DrawFn, kind: Kind, *, same_source_across: SameSourceAcross = "world", kinds: Sequence[str] = KINDS
) -> Case:
    """Draw a case that must be planned. What cannot be is drawn by size instead, without sources that are too small."""
    case = draw(cases(kind, same_source_across=same_source_across, kinds=kinds))
    feasible = made_feasible(case)
    if feasible is None:
        kept = tuple(stock for stock in case.stocks if stock.copies >= case.world_size * ceil(stock.largest / ONE))
        feasible = made_feasible(replace(case, stocks=kept, weights=None, steps=None)) if kept else None
    assume(feasible is not None)
    assert feasible is not None
    return feasible
