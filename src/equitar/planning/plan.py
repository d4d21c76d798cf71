"""Plans: the protocol, the numbers that every plan needs, what an epoch takes of each source, and the digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from equitar.arrays import Int64
from equitar.checks import check_integer
from equitar.display import Overview, Table, samples_table
from equitar.errors import PlanError
from equitar.planning.line import most_of
from equitar.planning.passes import PassPosition, PassStart
from equitar.planning.supply import Supply
from equitar.text import counted


class PlannedSamples(NamedTuple):
    """Planned copies, one for each slot, (n,) each."""

    source: Int64  # index of the source, in the order of the plan
    shard: Int64  # index of the shard in its source
    row: Int64  # row in its shard
    copy: Int64  # which copy of the sample in this pass


PLAN_VERSION = 1
_LOWEST = {"batch_size": 1, "world_size": 1, "lanes": 1, "seed": 0, "epoch": 0, "shuffle": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """Numbers that every plan needs."""

    batch_size: int  # samples per rank and step, >= 1
    world_size: int  # ranks, >= 1
    lanes: int  # DataLoader workers of each rank when the epoch began, 1 without workers
    seed: int  # seed, >= 0
    epoch: int  # which epoch, >= 0
    shuffle: int  # samples that each rank shuffles together, >= 0
    pass_start: PassStart = field(default_factory=PassStart)  # where epochs begin along the passes

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            object.__setattr__(self, name, check_integer(name, getattr(self, name), lowest))

    @property
    def global_batch(self) -> int:
        """Samples of all ranks at one step."""
        return self.batch_size * self.world_size


def batch_size_then(planned_for: int, *, batch_size: int, world_size: int) -> int:
    """Return the samples per rank where so many ranks share the present global batch.

    Raises:
        PlanError: If they cannot.
    """
    global_batch = batch_size * world_size
    if global_batch % planned_for:
        raise PlanError(
            f"a resumed run must have the same global batch; it had {planned_for} ranks, which cannot share the "
            f"{global_batch} samples of {world_size} ranks x {batch_size}"
        )
    return global_batch // planned_for


class SourceAccount(NamedTuple):
    """What an epoch takes of one source.

    Attributes:
        name: The source.
        rows: Samples in its shards, before selection.
        copies: Whole copies in a pass, after selection and repeats.
        quota: Copies that an epoch emits.
        passes: How often an epoch goes through the source.
        remainder: Copies of each pass that the epochs leave out, fewer than a global batch.
        most: Most copies of one sample in a pass; an epoch that crosses into the next pass may emit those of both.
    """

    name: str
    rows: int
    copies: int
    quota: int
    passes: float
    remainder: int
    most: int


def account_of(supplies: Sequence[Supply], quota: Sequence[int], in_pass: Sequence[int]) -> tuple[SourceAccount, ...]:
    """Return what an epoch takes of each source."""
    return tuple(
        SourceAccount(
            name=supply.name,
            rows=int(supply.num_rows.sum()),
            copies=supply.copies,
            quota=asked,
            passes=(asked << 20) / max(1, supply.total),
            remainder=supply.copies - max(whole, min(asked, supply.copies)),
            most=most,
        )
        for supply, asked, whole, most in zip(supplies, quota, in_pass, most_of(supplies, quota, in_pass), strict=True)
    )


def digest_of(supplies: Sequence[Supply], spec: PlanSpec, detail: str) -> str:
    """Return a digest of all that a plan depends on, apart from the epoch: ranks with equal digests have the same plan."""
    numbers = (spec.batch_size, spec.world_size, spec.lanes, spec.seed, spec.shuffle)
    start = spec.pass_start
    if start != PassStart():
        detail += f" {start.restart_each_epoch} {start.epoch} {[tuple(position) for position in start.positions]}"
    mix = hashlib.blake2b(repr((PLAN_VERSION, *numbers, detail)).encode(), digest_size=16)
    for supply in supplies:
        mix.update(repr((supply.name, supply.largest, supply.rounding)).encode())
        for column in (supply.shard_ids, supply.num_rows, supply.sums):
            mix.update(column.astype("<u8").tobytes())
    return mix.hexdigest()


SameSourceAcross: TypeAlias = Literal["world", "rank"]
SmallSources: TypeAlias = Literal["error", "leave_out"]
Composition: TypeAlias = Literal["stratified", "independent"]


class DisplayedPlan(Overview):
    """What plans show of themselves."""

    spec: PlanSpec
    num_steps: int
    global_batch: int
    account: tuple[SourceAccount, ...]

    def _overview(self) -> tuple[str, list[Table]]:
        steps = counted(self.num_steps, "step")
        title = f"{type(self).__name__}(epoch {self.spec.epoch}, {steps}, global batch {self.global_batch})"
        return title, [samples_table({source.name: source.quota for source in self.account})]


class Plan(Protocol):
    """What samples every rank emits at every step of an epoch.

    Attributes:
        num_steps: Steps of the epoch.
        global_batch: Samples of a global batch.
        digest: Digest of all that the plan depends on, apart from the epoch, in hexadecimal.
        names: Names of the sources, sorted.
        account: What the epoch takes of each source.
        is_whole: Whether every batch must be full, so that dropped samples need substitutes.
        spec: The numbers it was made with.
    """

    is_whole: bool
    spec: PlanSpec
    num_steps: int
    global_batch: int
    digest: str
    names: tuple[str, ...]
    account: tuple[SourceAccount, ...]

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""

    def samples(self, step: int, first: int, last: int) -> PlannedSamples:
        """Return what lies in slots [first, last) of a step."""

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples of the same source that may stand in for a dropped one."""

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""

    def pass_positions(self, step: int) -> tuple[PassPosition, ...]:
        """Return where each source stands in its passes if the epoch ends before a step.

        Within an epoch that is behind all that the epoch has begun to emit: no sample comes twice before its pass is over.
        """

    def given_up(self, step: int) -> dict[str, int]:
        """Return how many copies of each source are lost if the epoch ends before a step: those before `pass_positions`."""

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""


def skipped_by(plan: Plan, positions: Iterable[PassPosition]) -> dict[str, int]:
    """Return how many copies of each source a plan skips if it continues from positions.

    It takes whole batches of a source, and a source that begins a pass with each epoch leaves the rest of the pass it was in.
    A source whose pass has another number of copies now is left out: its place is a share.
    """
    begins = {position.source: position for position in plan.pass_positions(0)}
    remainders = {account.name: account.remainder for account in plan.account}
    result = {}
    for source, pass_number, taken, copies in positions:
        begin = begins.get(source)
        if begin is not None and begin.copies == copies and taken:
            is_same_pass = begin.pass_number == pass_number
            end = begin.taken if is_same_pass else copies - remainders[source]
            result[source] = max(0, end - taken)
    return result
