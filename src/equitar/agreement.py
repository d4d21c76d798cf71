"""Agreement of ranks: before a first batch, all processes that share data compare what they are about to give.

Each process leaves a record in the store of the default process group and reads those of the others, so that no collective of
the user is touched and a process that does not come is named after a while, rather than waited for until a group times out.
What must hold of the records is decided by pure functions over a table of them.

    who must come            all of the world, where ranks were detected; the members of the mesh or group; with `rank` and
                             `world_size` given, one process for each rank. The others of the world have some seconds.
    what must hold           all have the same plan, place and world size; every rank is taken; where all have come, each by
                             equally many processes: those are tensor, pipeline or context parallel peers

Keys in the store, of the n-th comparison among some processes: ``equitar/<processes>/<n>/count``, the number of records;
``.../<i>``, the i-th of them; ``.../of/<process>``, in words, what a process compares.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from equitar.errors import PlanError
from equitar.ranks import RankChoice, detect_workers, process_groups, rank_patience

logger = logging.getLogger("equitar")
_LISTED = 8
_GRACE = 5.0  # seconds that processes have which need not come
_SILENCE = 20.0  # seconds after which waiting is logged
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.25  # seconds between looks into the store
_turns = Counter[str]()  # comparisons of this process, by the processes they were among: the others count alike


class RankRecord(NamedTuple):
    """What one process is about to give."""

    process: int  # global rank
    rank: int
    world_size: int
    digest: str  # of all that must be equal, in short


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Who is to compare, and what follows from the records that are there."""

    processes: Sequence[int]  # all that may come
    members: Sequence[int]  # those that must; none: one for each rank
    world_size: int

    def awaited(self, records: Sequence[RankRecord]) -> list[int]:
        """Return what still must come: global ranks of members, otherwise data-parallel ranks."""
        if self.members:
            return sorted(set(self.members) - {record.process for record in records})
        return sorted(set(range(self.world_size)) - {record.rank for record in records})

    def absent(self, records: Sequence[RankRecord]) -> list[int]:
        """Return the processes that have not come yet."""
        return sorted(set(self.processes) - {record.process for record in records})

    def problem(self, records: Sequence[RankRecord]) -> str | None:
        """Return what is wrong with the ranks of records once all have come, or None."""
        holders: dict[int, list[int]] = {rank: [] for rank in range(self.world_size)}
        for record in records:
            holders[record.rank].append(record.process)
        untaken = [rank for rank, processes in holders.items() if not processes]
        counts = [len(processes) for processes in holders.values()]
        if not untaken and min(counts) == max(counts):
            return None
        most = max(holders, key=lambda rank: len(holders[rank]))
        shared = f"; rank {most} is taken by the global ranks {_listed(sorted(holders[most]))}"
        if untaken:
            return (
                f"each rank in [0, {self.world_size}) must be taken by a process, but of {len(records)} processes none has rank "
                f"{_listed(untaken)}, whose samples would never be seen{shared if counts[most] > 1 else ''}"
            )
        least = min(holders, key=lambda rank: len(holders[rank]))
        return (
            f"each rank must be taken by equally many processes{shared}, and rank {least} by the global ranks "
            f"{_listed(sorted(holders[least]))}"
        )


def different(records: Sequence[RankRecord]) -> tuple[RankRecord, RankRecord] | None:
    """Return the two records of the lowest processes that are to give something else, or None."""
    ordered = sorted(records)
    return next(
        (
            (ordered[0], record)
            for record in ordered
            if (record.world_size, record.digest) != (ordered[0].world_size, ordered[0].digest)
        ),
        None,
    )


def compare_over_ranks(choice: RankChoice, facts: Mapping[str, object], *, what: str, fix: str) -> None:
    """Raise PlanError unless all processes that share the data compare the same facts, where there is a process group.

    Args:
        choice: Which rank this process is.
        facts: What must be equal, by name, in words.
        what: What the facts are those of.
        fix: What to do where they differ.
    """
    distributed, patience = process_groups(), rank_patience()
    rank, world_size = choice.resolve()
    is_alone = world_size == 1 and choice.origin in ("given", "detected")
    if distributed is None or not patience or is_alone or detect_workers()[1]:
        return
    store = _store(distributed)
    if store is None:
        return
    world = range(distributed.get_world_size())
    meeting = Meeting(
        processes=choice.peers or world,
        members=choice.members or (world if choice.origin == "detected" else ()),
        world_size=world_size,
    )
    name = blake2b(repr(sorted(meeting.processes)).encode(), digest_size=6).hexdigest()
    _turns[name] += 1
    table = _Table(store, f"equitar/{name}/{_turns[name]}")
    texts = {key: str(value) for key, value in facts.items()}
    digest = blake2b(json.dumps([what, texts]).encode(), digest_size=8).hexdigest()
    table.add(RankRecord(distributed.get_rank(), rank, world_size, digest), {"world_size": str(world_size), **texts})
    _wait(table, meeting, patience, what, fix)


