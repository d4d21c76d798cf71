"""Plans of datasets with indices: datasets as sources, the plan of each epoch, and where a pass stands.

To a plan, a map-style dataset is a source whose rows are samples by index, in equal blocks that serve as shards. Indices count through the datasets one after another, as in `torch.utils.data.ConcatDataset`. Rows lie on the line in an order drawn
once for the seed, unless neighbours shall stay near each other: datasets are often sorted by class, and a random access costs
nothing. A dataset of n rows has about as many blocks as rows in each, so that neither a pass over the blocks nor a look into one
takes long; which blocks come together changes with every pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from equitar.agreement import compare_over_ranks
from equitar.arrays import Int64
from equitar.checks import check_integer
from equitar.errors import PlanError
from equitar.misuse import refuse_other_ranks, refuse_resampling, warn_of_replacement
from equitar.planning.plan import Plan, PlannedSamples, PlanSpec, batch_size_then
from equitar.planning.recipes import Recipe
from equitar.planning.repeat_factors import (
    ONE,
    RepeatFactor,
    Rounding,
    class_factors,
    count_classes,
    id_overlap,
    sample_factors,
    shared_vocabulary,
)
from equitar.planning.supply import Supply
from equitar.progress import Position, Progress
from equitar.ranks import RankChoice
from equitar.rng import Purpose, fold, permutation, text_id
from equitar.samplers.label_rows import LabelPresence, LabelRows, rows_of

Factors: TypeAlias = NDArray[Any]  # int32 where it fits: half the memory
FactorsOf: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Gives the factors of the rows of a block. A class, so that it pickles."""

    factors: Factors
    size: int

    def __call__(self, block: int) -> Int64:
        """Return the factors of a block, (rows,)."""
        return self.factors[block * self.size : (block + 1) * self.size].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSource:
    """One dataset."""

    supply: Supply  # what a plan knows of it
    first: int  # index of its first sample
    block_size: int  # rows of a block; the last one may have fewer
    order: NDArray[Any] | None  # row of the dataset at each position of its blocks, (rows,); None is their own order

    def indices(self, block: Int64, row: Int64) -> Int64:
        """Return the indices of rows of blocks, (n,)."""
        position = block * self.block_size + row
        return self.first + (position if self.order is None else self.order[position].astype(np.int64))


def indices_of(sources: Mapping[str, IndexedSource], names: tuple[str, ...], places: PlannedSamples) -> list[int]:
    """Return the index of each place, given the names of the sources in the order of the plan."""
    result = np.empty(len(places.row), np.int64)
    for number in np.unique(places.source).tolist():
        here = places.source == number
        result[here] = sources[names[number]].indices(places.shard[here], places.row[here])
    indices: list[int] = result.tolist()
    return indices


def indexed_sources(
    lengths: Mapping[str, int],
    factors: Mapping[str, Factors] | None,
    *,
    rounding: Rounding,
    seed: int,
    is_drawn: bool,
) -> dict[str, IndexedSource]:
    """Return datasets as sources.

    Args:
        lengths: Samples of each dataset by name, in the order in which they are indexed.
        factors: Repeat factors of their samples in units of 2**-20 copies, (samples,) each; None repeats nothing.
        rounding: How factors become copies.
        seed: Seed of the order of the rows.
        is_drawn: Whether rows lie in a drawn order, or in their own.
    """
    result, first = {}, 0
    for name, length in lengths.items():
        size = max(1, isqrt(length))
        order = permutation(fold(seed, Purpose.ROW_ORDER, text_id(name)), length) if is_drawn else None
        if order is not None and length < 1 << 32:
            order = order.astype(np.uint32)
        row_factors = None if factors is None else factors[name]
        if row_factors is not None and order is not None:
            row_factors = row_factors[order]
        result[name] = IndexedSource(
            supply=_supply(name, length, size, row_factors, rounding), first=first, block_size=size, order=order
        )
        first += length
    return result


