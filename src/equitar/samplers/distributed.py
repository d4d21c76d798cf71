"""A wrapper that shares any sampler out over ranks: one draw that all ranks see, of which each takes its share.

torch's own answer draws again on every rank (then shares overlap), or once for all epochs. Here the draw is a function of
(seed, epoch): the generators of the wrapped sampler, or the global ones where it uses those, are set from them for the draw and
restored after it. Rank r of R takes items r, r + R, r + 2R, ..., so the items of all ranks at a step are those that one process
would have taken next.

The ragged end, where the draw is not a multiple of R:

    draw 0 1 2 3 4 5 6, 3 ranks        rank 0      rank 1      rank 2
    "pad" (default)                    0 3 6       1 4 0       2 5 1      steps are equal, up to R - 1 items come twice
    "drop"                             0 3         1 4         2 5        steps are equal, up to R - 1 items are left out
    "keep"                             0 3 6       1 4         2 5        the draw exactly, steps differ by one
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np
import torch
from torch.utils.data import DistributedSampler, Sampler

from equitar.agreement import compare_over_ranks
from equitar.checks import check_integer
from equitar.errors import PlanError
from equitar.misuse import refuse_other_ranks, refuse_resampling, warn_of_replacement
from equitar.progress import Position, Progress
from equitar.ranks import RankChoice
from equitar.rng import Purpose, fold
from equitar.samplers.dataset_plan import BROKEN_OFF_FIX
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler

Ragged: TypeAlias = Literal["pad", "drop", "keep"]
Item = TypeVar("Item")
STATE_VERSION = 1


class DrawState(TypedDict):
    """Where a wrapped sampler stands.

    Attributes:
        version: Version of this format.
        epoch: The epoch.
        given: Items of the epoch's draw that all ranks together were given.
        seed: Seed of the draws.
        length: Items of a draw.
    """

    version: int
    epoch: int
    given: int
    seed: int
    length: int


class DistributedSamplerWrapper(Sampler[Item], Generic[Item]):
    """Gives each rank its share of what a sampler draws; the sampler may be weighted, of subsets, with replacement, of batches.

    A sampler that keeps a state of its own from one draw to the next must have a `set_epoch`, which is called before each draw.

    >>> wrapped = torch.utils.data.SubsetRandomSampler([3, 5, 8, 13])
    >>> shares = [list(DistributedSamplerWrapper(wrapped, rank=rank, world_size=2)) for rank in range(2)]
    >>> sorted(shares[0] + shares[1])
    [3, 5, 8, 13]
    """

    def __init__(
        self,
        sampler: Sampler[Item],
        *,
        seed: int = 0,
        ragged: Ragged = "pad",
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        group: Any = None,
    ) -> None:
        """Wrap a sampler; the rank is detected at the first use, unless it is given.

        Args:
            sampler: What is drawn from: anything that can be gone through and has a length.
            seed: Seed of the draws, >= 0, the same on all ranks.
            ragged: What to do with a draw that does not divide by the ranks; see the module.
            rank: This process among those that share the data; None detects it. All compare their draws once.
            world_size: Number of these processes.
            mesh: A `DeviceMesh` of data-parallel dimensions (``mesh["dp"]``) in place of `rank` and `world_size`.
            group: A `ProcessGroup` of the processes that share the data in place of these.

        Raises:
            TypeError: If the sampler has no length, or shares out its items already.
            PlanError: If other arguments do not fit.
        """
        if isinstance(
            sampler, DistributedSampler | RepeatFactorSampler | DebiasedBatchSampler | DistributedSamplerWrapper
        ):
            raise TypeError(
                f"`sampler` must give the same to all ranks; {type(sampler).__name__} gives each its share already"
            )
        if not isinstance(sampler, Sized):
            raise TypeError(
                f"`sampler` must have a length, so that all ranks end together; {type(sampler).__name__} has none"
            )
        if ragged not in ("pad", "drop", "keep"):
            raise PlanError(f"`ragged` must be 'pad', 'drop' or 'keep'; got {ragged!r}")
        self.sampler, self._seed, self._ragged = sampler, check_integer("seed", seed, 0), ragged
        self._ranks = RankChoice.of(rank, world_size, mesh, group)
        self._detected: tuple[int, int] | None = None
        self._is_compared = False
        self._progress = Progress(unit="item", fix=BROKEN_OFF_FIX)

    def _place(self) -> tuple[int, int]:
        if self._detected is None:
            self._detected = self._ranks.resolve()
        return self._detected

    def __len__(self) -> int:
        """Return the items that an epoch gives to this rank."""
        return self._share(len(self._sized()))

    def _sized(self) -> Sized:
        assert isinstance(self.sampler, Sized), "checked when it was wrapped"
        return self.sampler

    def _share(self, length: int) -> int:
        """Return how many of so many items this rank is given."""
        rank, world_size = self._place()
        each, more = divmod(length, world_size)
        return each + {"pad": more > 0, "drop": False, "keep": rank < more}[self._ragged]

    def __iter__(self) -> Iterator[Item]:
        """Return an iterator over this rank's share of the epoch's draw."""
        start, (rank, world_size) = self._progress.next, self._place()
        refuse_resampling(world_size)
        if self._ranks.origin == "detected":
            refuse_other_ranks(rank, world_size)
        draw = self._draw(start.epoch)
        if not self._is_compared:
            self._is_compared = True
            digest = blake2b(repr(draw).encode(), digest_size=16).hexdigest()
            if self._progress.is_new and draw:
                warn_of_replacement(self, type(self).__name__, f"{type(self.sampler).__name__} {self._seed} {digest}")
            facts = {"epoch": start.epoch, "given": start.step, "seed": self._seed, "draw": digest}
            fix = "wrap a sampler that draws from torch, numpy or random, and from the same data on every rank"
            compare_over_ranks(self._ranks, facts, what="draw", fix=fix)
        count = self._share(len(draw) - start.step)
        first = start.step + rank
        # Padded with the beginning of the draw, as often as needed: it may be shorter than the world.
        mine = (draw[position % len(draw)] for position in range(first, first + count * world_size, world_size))
        return self._progress.counted(mine, count, each=world_size)

    def _draw(self, epoch: int) -> list[Item]:
        """Return the draw of an epoch, the same on every rank."""
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        with _generators_at(self.sampler, fold(self._seed, Purpose.SAMPLER_DRAW, epoch)):
            draw = list(self.sampler)
        if len(draw) != len(self._sized()):
            raise PlanError(
                f"`sampler` must give as many items as its length says; {type(self.sampler).__name__} says "
                f"{len(self._sized())} and gave {len(draw)} in epoch {epoch}"
            )
        return draw

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iterator at the start of an epoch, >= 0."""
        self._progress.set_epoch(epoch)

    def state_dict(self, taken: int | None = None) -> DrawState:
        """Return where the latest pass stands, after `taken` items of it (default: all that were taken).

        Workers of a DataLoader take items ahead: a training loop counts its own.
        """
        position = self._progress.after(taken)
        return DrawState(
            version=STATE_VERSION,
            epoch=position.epoch,
            given=position.step,
            seed=self._seed,
            length=len(self._sized()),
        )

    def load_state_dict(self, state: DrawState) -> None:
        """Begin the next iterator where a state says, on any number of ranks.

        Raises:
            PlanError: If the state is of another version, seed or length.
        """
        now = (STATE_VERSION, self._seed, len(self._sized()))
        then = (state.get("version"), state["seed"], state["length"])
        if then != now:
            raise PlanError(f"the state must be of (version, seed, length) {now}; got {then}")
        self._progress.set_next(Position(state["epoch"], state["given"]))


