"""Numbers that every plan needs, what a plan costs its sources, and the digest that names a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from equitar.errors import PlanError
from equitar.laid import most_of
from equitar.line import Supply
from equitar.passes import Walk

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Numbers that every plan needs.

    Attributes:
        batch_size: Samples per rank and step, >= 1.
        world_size: Ranks, >= 1.
        lanes: DataLoader workers of each rank when the epoch began, 1 without workers.
        seed: Seed, >= 0.
        epoch: Which epoch, >= 0.
        shuffle: Samples that each rank shuffles together, >= 0.
        walk: How epochs go along the passes.
    """

    batch_size: int
    world_size: int
    lanes: int
    seed: int
    epoch: int
    shuffle: int
    walk: Walk = field(default_factory=Walk)

    def __post_init__(self) -> None:
        for name, lowest in (
            ("batch_size", 1),
            ("world_size", 1),
            ("lanes", 1),
            ("seed", 0),
            ("epoch", 0),
            ("shuffle", 0),
        ):
            check_integer(name, getattr(self, name), lowest)

    @property
    def global_batch(self) -> int:
        """Samples of all ranks at one step."""
        return self.batch_size * self.world_size


def check_integer(name: str, value: object, lowest: int) -> None:
    """Raise PlanError if an argument is no integer from a number on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise PlanError(f"`{name}` must be an integer >= {lowest}; got {value!r}")


def check_place(rank: int | None, world_size: int | None) -> None:
    """Raise PlanError if a rank is none of the world: it would take another one's share; None of both is to be detected."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"`rank` and `world_size` go together; got {rank!r} and {world_size!r}")
    if rank is not None and world_size is not None:
        check_integer("world_size", world_size, 1)
        check_integer("rank", rank, 0)
        if rank >= world_size:
            raise PlanError(f"`rank` must be in [0, {world_size}); got {rank}")


def batch_size_then(planned_for: int, *, batch_size: int, world_size: int) -> int:
    """Return the samples per rank of so many ranks that share the global batch of now.

    Raises:
        PlanError: If they cannot.
    """
    global_batch = batch_size * world_size
    if global_batch % planned_for:
        raise PlanError(
            f"a resumed run must have the same global batch; it had {planned_for} ranks, which do not share the "
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


def digest_of(supplies: Sequence[Supply], shape: Shape, detail: str) -> str:
    """Return a name of all that a plan depends on, apart from the epoch: equal on all ranks, or they will not agree."""
    numbers = (shape.batch_size, shape.world_size, shape.lanes, shape.seed, shape.shuffle)
    detail += repr(shape.walk) if shape.walk != Walk() else ""
    mix = hashlib.blake2b(repr((PLAN_VERSION, *numbers, detail)).encode(), digest_size=16)
    for supply in supplies:
        mix.update(repr((supply.name, supply.largest, supply.rounding)).encode())
        for column in (supply.shard_ids, supply.num_rows, supply.sums):
            mix.update(column.astype("<u8").tobytes())
    return mix.hexdigest()
