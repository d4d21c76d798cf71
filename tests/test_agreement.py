"""Agreement of ranks: what is wrong with a table of records, on meshes of drawn shapes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from equitar.agreement import Meeting, RankRecord, different


class Mesh(NamedTuple):
    """So many data-parallel ranks, each of so many processes that work on the same samples."""

    data: int
    model: int

    def records(self) -> list[RankRecord]:
        return [RankRecord(number, number // self.model, self.data, "plan") for number in range(self.data * self.model)]

    def meeting(self) -> Meeting:
        return Meeting(processes=range(self.data * self.model), members=(), world_size=self.data)


meshes = st.builds(Mesh, st.integers(1, 6), st.integers(1, 4))


def is_refused(meeting: Meeting, records: Sequence[RankRecord]) -> bool:
    return different(records) is not None or meeting.problem(records) is not None


@given(meshes, st.randoms(use_true_random=False))
def test_peers_of_a_mesh_agree_in_whatever_order_they_come(mesh: Mesh, random: Random) -> None:
    records = mesh.records()
    random.shuffle(records)
    assert not is_refused(mesh.meeting(), records)
    assert mesh.meeting().awaited(records) == mesh.meeting().absent(records) == []


@given(meshes.filter(lambda mesh: mesh.data * mesh.model > 1), st.data())
def test_one_process_with_another_plan_world_or_rank_is_refused(mesh: Mesh, data: st.DataObject) -> None:
    records = mesh.records()
    number = data.draw(st.integers(0, len(records) - 1))
    record = records[number]
    changes = [record._replace(digest="another"), record._replace(world_size=mesh.data + 1)]
    if mesh.data > 1:
        changes.append(record._replace(rank=(record.rank + data.draw(st.integers(1, mesh.data - 1))) % mesh.data))
    records[number] = data.draw(st.sampled_from(changes))
    assert is_refused(mesh.meeting(), records)


@given(meshes.filter(lambda mesh: mesh.data > 1), st.integers(2, 3))
def test_ranks_counted_within_each_node_are_refused(mesh: Mesh, num_nodes: int) -> None:
    records = [
        RankRecord(number, number % mesh.data, num_nodes * mesh.data, "plan") for number in range(num_nodes * mesh.data)
    ]
    meeting = Meeting(processes=range(len(records)), members=(), world_size=num_nodes * mesh.data)
    problem = meeting.problem(records)
    assert problem is not None
    assert f"none is rank {mesh.data}" in problem
    assert "rank 0 is taken by the global ranks 0," in problem
    assert meeting.awaited(records) == list(range(mesh.data, num_nodes * mesh.data))


@given(meshes, st.data())
def test_one_process_for_each_rank_is_enough_where_no_members_are_known(mesh: Mesh, data: st.DataObject) -> None:
    records = mesh.records()[:: mesh.model]  # the others get their batches from these
    assert mesh.meeting().awaited(records) == []
    gone = data.draw(st.integers(0, mesh.data - 1))
    del records[gone]
    assert mesh.meeting().awaited(records) == [gone]


def test_members_are_awaited_by_name() -> None:
    meeting = Meeting(processes=range(4), members=(0, 2), world_size=2)
    records = [RankRecord(0, 0, 2, "plan"), RankRecord(3, 1, 2, "plan")]
    assert (meeting.awaited(records), meeting.absent(records)) == ([2], [1, 2])


def test_a_difference_is_told_of_the_lowest_ranks() -> None:
    records = [RankRecord(2, 2, 3, "other"), RankRecord(1, 1, 3, "plan"), RankRecord(0, 0, 3, "plan")]
    assert different(records) == (records[2], records[0])


def test_ranks_that_more_processes_take_than_others_are_refused() -> None:
    records = [RankRecord(number, int(number > 0), 2, "plan") for number in range(3)]
    problem = Meeting(processes=range(3), members=(), world_size=2).problem(records)
    assert problem == (
        "each rank must be taken by equally many processes; rank 1 is taken by the global ranks 1, 2, and rank 0 by the "
        "global ranks 0"
    )
