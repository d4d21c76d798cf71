"""The request: what a builder was asked for, and what follows from it once: catalog, supplies, rank, and the plan of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from equitar.checks import check_integer
from equitar.errors import PlanError
from equitar.loading.emitter import Emitter
from equitar.loading.feed import Feed, checked_stages
from equitar.loading.record import Record
from equitar.loading.shared_slots import keep_freed_memory
from equitar.misuse import refuse_other_ranks
from equitar.planning.passes import PassStart
from equitar.planning.plan import Plan, PlanSpec, batch_size_then
from equitar.planning.recipes import Exact, Recipe
from equitar.planning.repeat_factors import RepeatFactor
from equitar.planning.supply import Supply
from equitar.planning.weights import Changes, Weights
from equitar.progress import Position
from equitar.ranks import RankChoice, Topology
from equitar.reading.damage import Handler, TolerantReader, checked_handler
from equitar.reading.prefetch import PrefetchBudget
from equitar.reading.reader import OpenShards, Reader, open_shards
from equitar.sidecars.catalog import Catalog, Repeat, catalog_of, planned_supplies
from equitar.sidecars.summary import ListedSummary, usable_summaries
from equitar.sources import Source, Stage


class ResolvedRequest(NamedTuple):
    """What is looked up once, in the main process."""

    catalog: Catalog
    supplies: Sequence[Supply]
    rank: int
    world_size: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """What a builder was asked for; see `equitar.debiased`."""

    sources: Sequence[Source]
    recipe: Recipe
    batch_size: int
    seed: int
    shuffle: int
    repeat: Repeat
    stages: Sequence[Stage]
    collate_fn: Callable[[list[Any]], Any] | None
    fields: Collection[str] | None
    copy: bool
    plan_workers: int | None
    ranks: RankChoice
    max_substitutes: int
    handler: Handler
    read_ahead: int
    one_source: bool  # in each batch
    summaries: Mapping[str, ListedSummary] = field(default_factory=dict)  # by source, to use in place of the newest
    labels_shared: bool = False  # whether ids without names mean the same classes in all sources
    make_supplies: Callable[[Catalog, Repeat], Sequence[Supply]] = planned_supplies  # others may watch the rows

    def __post_init__(self) -> None:
        for name in ("seed", "shuffle", "max_substitutes", "read_ahead"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 0))
        object.__setattr__(self, "batch_size", check_integer("batch_size", self.batch_size, 1))
        if self.plan_workers is not None:
            object.__setattr__(self, "plan_workers", check_integer("plan_workers", self.plan_workers, 1))
        object.__setattr__(self, "repeat", RepeatFactor.of(self.repeat))
        if isinstance(self.fields, str):
            raise PlanError(f"`fields` must be a collection of names; got the single {self.fields!r}")
        checked_handler(self.handler)
        for source in self.sources:
            checked_stages(source.stages)

    @cached_property
    def resolved(self) -> ResolvedRequest:
        """What is looked up once, at the first use; it travels to workers with the request.

        Raises:
            SourceError, SidecarError: If a shard or a sidecar is missing or stale.
        """
        rank, world_size = self.ranks.resolve()
        catalog = catalog_of(self.sources, self.summaries, labels_shared=self.labels_shared)
        return ResolvedRequest(catalog, self.make_supplies(catalog, self.repeat), rank, world_size)

    @property
    def resolved_already(self) -> ResolvedRequest | None:
        """`resolved`, if it was used before; otherwise None, and nothing is read."""
        return self.__dict__.get("resolved")

    def with_summaries(self, summaries: Mapping[str, str]) -> Request:
        """Return this request with the summaries that a state names, as far as they can still be used."""
        resolved = self.resolved_already
        known = {} if resolved is None else resolved.catalog.file_digests
        if summaries == known:  # they were read already
            return self
        usable = usable_summaries(self.sources, summaries)
        digests = {name: summary.file_digest for name, (_, summary) in usable.items()}
        pinned = {name: summary.file_digest for name, (_, summary) in self.summaries.items()}
        return self if digests in (pinned, known) else replace(self, summaries=usable)

    def reweighted(self, weights: Weights | Changes | None) -> Request:
        """Return this request with other weights, over the same shards.

        Raises:
            PlanError: If it has none, or they are not weights.
        """
        recipe: Any = self.recipe
        if isinstance(recipe, Exact):
            raise PlanError("`exact` goes through every sample once and takes no `weights`; use `debiased` or `mixed`")
        result = replace(self, recipe=replace(recipe, weights=weights))
        if self.resolved_already is not None:  # what joined since waits for the next start of a run, on all ranks alike
            result.__dict__["resolved"] = self.resolved
        return result

    def check_rank(self) -> None:
        """Raise PlanError if the rank of this process has changed since it was looked up: ranks would wait for each other."""
        _, _, rank, world_size = self.resolved
        now = self.ranks.resolve()
        if now != (rank, world_size):
            raise PlanError(
                f"this process is rank {now[0]} of {now[1]} but was rank {rank} of {world_size} when these batches were first "
                "asked for their length or plan, or pickled; do that once the process group exists, or give `rank` and "
                "`world_size`"
            )
        if self.ranks.origin == "detected":
            refuse_other_ranks(*now)

    def plan(self, position: Position, num_workers: int, pass_start: PassStart) -> Plan:
        """Return the plan of the epoch that begins at a position, along the passes from their start."""
        num_workers = check_integer("num_workers", num_workers, 0)
        world_size = position.world_size or self.resolved.world_size
        spec = PlanSpec(
            batch_size=batch_size_then(world_size, batch_size=self.batch_size, world_size=self.resolved.world_size),
            world_size=world_size,
            lanes=position.lanes or self.plan_workers or max(1, num_workers),
            seed=self.seed,
            epoch=position.epoch,
            shuffle=self.shuffle,
            pass_start=pass_start,
        )
        return self.recipe.plan(self.resolved.supplies, spec)

    def readers(self, cache: OpenShards) -> list[Reader]:
        """Return a reader for each source, in the order of the catalog."""
        catalog = self.resolved.catalog
        return [Reader(sidecars, cache, fields=self.fields, copy=self.copy) for sidecars in catalog.sidecars]

    def tolerant(self, reader: Reader) -> Reader | TolerantReader:
        """Return a reader that handles damage as requested."""
        return reader if self.handler is None else TolerantReader(reader, self.handler)

    def emitter(
        self,
        plan: Plan,
        topology: Topology,
        epoch: int,
        feeds: Sequence[Feed],
        cache: OpenShards,
        budget: PrefetchBudget | None,
    ) -> Emitter:
        """Return what executes a plan over feeds, one for each source of the plan: those of training, or others to look at it."""
        return Emitter(
            plan=plan,
            epoch=epoch,
            topology=topology,
            feeds=feeds,
            collate_fn=self.collate_fn,
            one_source=self.one_source,
            budget=budget,
            cache=cache,
        )

    def emitted(self, plan: Plan, topology: Topology, epoch: int, first_step: int) -> Iterator[tuple[Record, Any]]:
        """Yield the batches of one consumer, from one of its steps on, each with its record."""
        keep_freed_memory()
        cache = open_shards()
        readers = self.readers(cache)
        feeds = {
            sidecars.source.name: Feed(
                sidecars.source.name,
                self.tolerant(reader),
                (*sidecars.source.stages, *self.stages),
                paths=sidecars.shards.paths,
                max_substitutes=self.max_substitutes,
            )
            for sidecars, reader in zip(self.resolved.catalog.sidecars, readers, strict=True)
        }
        is_remote = any(reader.is_remote for reader in readers)
        budget = PrefetchBudget(self.read_ahead) if self.read_ahead and is_remote else None
        emitter = self.emitter(plan, topology, epoch, [feeds[name] for name in plan.names], cache, budget)
        try:
            yield from emitter.run(first_step)
        finally:
            for reader in readers:
                reader.close()
            if budget is not None:
                budget.close()