def _supply(name: str, length: int, size: int, factors: Factors | None, rounding: Rounding) -> Supply:
    starts = np.arange(0, length, size)
    num_rows = np.diff(np.append(starts, length))
    if factors is None:
        return Supply.once(name, [str(block) for block in range(len(starts))], num_rows)
    return Supply(
        name=name,
        shard_ids=np.array([text_id(str(block)) for block in range(len(starts))], np.uint64),
        num_rows=num_rows,
        sums=np.add.reduceat(factors, starts, dtype=np.int64) if length else np.zeros(0, np.int64),
        largest=int(factors.max(initial=0)),
        kept=length * ONE,
        factors=_Blocks(factors, size),
        rounding="bernoulli" if rounding == "bernoulli" else "systematic",
    )


def factors_by_labels(
    labels: Mapping[str, LabelRows], repeat: RepeatFactor, *, labels_shared: bool = False
) -> dict[str, Factors]:
    """Return the repeat factor of every sample in units of 2**-20 copies, (samples,) each, from the labels of all datasets."""
    counts = [count_classes(rows.parts(), names=rows.names, empty=repeat.empty) for rows in labels.values()]
    vocabularies = {name: (count.ids, rows.names) for (name, rows), count in zip(labels.items(), counts, strict=True)}
    if labels_shared:
        shared = shared_vocabulary(vocabularies)
        counts = [count.over(*shared) if count.names is None else count for count in counts]
    elif repeat.scope == "all":
        overlap = id_overlap({name: ids for name, (ids, names) in vocabularies.items() if names is None})
        if overlap is not None:
            logger.warning("%s; %s", overlap, "pass `labels_shared=True` if an id is the same class in all")
    result = {}
    for (name, rows), count, by_class in zip(labels.items(), counts, class_factors(counts, repeat), strict=True):
        factors, first = np.empty(rows.num_rows, _dtype_for(int(by_class.max(initial=ONE)))), 0
        for part in rows.parts():
            by_row = sample_factors(part, count.ids, by_class, empty=repeat.without_labels)
            if repeat.rounding == "ceil":
                by_row = -(-by_row // ONE) * ONE
            factors[first : first + len(by_row)] = by_row
            first += len(by_row)
        result[name] = factors
    return result


def factors_by_function(lengths: Mapping[str, int], function: FactorsOf) -> dict[str, Factors]:
    """Return the repeat factors that a function gives for the samples of each dataset, in units of 2**-20 copies.

    Raises:
        PlanError: If it does not give a finite number >= 0 for each sample.
    """
    result = {}
    for name, length in lengths.items():
        numbers = np.asarray(function(name), np.float64)
        if numbers.shape != (length,) or not ((numbers >= 0) & (numbers < np.inf)).all():
            got = f"shape {numbers.shape}" if numbers.shape != (length,) else f"numbers down to {numbers.min()}"
            required = f"a finite number >= 0 for each of {length} samples"
            raise PlanError(f"`repeat` must give {required} of source {name!r}; got {got}")
        units = np.rint(numbers * ONE)
        result[name] = units.astype(_dtype_for(int(units.max(initial=0))))
    return result


def _dtype_for(largest: int) -> type[np.int32 | np.int64]:
    return np.int32 if largest + ONE < 1 << 31 else np.int64  # + ONE: `ceil` may add as much


logger = logging.getLogger("equitar")
Datasets: TypeAlias = Mapping[str, int | Sized] | Sized
Labels: TypeAlias = Mapping[str, LabelPresence] | LabelPresence
IndexRepeat: TypeAlias = float | Literal["median"] | RepeatFactor | FactorsOf | None
STATE_VERSION = 1
BROKEN_OFF_FIX = "give it `steps=`, or call its `set_epoch` before each pass (with Lightning: the callback `equitar.lightning.SetEpoch`)"
_ALL = 1 << 62  # samples to shuffle together: as many as there are


class SamplerState(TypedDict):
    """Where a sampler stands: a few hundred bytes.

    Attributes:
        version: Version of this format.
        epoch: The epoch.
        given: Items of the epoch that one rank was given.
        world_size: Ranks the epoch was planned with.
        global_batch: Samples of all ranks at a step.
        digest: Names all that the plan depends on.
    """

    version: int
    epoch: int
    given: int
    world_size: int
    global_batch: int
    digest: str


class IndexPlan:
    """What both samplers are made of: datasets, a recipe, the plan of the epoch, and progress."""

    def __init__(
        self,
        datasets: Datasets,
        recipe: Recipe,
        *,
        batch_size: int,
        repeat: IndexRepeat,
        labels: Labels | None,
        labels_shared: bool,
        names: Sequence[str] | None,
        seed: int,
        shuffle: int | None,
        ranks: RankChoice,
        gives_batches: bool,
    ) -> None:
        """Make it; see `equitar.samplers`. It gives batches or single samples."""
        self._recipe, self._batch_size = recipe, check_integer("batch_size", batch_size, 1)
        self._seed = check_integer("seed", seed, 0)
        self._shuffle = _ALL if shuffle is None else shuffle
        self._ranks, self._gives_batches = ranks, gives_batches
        self._place: tuple[int, int] | None = None
        self._is_compared = False
        self._sources = _sources_of(
            datasets, repeat, labels, names, labels_shared=labels_shared, seed=self._seed, is_drawn=shuffle is None
        )
        self._plan: Plan | None = None
        self.progress = Progress(unit="item", fix=BROKEN_OFF_FIX)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_plan": None}

    def place(self) -> tuple[int, int]:
        """Return (rank, world_size), detected at the first use: after `init_process_group`."""
        if self._place is None:
            self._place = self._ranks.resolve()
        return self._place

    def plan(self, epoch: int | None = None, world_size: int = 0) -> Plan:
        """Return the plan of an epoch (None: the next one), made for so many ranks (0: those of now) of one global batch."""
        epoch = self.progress.next.epoch if epoch is None else epoch
        _, now = self.place()
        planned_for = world_size or now
        batch_size = batch_size_then(planned_for, batch_size=self._batch_size, world_size=now)
        if self._plan is None or (self._plan.spec.epoch, self._plan.spec.world_size) != (epoch, planned_for):
            shape = PlanSpec(
                batch_size=batch_size,
                world_size=planned_for,
                lanes=1,  # a sampler is one row of batches; its DataLoader deals them to workers
                seed=self._seed,
                epoch=epoch,
                shuffle=self._shuffle,
            )
            self._plan = self._recipe.plan([source.supply for source in self._sources.values()], shape)
        return self._plan

    def per_step(self, world_size: int) -> int:
        """Return the items that one of so many ranks is given at a step."""
        return 1 if self._gives_batches else self._batch_size * self.place()[1] // world_size

    def length(self) -> int:
        """Return the items that an epoch gives to each rank."""
        return self.plan().num_steps * self.per_step(self.place()[1])

    def batches(self, plan: Plan, first: int) -> Iterator[list[int]]:
        """Yield the indices of this rank at each step, from the first one on."""
        rank, world_size = self.place()
        for step in range(first, plan.num_steps):
            places = plan.samples(step, *plan.share(step, rank, world_size))
            yield indices_of(self._sources, plan.names, places)

    def begun(self, name: str) -> tuple[Plan, int, int]:
        """Return the plan of the pass that begins now, the items that were given before, and those of each step.

        Args:
            name: Of the class of the sampler.

        Raises:
            PlanError: If a trainer would share these out again; at the first pass, if ranks differ.
        """
        start, (rank, world_size) = self.progress.next, self.place()
        refuse_resampling(world_size)
        if self._ranks.origin == "detected":
            refuse_other_ranks(rank, world_size)
        plan = self.plan(start.epoch, start.world_size)
        if not self._is_compared:
            self._is_compared = True
            if self.progress.is_new:
                warn_of_replacement(self, name, plan.digest)
            facts = {
                "epoch": start.epoch,
                "given": start.step,
                "seed": self._seed,
                "batch_size": self._batch_size,
                "sources": ", ".join(plan.names),
                "plan": plan.digest,
            }
            fix = "compare their datasets, labels, arguments and epochs"
            compare_over_ranks(self._ranks, facts, what="plan", fix=fix)
        return plan, start.step, self.per_step(world_size)

    def state(self, taken: int | None) -> SamplerState:
        """Return where the latest pass stands."""
        position = self.progress.after(taken)
        plan = self.plan(position.epoch, position.world_size)
        return SamplerState(
            version=STATE_VERSION,
            epoch=position.epoch,
            given=position.step,
            world_size=plan.spec.world_size,
            global_batch=plan.global_batch,
            digest=plan.digest,
        )

    def load(self, state: SamplerState) -> None:
        """Begin the next pass where a state says.

        Raises:
            PlanError: If the state is of another version or plan, or its samples cannot be shared out over these ranks.
        """
        if state.get("version") != STATE_VERSION:
            raise PlanError(f"the state must be of version {STATE_VERSION}; got {state.get('version')!r}")
        _, world_size = self.place()
        if state["global_batch"] != self._batch_size * world_size:
            now = f"{world_size} ranks x {self._batch_size}"
            raise PlanError(f"the state must be of the same global batch, {now}; got {state['global_batch']} samples")
        plan = self.plan(state["epoch"], state["world_size"])
        if plan.digest != state["digest"]:
            raise PlanError("the state is of other datasets, labels, seed or arguments; restore these or start again")
        before, after = self.per_step(state["world_size"]), self.per_step(world_size)
        step, within = divmod(state["given"], before)
        if within and after != before:
            raise PlanError(
                f"another number of ranks can only continue between steps of {before} samples; got {state['given']} samples given"
            )
        given = step * after + within
        self.progress.set_next(Position(state["epoch"], given, world_size=state["world_size"]))


def _sources_of(
    datasets: Datasets,
    repeat: IndexRepeat,
    labels: Labels | None,
    names: Sequence[str] | None,
    *,
    labels_shared: bool,
    seed: int,
    is_drawn: bool,
) -> dict[str, IndexedSource]:
    """Return datasets as sources."""
    parts = _parts_of(datasets, names)
    lengths = {name: part if isinstance(part, int) else len(part) for name, part in parts.items()}
    wanted = RepeatFactor.of(repeat)
    if wanted is None:
        factors = None
    elif isinstance(wanted, RepeatFactor):
        own = {name: part for name, part in parts.items() if isinstance(part, LabelPresence)}
        given = {**own, **_by_name(labels, list(parts))}
        rows = {name: _labels_of(name, length, given) for name, length in lengths.items()}
        factors = factors_by_labels(rows, wanted, labels_shared=labels_shared)
    else:
        factors = factors_by_function(lengths, wanted)
    rounding = wanted.rounding if isinstance(wanted, RepeatFactor) else "systematic"
    return indexed_sources(lengths, factors, rounding=rounding, seed=seed, is_drawn=is_drawn)


def _parts_of(datasets: Datasets, names: Sequence[str] | None) -> dict[str, int | Sized]:
    """Return what is indexed one after another, by name."""
    if isinstance(datasets, Mapping):
        if names is not None:
            raise PlanError(f"`names` must be left out where `datasets` are a mapping, which has them; got {names!r}")
        return dict(datasets)
    parts: Sequence[Sized] = getattr(datasets, "datasets", [datasets])  # of a ConcatDataset
    part_names = [str(number) for number in range(len(parts))] if names is None else list(names)
    if len(part_names) != len(parts) or len(set(part_names)) != len(parts):
        raise PlanError(f"`names` must be {len(parts)} different names, one for each dataset; got {names!r}")
    return dict(zip(part_names, parts, strict=True))


def _by_name(labels: Labels | None, names: Sequence[str]) -> Mapping[str, LabelPresence]:
    """Return labels that were passed, by the name of their dataset."""
    if not isinstance(labels, LabelPresence):
        return labels or {}
    if len(names) != 1:
        raise PlanError(f"`labels` must map names to labels, as there are {len(names)} datasets; got those of one")
    return {names[0]: labels}


def _labels_of(name: str, length: int, given: Mapping[str, LabelPresence]) -> LabelRows:
    """Return the labels of one dataset."""
    if name not in given:
        raise PlanError(
            f"`repeat` needs labels but source {name!r} has none; give its dataset a `label_presence`, or pass them in `labels`"
        )
    rows = rows_of(given[name], f"source {name!r}")
    if len(rows) != length:
        raise PlanError(
            f"labels must have one row for each sample; source {name!r} has {length} samples and {len(rows)} rows"
        )
    return rows
