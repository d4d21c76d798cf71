"""Batches: what a builder returns, a webdataset pipeline that executes a plan; and loading them by name for the command line."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import webdataset as wds

from equitar.display import Overview, Table, samples_table
from equitar.errors import PlanError, SourceError
from equitar.loading.execution import Execution
from equitar.loading.position import SharedPosition
from equitar.loading.request import Request
from equitar.loading.state import State, check_state, summaries_in
from equitar.misuse import refuse_resharding, warn_of_batching_workers, warn_of_plan_in_worker
from equitar.planning.plan import Composition, Plan, SmallSources
from equitar.planning.recipes import Exact
from equitar.planning.weights import Weights
from equitar.progress import Position, checked_epoch
from equitar.ranks import RankChoice, Topology, detect_workers
from equitar.sidecars.catalog import Repeat
from equitar.text import counted

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

_PUBLIC = (
    "compose",
    "extract_keys",
    "load_state_dict",
    "map",
    "map_dict",
    "map_tuple",
    "plan",
    "rename",
    "rename_keys",
    "set_epoch",
    "sources",
    "state_dict",
    "to_tuple",
)


class Batches(Overview, wds.DataPipeline):  # type: ignore[misc]  # webdataset has no types
    """Batches, or single samples, of a plan; returned by `debiased`, `mixed` and `exact`.

    It is an `IterableDataset`: use it in `equitar.Loader`, or in ``DataLoader(batches, batch_size=None)`` with `set_epoch`
    before every epoch. Methods of webdataset that give one batch for each batch compose: `map`, `map_dict`, `map_tuple`,
    `to_tuple`, `rename`, `rename_keys`, `extract_keys`.
    """

    def __init__(self, request: Request) -> None:
        """Keep a request; nothing is read yet."""
        self._execution = Execution(request)
        super().__init__()
        self._resumed: Position | None = None  # from `load_state_dict`: used once, in this process only
        self._next: Position | None = None  # what this process emits next, for `state_dict`
        self._is_of_worker = detect_workers()[1] > 0  # made within a worker, and no epoch was set

    def __copy__(self) -> Batches:
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__, _execution=self._execution.copied())
        return result

    def _overview(self) -> tuple[str, list[Table]]:
        request, plan = self._execution.request, self._execution.latest_plan
        resolved = request.resolved_already
        words = [
            type(request.recipe).__name__.lower(),
            counted(len(request.sources), "source"),
            "single samples" if request.collate_fn is None else f"batch_size={request.batch_size}",
        ]
        if resolved is not None:
            words.append(f"rank {resolved.rank} of {resolved.world_size}")
        if plan is not None:
            words.append(f"{counted(plan.num_steps, 'step')} per epoch")
        samples: dict[str, int | None] = dict.fromkeys(source.name for source in request.sources)
        if resolved is not None:
            samples |= {supply.name: int(supply.num_rows.sum()) for supply in resolved.supplies}
        return f"Batches({', '.join(words)})", [samples_table(samples)]

    def __dir__(self) -> list[str]:
        return [*(name for name in super().__dir__() if name.startswith("_")), *_PUBLIC]

    @property
    def pipeline(self) -> list[Any]:
        """The composed stages, where webdataset looks for them."""
        return self._execution.stages

    @pipeline.setter
    def pipeline(self, stages: list[Any]) -> None:
        self._execution.stages = stages

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0; if `load_state_dict` was just called, in the middle of it."""
        checked_epoch(epoch)
        if self._resumed is not None and self._resumed.epoch == epoch:
            return
        self._resumed, self._is_of_worker = None, False
        self._execution.start.position = Position(epoch)
        self._next = None

    def plan(self, epoch: int | None = None, *, num_workers: int | None = None) -> Plan:
        """Return the plan of an epoch.

        Args:
            epoch: Which epoch; None is the next one.
            num_workers: DataLoader workers of each rank; None is this process's own.

        Raises:
            PlanError: If the promises cannot be kept.
        """
        position = self._execution.start.position if epoch is None else Position(epoch)
        return self._execution.plan_at(position, detect_workers()[1] if num_workers is None else num_workers)

    def sources(self, epoch: int) -> list[str] | None:
        """Return the name of the source of every step of an epoch on this rank, or None where batches are mixed."""
        plan = self.plan(epoch)
        sources = plan.sources(self._execution.request.resolved.rank)
        return None if sources is None else [plan.names[source] for source in sources.tolist()]

    def __len__(self) -> int:
        """Return the number of steps of an epoch; it is the same for every epoch and every number of workers."""
        return self.plan().num_steps

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the epoch that comes next."""
        refuse_resharding()
        topology, position = self._execution.consumer()
        if not topology.num_workers:
            self._execution.request.check_rank()
        first_step = position.step + topology.worker
        if self._resumed is not None:
            position, first_step, self._resumed = self._resumed, self._resumed.step, None
        # At once: a worker is asked for its state before its first batch.
        self._next = position._replace(step=first_step)
        return self._advancing(topology, position, first_step)

    def _advancing(self, topology: Topology, position: Position, first_step: int) -> Iterator[Any]:
        start, workers = self._execution.start, topology.num_workers
        plan = self._execution.plan_at(position, workers)
        if workers and topology.worker == 0 and plan.is_whole:
            self._warn_in_worker()
        if workers and topology.worker == 0 and plan.is_whole and start.begins_again(position.epoch):
            warnings.warn(
                f"epoch {position.epoch} begins again; call `set_epoch` before each epoch, or use equitar.Loader",
                stacklevel=2,
            )
        for record, batch in self._execution.run(topology, position, first_step):
            self._next = position._replace(step=record.step + max(1, workers))
            # With the last batch, not after it: who takes exactly that many never asks for more.
            if record.step == plan.num_steps - 1 and not workers:
                self._next = Position(position.epoch + 1)
                if start.position == position:  # otherwise `set_epoch` was called in the meantime
                    start.position = self._next
            yield batch

    def _warn_in_worker(self) -> None:
        """Warn once of what a DataLoader does to epochs and batches."""
        if self._execution.start.was_begun:
            return
        warn_of_batching_workers()
        if self._is_of_worker:
            warn_of_plan_in_worker()

    def state_dict(self) -> State:
        """Return where this process stands: after its latest batch. In a worker, the state of this worker alone.

        torchdata's StatefulDataLoader collects these; it requires the same number of workers. `Loader` does not.
        """
        topology, position = self._execution.consumer()
        return self._execution.state_at(self._next or position, topology.num_workers)

    def load_state_dict(self, state: State) -> None:
        """Begin the next iterator of this process where another stood.

        Raises:
            PlanError: If the state belongs to another plan; it says what differs.
        """
        execution = self._execution
        if not detect_workers()[1]:  # otherwise the main process, which knows the length, has read the newest ones
            execution.use_summaries(summaries_in(state) if state["step"] else {})
        topology, _ = execution.consumer()
        position = execution.follow_state(state)
        check_state(state, execution.state_at(position, topology.num_workers))
        num_steps = execution.plan_at(position, topology.num_workers).num_steps
        if not topology.num_workers and position.step >= num_steps:
            position = Position(position.epoch + 1)
        self._resumed = self._next = position
        if not topology.num_workers:
            execution.start.position = position

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


def execution_of(batches: Batches) -> Execution:
    """Return how batches are executed: for the rest of equitar, not for users."""
    return batches._execution  # noqa: SLF001  (their own module)


def own_copy(batches: Batches) -> Batches:
    """Return the same batches with a position of their own."""
    result = copy.copy(batches)
    execution_of(result).start = SharedPosition()
    return result


def load_training(name: str) -> Batches:
    """Return the batches that ``package.module:name`` names, or that a function of that name returns without arguments.

    Raises:
        SourceError: If it cannot be imported, or is something else.
    """
    module, _, attribute = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
    except ImportError as error:
        raise SourceError(
            f"SOURCE must be name=urls or package.module:name; module {module!r} of {name!r} cannot be imported ({error})"
        ) from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = ", ".join(sorted(name for name in vars(target) if not name.startswith("_"))[:8]) or "nothing"
            raise SourceError(f"module {module!r} must have {attribute!r} but has {names}")
        target = getattr(target, part)
    is_function = callable(target) and not isinstance(target, Batches)
    if is_function and not _needs_no_arguments(target):
        raise SourceError(f"{attribute!r} of module {module!r} must be callable without arguments; got {target!r}")
    result = target() if is_function else target
    if not isinstance(result, Batches):
        raise SourceError(
            f"{attribute!r} of module {module!r} must be what `debiased`, `mixed` or `exact` returned, or a function that "
            f"returns it; got {type(result).__name__}" + " from the call" * is_function
        )
    return result


def _needs_no_arguments(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # a function written in C may have no signature
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
    small_sources: SmallSources | None = None,
    composition: Composition | None = None,
) -> Batches:
    """Return batches with other arguments; None keeps what they have. With `world_size`, they are those of rank 0.

    Raises:
        PlanError: If an argument is given that their builder does not have.
    """
    request = execution_of(batches).request
    given = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, "repeat": repeat}
    given |= {"labels_shared": labels_shared}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if world_size is not None:
        changes["ranks"] = RankChoice.of(0, world_size)
    of_recipe = {"steps": steps, "weights": weights, "small_sources": small_sources, "composition": composition}
    of_recipe = {name: value for name, value in of_recipe.items() if value is not None}
    recipe: Any = request.recipe
    for name in of_recipe:
        if not hasattr(recipe, name):
            what = "goes through every sample once and takes" if isinstance(recipe, Exact) else "takes"
            raise PlanError(f"`{type(recipe).__name__.lower()}` {what} no `{name}`; leave it out")
    if of_recipe:
        changes["recipe"] = replace(recipe, **of_recipe)
    return Batches(replace(request, **changes)) if changes else batches
