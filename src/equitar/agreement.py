"""Agreement of ranks: before a first batch, all processes that share data compare what they are about to give.

Each process leaves a record in the store of the default process group and reads those of the others, so that no collective of
the user is touched and a process that does not come is named after a while, rather than waited for until a group times out.
What must hold of the records is decided by pure functions over a table of them.

    who must come            all of the world, where ranks were detected; the members of the mesh or group; with `rank` and
                             `world_size` given, one process for each rank. The others, of the mesh's root or the world, have
                             some seconds; with a group there are no others, as only some processes may load data.
    what must hold           all have the same plan, place and world size; every rank is taken; where all have come, each by
                             equally many processes: those are tensor, pipeline or context parallel peers. Groups are
                             compared with each other as they come.

Keys in the store, of the n-th comparison among some processes: ``equitar/<processes>/<n>/count``, the number of records;
``.../<i>``, the i-th of them; ``.../of/<process>``, in words, what a process compares; ``.../closed``, who was there when nobody
waited any longer: a process that comes later with something else belongs to the next comparison. Of a group,
``equitar/peers/.../<rank>``, what a first process of this rank compares.
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
from equitar.ranks import PATIENCE_VARIABLE, RankChoice, detect_workers, process_groups, rank_patience

logger = logging.getLogger("equitar")
_LISTED = 8
_SHOWN = 12  # characters of a value
_GRACE = 3.0  # seconds that processes have which need not come
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
                f"each rank in [0, {self.world_size}) must be taken by a process, but of {len(records)} processes none is rank "
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
        processes=choice.peers or (choice.members if choice.origin == "group" else world),
        members=choice.members or (world if choice.origin == "detected" else ()),
        world_size=world_size,
    )
    name = blake2b(repr(sorted(meeting.processes)).encode(), digest_size=6).hexdigest()
    texts = {key: str(value) for key, value in facts.items()}
    digest = blake2b(json.dumps([what, texts]).encode(), digest_size=8).hexdigest()
    record = RankRecord(distributed.get_rank(), rank, world_size, digest)
    is_over = False
    while not is_over:
        _turns[name] += 1
        table = _Table(store, f"equitar/{name}/{_turns[name]}", record, texts)
        is_over = _compare(table, meeting, patience, what, fix)
    if choice.origin == "group":
        _compare_with_peers(store, f"{what} {texts.get('sources')} {_turns[name]}", record, what, fix)


def _compare(table: _Table, meeting: Meeting, patience: float, what: str, fix: str) -> bool:
    """Read records until nobody is awaited any more, and check them; return whether this process was one of those compared."""
    began, pause, has_logged = time.monotonic(), _FIRST_PAUSE, False
    satisfied: float | None = None
    while True:
        records, closed = table.read(), table.closed()
        if closed is not None and table.own.process not in closed:
            return table.own.digest in {record.digest for record in records if record.process in closed}
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
            table.close()
            return True
        if awaited and now - began > patience:
            table.close()
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
    return True


def _compare_with_peers(store: Any, subject: str, record: RankRecord, what: str, fix: str) -> None:
    """Raise PlanError if a process of another group has the same rank of as many, but something else to give."""
    key = f"equitar/peers/{blake2b(subject.encode(), digest_size=6).hexdigest()}/{record.world_size}/{record.rank}"
    peer = RankRecord(*json.loads(store.compare_set(key, "", json.dumps(record))))
    if peer.digest != record.digest:
        raise PlanError(
            f"all peers of a data-parallel rank must have the same {what}; the global ranks {peer.process} and {record.process} both "
            f"are rank {record.rank} of {record.world_size} of a group, and differ: {fix}; where they train separate models, pass "
            "`mesh=`, a DeviceMesh for each"
        )


def _nobody_came(meeting: Meeting, awaited: Sequence[int], absent: Sequence[int], patience: float) -> str:
    who = "global ranks" if meeting.members else f"processes for rank {_listed(awaited)}, of the global ranks"
    return (
        f"all ranks that share the data must begin together, but {who} {_listed(awaited if meeting.members else absent)} did not "
        f"come to the first batch within {patience:g} s; for a loader on one rank only, pass `rank=0, world_size=1`; for ranks "
        f"that start late, set {PATIENCE_VARIABLE} to more seconds"
    )


def _difference(table: _Table, first: RankRecord, other: RankRecord) -> str:
    before, after = table.facts(first.process), table.facts(other.process)
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]

    def words(facts: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {facts.get(name, 'not there')[:_SHOWN]}" for name in names)

    return f"global rank {other.process} has {words(after)} where global rank {first.process} has {words(before)}"


class _Table:
    """The records of one comparison, in a store."""

    def __init__(self, store: Any, prefix: str, own: RankRecord, facts: Mapping[str, str]) -> None:
        """Leave the record of this process."""
        self._store, self._prefix, self.own = store, prefix, own
        self._records: list[RankRecord] = []
        store.set(f"{prefix}/of/{own.process}", json.dumps({"world_size": str(own.world_size), **facts}))
        number = store.add(f"{prefix}/count", 1)
        store.set(f"{prefix}/{number}", json.dumps(own))

    def read(self) -> Sequence[RankRecord]:
        """Return all records that are there; only new ones are fetched."""
        first, last = len(self._records) + 1, self._store.add(f"{self._prefix}/count", 0)
        if first <= last:
            texts = self._store.multi_get([f"{self._prefix}/{number}" for number in range(first, last + 1)])
            self._records += [RankRecord(*json.loads(text)) for text in texts]
        return self._records

    def close(self) -> None:
        """Wait no longer: those that are there were compared."""
        processes = json.dumps([record.process for record in self._records])
        self._store.compare_set(f"{self._prefix}/closed", "", processes)

    def closed(self) -> list[int] | None:
        """Return the processes that were there when nobody waited any longer, or None."""
        key = f"{self._prefix}/closed"
        processes: list[int] | None = json.loads(self._store.get(key)) if self._store.check([key]) else None
        return processes

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
