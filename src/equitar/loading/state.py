"""Where does a run stand? A few hundred bytes: epoch, step, and what the plan was made of.

A plan is a function of its arguments, so this is all that resuming needs: no buffer, no generator, no list of what was seen. What
the plan was made of is kept in words, one entry for each argument and source, so that a state that does not fit is refused
with the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, TypedDict

from equitar.errors import PlanError
from equitar.loading.position import Position
from equitar.loading.request import Request
from equitar.planning.passes import PassPosition, PassStart
from equitar.planning.plan import Plan
from equitar.planning.supply import Supply

STATE_VERSION = 1


class State(TypedDict):
    """Where a run stands.

    Attributes:
        version: Version of this format.
        epoch: The epoch.
        step: The step that comes next.
        lanes: Lanes the epoch was planned with.
        world_size: Ranks the epoch was planned with.
        global_batch: Samples of all ranks at a step.
        made_of: Arguments and sources of the plan.
        summaries: Digest of the summary of each source that has one.
        walk: How the epochs go along the passes: the epoch at whose start places hold, and these places.
        places: Where each source stands in its passes at the step that comes next.
    """

    version: int
    epoch: int
    step: int
    lanes: int
    world_size: int
    global_batch: int
    made_of: dict[str, str]
    summaries: dict[str, str]
    walk: tuple[int, list[tuple[str, int, int, int]]]
    places: list[tuple[str, int, int, int]]


def state_of(order: Request, plan: Plan, position: Position) -> State:
    """Return the state of a run at a position of its plan."""
    repeat = order.repeat
    made_of = {
        "seed": str(order.seed),
        "shuffle": str(order.shuffle),
        "recipe": repr(order.recipe),
        "repeat": getattr(repeat, "__qualname__", repr(repeat)),
        **{f"source {supply.name!r}": _shards_of(supply) for supply in order.prepared().supplies},
    }
    return State(
        version=STATE_VERSION,
        epoch=position.epoch,
        step=position.step,
        lanes=plan.spec.lanes,
        world_size=plan.spec.world_size,
        global_batch=plan.global_batch,
        made_of=made_of,
        summaries=order.prepared().catalog.file_digests,
        walk=(plan.spec.pass_start.epoch, _plain(plan.spec.pass_start.positions)),
        places=_plain(plan.pass_positions(min(position.step, plan.num_steps))),
    )


def position_in(state: State) -> Position:
    """Return the position that a state names.

    Raises:
        PlanError: If the state is of another version.
    """
    if state.get("version") != STATE_VERSION:
        raise PlanError(f"the state must be of version {STATE_VERSION}; got {state.get('version')!r}")
    return Position(state["epoch"], state["step"], state["lanes"], state["world_size"])


def walk_in(state: State) -> PassStart:
    """Return how the epochs of a state go along the passes."""
    epoch, places = state["walk"]
    return PassStart(epoch=epoch, positions=tuple(PassPosition(*place) for place in places))


def walk_on(state: State) -> tuple[PassStart, int]:
    """Return the walk of a run that goes on from a state with other sources or numbers, and its first epoch.

    Where the state lies within an epoch, the rest of that is left out.
    """
    epoch = state["epoch"] + (state["step"] > 0)
    return PassStart(epoch=epoch, positions=tuple(PassPosition(*place) for place in state["places"])), epoch


def differences(state: State, now: State) -> list[str]:
    """Return in words what a state was made of and now is not."""
    before: dict[str, Any] = {"global batch": str(state["global_batch"]), **state["made_of"]}
    after: dict[str, Any] = {"global batch": str(now["global_batch"]), **now["made_of"]}
    return [
        f"{name} was {before.get(name, 'not there')} and is {after.get(name, 'not there')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def check_state(state: State, now: State) -> None:
    """Raise PlanError, with the differences in words, if a state is of another plan than that of now."""
    found = differences(state, now)
    if found:
        raise PlanError(
            f"a run resumes within an epoch only with the plan it had, but {'; '.join(found)}; restore these, or give up the "
            "rest of the epoch (`restart=True`)"
        )


def _plain(places: Iterable[PassPosition]) -> list[tuple[str, int, int, int]]:
    return [(place.source, place.pass_number, place.taken, place.copies) for place in places]


def _shards_of(supply: Supply) -> str:
    """Return a short name of the shards of a source and of how often their samples come."""
    mix = hashlib.blake2b(repr((supply.largest, supply.rounding)).encode(), digest_size=6)
    for column in (supply.shard_ids, supply.num_rows, supply.sums):
        mix.update(column.astype("<u8").tobytes())
    return f"{len(supply.num_rows)} shards, {int(supply.num_rows.sum())} samples ({mix.hexdigest()})"
