"""The state of a run, a few hundred bytes: epoch, step, and what the plan depends on.

A plan is a function of its arguments, so resuming needs nothing more: no buffer, no generator, no list of samples seen. What the
plan depends on is stored in words, one entry for each argument and source, so that a state that does not fit is refused
with the difference.

All leaves of a state have fixed names, whatever the sources are, and are integers or one text: `torch.distributed.checkpoint` loads
leaf by leaf into the state of now, and would miss a source that was removed or one that was added.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypedDict

from equitar.errors import PlanError
from equitar.loading.request import Request
from equitar.planning.passes import PassPosition, PassStart
from equitar.planning.plan import Plan, skipped_by
from equitar.planning.supply import Supply
from equitar.progress import Position

STATE_VERSION = 2
PassRow: TypeAlias = tuple[str, int, int, int]  # a `PassPosition`


class State(TypedDict):
    """Where a run stands.

    Attributes:
        version: Version of this format.
        epoch: The epoch.
        step: The next step.
        lanes: Lanes the epoch was planned with.
        world_size: Ranks the epoch was planned with.
        global_batch: Samples of all ranks at a step.
        details: What the plan depends on, in JSON: `Details`.
    """

    version: int
    epoch: int
    step: int
    lanes: int
    world_size: int
    global_batch: int
    details: str


class Details(TypedDict):
    """What the plan of a run depends on."""

    made_of: dict[str, str]  # arguments and sources
    summaries: dict[str, str]  # digest of the summary of each source that has one
    pass_start: tuple[int, list[PassRow]]  # an epoch, and where each source stands in its passes at its start
    positions: list[PassRow]  # where each source stands in its passes if the run continues with another plan
    given_up: dict[str, int]  # copies of each source that it gives up then


def state_of(request: Request, plan: Plan, position: Position) -> State:
    """Return the state of a run at a position of its plan."""
    repeat, resolved = request.repeat, request.resolved
    made_of = {
        "seed": str(request.seed),
        "shuffle": str(request.shuffle),
        "recipe": repr(request.recipe),
        "repeat": getattr(repeat, "__qualname__", repr(repeat)),
        **{f"source {supply.name!r}": _shards_of(supply) for supply in resolved.supplies},
    }
    spec = plan.spec
    details = Details(
        made_of=made_of,
        summaries=dict(resolved.catalog.file_digests),
        pass_start=(spec.pass_start.epoch, _rows_of(spec.pass_start.positions)),
        positions=_rows_of(plan.pass_positions(min(position.step, plan.num_steps))),
        given_up=plan.given_up(min(position.step, plan.num_steps)),
    )
    return State(
        version=STATE_VERSION,
        epoch=position.epoch,
        step=position.step,
        lanes=spec.lanes,
        world_size=spec.world_size,
        global_batch=plan.global_batch,
        details=json.dumps(details, sort_keys=True),
    )


def _details_of(state: State) -> Details:
    details: Details = json.loads(state["details"])
    return details


def position_in(state: State) -> Position:
    """Return the position that a state names.

    Raises:
        PlanError: If the state has another version.
    """
    if state.get("version") != STATE_VERSION:
        raise PlanError(f"the state must have version {STATE_VERSION}; got {state.get('version')!r}")
    return Position(state["epoch"], state["step"], state["lanes"], state["world_size"])


def summaries_in(state: State) -> Mapping[str, str]:
    """Return the digests of summaries that a state names, by source."""
    return _details_of(state)["summaries"]


def pass_start_in(state: State) -> PassStart:
    """Return how the epochs of a state go along the passes."""
    epoch, places = _details_of(state)["pass_start"]
    return PassStart(epoch=epoch, positions=tuple(PassPosition(*place) for place in places))


def pass_start_after(state: State) -> tuple[PassStart, int]:
    """Return how a run continues from a state with other sources or arguments, and its first epoch.

    Within an epoch the ranks and lanes read side by side, so the rest of what they have begun is given up: see `given_up_by`.
    """
    epoch = state["epoch"] + (state["step"] > 0)
    return PassStart(
        epoch=epoch, positions=tuple(PassPosition(*place) for place in _details_of(state)["positions"])
    ), epoch


def given_up_by(state: State, plan: Plan) -> dict[str, int]:
    """Return how many copies of each source are given up if a run continues from a state with another plan."""
    result = Counter(_details_of(state)["given_up"])
    result.update(skipped_by(plan, pass_start_after(state)[0].positions))
    return {source: number for source, number in result.items() if number}


def differences(state: State, now: State) -> list[str]:
    """Return in words how a state differs from that of now, apart from position, ranks and workers."""
    before: dict[str, Any] = {"global batch": str(state["global_batch"]), **_details_of(state)["made_of"]}
    after: dict[str, Any] = {"global batch": str(now["global_batch"]), **_details_of(now)["made_of"]}
    return [
        f"{name} was {before.get(name, 'not there')} and is {after.get(name, 'not there')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def check_state(state: State, now: State) -> None:
    """Raise PlanError, with the differences in words, if a state belongs to another plan than that of now."""
    differing = differences(state, now)
    if differing:
        raise PlanError(
            f"a run resumes within an epoch only with the plan it had, but {'; '.join(differing)}; restore these, or give up "
            "the rest of the epoch (`restart=True`)"
        )


def _rows_of(places: Iterable[PassPosition]) -> list[PassRow]:
    return [(place.source, place.pass_number, place.taken, place.copies) for place in places]


def _shards_of(supply: Supply) -> str:
    """Return a short name of the shards of a source and of how often their samples are repeated."""
    mix = hashlib.blake2b(repr((supply.largest, supply.rounding)).encode(), digest_size=6)
    for column in (supply.shard_ids, supply.num_rows, supply.sums):
        mix.update(column.astype("<u8").tobytes())
    return f"{len(supply.num_rows)} shards, {int(supply.num_rows.sum())} samples ({mix.hexdigest()})"
