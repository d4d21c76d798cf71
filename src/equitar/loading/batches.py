"""What does a user build? Batches: a webdataset pipeline that executes a plan.

Everything expensive happens at the first `iter()`, `len()` or `plan()`, not when a pipeline is built: the summaries are read,
the rank is asked for. The answer travels to the workers with the pipeline.

What does a training read? Its own pipeline, found by name, with other numbers where the command line gives some.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import webdataset as wds

from equitar.errors import PlanError, SourceError, StageError
from equitar.loading.position import Position, SharedPosition
from equitar.loading.record import Record
from equitar.loading.request import Request, ResolvedRequest
from equitar.loading.state import State, check_state, position_in, state_of, walk_in
from equitar.planning.passes import PassStart
from equitar.planning.plan import Plan
from equitar.planning.recipes import Debiased, Exact
from equitar.planning.weights import Weights
from equitar.ranks import Topology, consumer, detect_workers, refuse_resharding
from equitar.sidecars.catalog import Repeat

logger = logging.getLogger("equitar")
_INSTEAD = {
    "shuffle": "`shuffle=` of the builder",
    "batched": "`batch_size=` and `collate_fn=` of the builder",
    "listed": "`batch_size=` and `collate_fn=list` of the builder",
    "unbatched": "`equitar.mixed` without `batch_size`",
    "unlisted": "`equitar.mixed` without `batch_size`",
    "select": "a per-sample stage in `stages=` of the builder, or `keep=` of a source",
    "rsample": "`keep=` of a source with a share",
    "slice": "`steps=` of the builder",
    "with_epoch": "`steps=` of the builder",
    "with_length": "`steps=` of the builder",
    "repeat": "`weights=equitar.Passes(...)` or `repeat=` of the builder",
    "decode": "`stages=[wds.decode(...)]` of the builder",
    "xdecode": "`stages=[wds.xdecode(...)]` of the builder",
    "mcached": "nothing: sidecars make reading cheap",
    "lmdb_cached": "nothing: sidecars make reading cheap",
}


class Batches(wds.DataPipeline):  # type: ignore[misc]  # webdataset has no types
    """Batches, or single samples, as a plan says; made by `debiased`, `mixed` and `exact`.

    It is an `IterableDataset`: use it in `equitar.Loader`, or in ``DataLoader(batches, batch_size=None)`` with `set_epoch`
    before every epoch. Methods of webdataset that give one batch for each batch compose: `map`, `map_dict`, `map_tuple`,
    `to_tuple`, `rename`, `rename_keys`, `extract_keys`.
    """

    def __init__(self, order: Request) -> None:
        """Keep an order; nothing is read yet."""
        super().__init__()
        self.order = order
        self._made: tuple[tuple[int, ...], Plan] | None = None
        self._has_said_left_out = False
        self.walk = PassStart()
        self._resumed: Position | None = None  # from `load_state_dict`: used once, in this process only
        self._next: Position | None = None  # what this process emits next, for `state_dict`
        self.clock = SharedPosition()

    def __getstate__(self) -> dict[str, Any]:
        self.prepared()  # workers must not look for their rank, nor read all sidecars again
        return {**self.__dict__, "_made": None}

    def __copy__(self) -> Batches:
        # Not by `__getstate__`, which prepares: a launcher may not have made the ranks yet, and a state may name other summaries.
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__, _made=None)
        return result

    def prepared(self) -> ResolvedRequest:
        """Return what is asked for once: catalog, supplies and rank; see `Order.prepared`."""
        return self.order.prepared()

    def copied(self) -> Batches:
        """Return the same batches with a clock of their own, for a Loader."""
        result = copy.copy(self)
        result.clock = SharedPosition()
        return result

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0; where `load_state_dict` was just called, in the middle of it."""
        if epoch < 0:
            raise ValueError(f"`epoch` must be >= 0; got {epoch}")
        if self._resumed is not None and self._resumed.epoch == epoch:
            return
        self._resumed = None
        self.clock.position = Position(epoch, 0, 0, 0)
        self._next = None

    def plan(self, epoch: int | None = None, *, num_workers: int | None = None) -> Plan:
        """Return the plan of an epoch.

        Args:
            epoch: Which epoch; None is the one that comes next.
            num_workers: DataLoader workers of each rank; None is this process's own.

        Raises:
            PlanError: If the promises cannot be kept.
        """
        position = self.clock.position if epoch is None else Position(epoch, 0, 0, 0)
        return self.plan_at(position, detect_workers()[1] if num_workers is None else num_workers)

    def plan_at(self, position: Position, num_workers: int) -> Plan:
        """Return the plan of the epoch that begins at a position; the latest is remembered."""
        name = (position.epoch, position.lanes, position.world_size, num_workers)
        if self._made is None or self._made[0] != name:
            self._made = (name, self.order.plan(self.prepared(), position, num_workers, self.walk))
            self._say_left_out(self._made[1])
        return self._made[1]

    def _say_left_out(self, plan: Plan) -> None:
        """Log once which sources are too short for the plan."""
        left_out = [supply for supply in self.prepared().supplies if supply.name not in plan.names]
        if self._has_said_left_out or detect_workers()[1]:
            return
        self._has_said_left_out = bool(left_out)
        accumulation_steps = self.order.recipe.accumulation_steps if isinstance(self.order.recipe, Debiased) else 1
        for supply in left_out:
            logger.warning(
                "source %r is left out: it has %d samples but one global batch needs %d",
                supply.name,
                supply.copies,
                plan.global_batch * accumulation_steps,
            )

    def walk_from(self, state: State) -> Position:
        """Take over from a state how its epochs go along the passes, and return its position."""
        position = position_in(state)
        self.go_along(walk_in(state))
        return position

    def take_summaries(self, summaries: Mapping[str, str]) -> None:
        """Go on with the summaries that a state names, though its sources may have grown since; others are the newest."""
        self.order = self.order.going_on(summaries)
        self._made = None

    def go_along(self, walk: PassStart) -> None:
        """Go along the passes by a walk: the plan of the latest epoch is forgotten."""
        self.walk, self._made = walk, None

    def sources(self, epoch: int) -> list[str] | None:
        """Return the name of the source of every step of an epoch on this rank, or None where batches are mixed."""
        plan = self.plan(epoch)
        found = plan.sources(self.prepared().rank)
        return None if found is None else [plan.names[one] for one in found.tolist()]

    def __len__(self) -> int:
        """Return the number of steps of an epoch; it is the same for every epoch and every number of workers."""
        return self.plan().num_steps

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the epoch of the clock."""
        refuse_resharding()
        topology, position = self.consumer()
        if not topology.num_workers:
            self.order.check_rank()
        first_step = position.step + topology.worker
        if self._resumed is not None:
            position, first_step, self._resumed = self._resumed, self._resumed.step, None
        # At once: a worker is asked for its state before its first batch.
        self._next = position._replace(step=first_step)
        return self._advancing(topology, position, first_step)

    def recorded(self) -> Iterator[tuple[Record, Any]]:
        """Return an iterator over the epoch of the clock, each batch with its record; for a Loader, which moves the clock."""
        topology, position = self.consumer()
        return self._from(topology, position, position.step + topology.worker)

    def consumer(self) -> tuple[Topology, Position]:
        """Return who reads in this process, and where it begins."""
        prepared = self.prepared()
        return consumer(prepared.rank, prepared.world_size), self.clock.position

    def _advancing(self, topology: Topology, position: Position, first_step: int) -> Iterator[Any]:
        plan, workers = self.plan_at(position, topology.num_workers), topology.num_workers
        if workers and topology.worker == 0 and plan.is_whole and self.clock.begins_again(position.epoch):
            warnings.warn(
                f"epoch {position.epoch} begins again; call `set_epoch` before each epoch, or use equitar.Loader",
                stacklevel=2,
            )
        for record, batch in self._from(topology, position, first_step):
            self._next = position._replace(step=record.step + max(1, workers))
            # With the last batch, not after it: who takes as many as there are never asks for more.
            if record.step == plan.num_steps - 1 and not workers:
                self._next = Position(position.epoch + 1, 0, 0, 0)
                if self.clock.position == position:  # else `set_epoch` was called on the way
                    self.clock.position = self._next
            yield batch

    def _from(self, topology: Topology, position: Position, first_step: int) -> Iterator[tuple[Record, Any]]:
        plan = self.plan_at(position, topology.num_workers)
        return self.composed(self.order.emitted(self.prepared(), plan, topology, position.epoch, first_step))

    def state_dict(self) -> State:
        """Return where this process stands: after its latest batch. In a worker, the state of this worker alone.

        torchdata's StatefulDataLoader collects these; it insists on the same number of workers. `Loader` does not.
        """
        topology, position = self.consumer()
        position = self._next or position
        return state_of(self.order, self.plan_at(position, topology.num_workers), position)

    def load_state_dict(self, state: State) -> None:
        """Begin the next iterator of this process where another stood.

        Raises:
            PlanError: If the state is of another plan; it says what differs.
        """
        if not detect_workers()[1]:  # else the main process, which knows the length, has read the newest ones
            self.take_summaries(state["summaries"] if state["step"] else {})
        topology, _ = self.consumer()
        position = self.walk_from(state)
        plan = self.plan_at(position, topology.num_workers)
        check_state(state, state_of(self.order, plan, position))
        if not topology.num_workers and position.step >= plan.num_steps:
            position = Position(position.epoch + 1, 0, 0, 0)
        self._resumed = self._next = position
        if not topology.num_workers:
            self.clock.position = position

    def composed(self, batches: Iterator[tuple[Record, Any]]) -> Iterator[tuple[Record, Any]]:
        """Take batches through the composed stages, and their records past them."""
        if not self.pipeline:
            yield from batches
            return
        records: list[Record] = []

        def noted() -> Iterator[Any]:
            for record, batch in batches:
                records.append(record)
                yield batch

        stream: Iterable[Any] = noted()
        for stage in self.pipeline:
            stream = self.invoke(stage, stream)
        for batch in stream:
            if len(records) != 1:
                raise StageError(f"a composed stage must give one batch for each; it took {len(records)} for one")
            yield records.pop(), batch
        if records:
            raise StageError("a composed stage must give one batch for each; it dropped the last one")

    def map(self, function: Callable[[Any], Any]) -> Batches:
        """Return these batches with a function applied to each."""
        return self._with(wds.map(function))

    def map_dict(self, **functions: Callable[[Any], Any]) -> Batches:
        """Return these batches with a function applied to each named field."""
        return self._with(wds.map_dict(**functions))

    def map_tuple(self, *functions: Callable[[Any], Any]) -> Batches:
        """Return these batches with a function applied to each element."""
        return self._with(wds.map_tuple(*functions))

    def to_tuple(self, *fields: str) -> Batches:
        """Return these batches as tuples of the named fields."""
        return self._with(wds.to_tuple(*fields))

    def rename(self, **names: str) -> Batches:
        """Return these batches with fields renamed."""
        return self._with(wds.rename(**names))

    def rename_keys(self, *pairs: tuple[str, str]) -> Batches:
        """Return these batches with fields renamed by patterns."""
        return self._with(wds.rename_keys(*pairs))

    def extract_keys(self, *patterns: str) -> Batches:
        """Return these batches as tuples of the fields that match patterns."""
        return self._with(wds.extract_keys(*patterns))

    def _with(self, stage: Any) -> Batches:
        result: Batches = self.compose(stage)
        return result

    def __getattr__(self, name: str) -> Any:
        if name in _INSTEAD:
            raise AttributeError(f".{name}() would undo what the plan promises; use {_INSTEAD[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> Any:
        """Raise: the number of steps is `steps=` of the builder."""
        self.__getattr__("with_epoch")

    def with_length(self, n: int, silent: bool = False) -> Any:  # noqa: FBT001, FBT002  (webdataset's signature)
        """Raise: the number of steps is `steps=` of the builder."""
        self.__getattr__("with_length")

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> Any:
        """Raise: repeats are `repeat=` of the builder."""
        self.__getattr__("repeat")


def load_training(name: str) -> Batches:
    """Return the batches that ``package.module:name`` names: a pipeline, or a function without arguments that returns one.

    Raises:
        SourceError: If it cannot be imported, or is anything else.
    """
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SourceError(
            f"SOURCE must be name=urls or package.module:name; module {module!r} of {name!r} cannot be imported ({error})"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = ", ".join(sorted(one for one in vars(found) if not one.startswith("_"))[:8]) or "nothing"
            raise SourceError(f"module {module!r} must have {attribute!r} but has {there}")
        found = getattr(found, part)
    made = "" if isinstance(found, Batches) or not callable(found) else " from the call"
    if made and not _needs_nothing(found):
        raise SourceError(f"{attribute!r} of module {module!r} must be callable without arguments; got {found!r}")
    result = found() if made else found
    if not isinstance(result, Batches):
        raise SourceError(
            f"{attribute!r} of module {module!r} must be what `debiased`, `mixed` or `exact` returned, or a function that "
            f"returns it; got {type(result).__name__}{made}"
        )
    return result


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # one written in C may have no signature
        return True
    return True


def adjusted(
    batches: Batches,
    *,
    batch_size: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    shuffle: int | None = None,
    repeat: Repeat = None,
    labels_shared: bool | None = None,
    steps: int | None = None,
    weights: Weights | None = None,
) -> Batches:
    """Return batches with other numbers; None keeps what they have. The ranks are those of rank 0 of `world_size`.

    Raises:
        PlanError: If steps or weights are given to `exact`, which has none.
    """
    given = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, "repeat": repeat, "world_size": world_size}
    given |= {"labels_shared": labels_shared}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if world_size is not None:
        changes["rank"] = 0
    of_recipe = {name: value for name, value in (("steps", steps), ("weights", weights)) if value is not None}
    recipe: Any = batches.order.recipe
    if of_recipe and isinstance(recipe, Exact):
        raise PlanError(f"`exact` goes through every sample once and takes no `{next(iter(of_recipe))}`; leave it out")
    if of_recipe:
        changes["recipe"] = replace(recipe, **of_recipe)
    return Batches(replace(batches.order, **changes)) if changes else batches