def _wait(table: _Table, meeting: Meeting, patience: float, what: str, fix: str) -> None:
    """Read records until nobody is awaited any more, and check them."""
    began, pause, has_logged = time.monotonic(), _FIRST_PAUSE, False
    satisfied: float | None = None
    while True:
        records = table.read()
        pair = different(records)
        if pair is not None:
            raise PlanError(f"all ranks must have the same {what}; {_difference(table, *pair)}: {fix}")
        absent = meeting.absent(records)
        if not absent:
            break
        now = time.monotonic()
        awaited = meeting.awaited(records)
        satisfied = None if awaited else now if satisfied is None else satisfied
        if satisfied is not None and now - satisfied > _GRACE:
            logger.info("global ranks %s load no data, or not yet", _listed(absent))
            return
        if awaited and now - began > patience:
            raise PlanError(_nobody_came(meeting, awaited, absent, patience))
        if awaited and now - began > _SILENCE and not has_logged:
            has_logged = True
            logger.warning("still waiting for the global ranks %s to begin the same %s", _listed(absent), what)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    problem = meeting.problem(records)
    if problem is not None:
        raise PlanError(
            f"{problem}; `rank` counts over all nodes (RANK, not LOCAL_RANK): leave `rank` and `world_size` out, or pass `mesh=`"
        )


def _nobody_came(meeting: Meeting, awaited: Sequence[int], absent: Sequence[int], patience: float) -> str:
    who = "global rank" if meeting.members else "a process for rank"
    return (
        f"{who} {_listed(awaited)} did not come to the first batch within {patience:g} s; absent of the process group: "
        f"{_listed(absent)}. All ranks that share the data must begin together; for a loader on one rank only, pass "
        "`rank=0, world_size=1`; for ranks that start late, set EQUITAR_RANKS_TIMEOUT to more seconds"
    )


def _difference(table: _Table, first: RankRecord, other: RankRecord) -> str:
    before, after = table.facts(first.process), table.facts(other.process)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]

    def words(facts: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {facts.get(name, 'not there')}" for name in names)

    return f"rank {other.process} has another than rank {first.process}: {words(after)} and {words(before)}"


class _Table:
    """The records of one comparison, in a store."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._records: list[RankRecord] = []

    def add(self, record: RankRecord, facts: Mapping[str, str]) -> None:
        """Leave the record of this process."""
        self._store.set(f"{self._prefix}/of/{record.process}", json.dumps(facts))
        number = self._store.add(f"{self._prefix}/count", 1)
        self._store.set(f"{self._prefix}/{number}", json.dumps(record))

    def read(self) -> Sequence[RankRecord]:
        """Return all records that are there; only new ones are fetched."""
        first, last = len(self._records) + 1, self._store.add(f"{self._prefix}/count", 0)
        if first <= last:
            texts = self._store.multi_get([f"{self._prefix}/{number}" for number in range(first, last + 1)])
            self._records += [RankRecord(*json.loads(text)) for text in texts]
        return self._records

    def facts(self, process: int) -> dict[str, str]:
        """Return what a process compares, in words."""
        facts: dict[str, str] = json.loads(self._store.get(f"{self._prefix}/of/{process}"))
        return facts


def _store(distributed: Any) -> Any:
    """Return the store of the default process group, or None where it has none."""
    if distributed.get_backend() in ("mpi", "fake"):
        logger.warning(
            "ranks cannot be compared, as process groups of backend %s have no store", distributed.get_backend()
        )
        return None
    return distributed.distributed_c10d._get_default_store()  # noqa: SLF001  (torch has no other way to it)


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _LISTED:,} more" * (len(numbers) > _LISTED)
    return ", ".join(map(str, numbers[:_LISTED])) + more