@contextmanager
def _generators_at(sampler: object, key: int) -> Iterator[None]:
    """Set every generator that a sampler may draw from, and restore it afterwards."""
    generators = [torch.default_generator, *_generators_of(sampler)]
    before = [generator.get_state() for generator in generators]
    before_random, before_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (it is the users' that may be used)
    for number, generator in enumerate(generators):
        generator.manual_seed(fold(key, number) >> 1)  # torch takes 63 bits without a sign
    random.seed(fold(key, len(generators)))
    np.random.seed(fold(key, len(generators) + 1) & 0xFFFFFFFF)  # noqa: NPY002
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        random.setstate(before_random)
        np.random.set_state(before_numpy)  # noqa: NPY002


def _generators_of(sampler: object) -> list[torch.Generator]:
    """Return the generators of a sampler and of the samplers within it, as those of a `BatchSampler`."""
    generators: list[torch.Generator] = []
    samplers: list[object] = [sampler]
    for nested in samplers:
        values = vars(nested).values() if hasattr(nested, "__dict__") else ()
        generators += [
            value
            for value in values
            if isinstance(value, torch.Generator) and all(value is not it for it in generators)
        ]
        samplers += [
            value for value in values if isinstance(value, Sampler) and all(value is not it for it in samplers)
        ]
    return generators
