"""Ranks: as each launcher, mesh or group says, and an error where they contradict themselves."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from equitar.ranks import Topology, consumer, detect_ranks, detect_workers

KNOWN: dict[str, tuple[dict[str, str], tuple[int, int]]] = {
    "a single process": ({}, (0, 1)),
    "torchrun": ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8)),
    "torchrun, one process": ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, (0, 1)),
    "torchrun below a SLURM step": (
        {"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        (3, 8),
    ),
    "a SLURM step": ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NTASKS": "9"}, (5, 6)),
    "a SLURM allocation without a step": ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (0, 1)),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
    "Lightning, one node": ({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, (1, 2)),
    "Lightning, without NODE_RANK": ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
    "Lightning, second node": ({"LOCAL_RANK": "1", "NODE_RANK": "1", "NUM_NODES": "2", "WORLD_SIZE": "8"}, (5, 8)),
    "WORLD_SIZE of one": ({"WORLD_SIZE": "1"}, (0, 1)),
    "RANK zero alone": ({"RANK": "0"}, (0, 1)),
}

WRONG: dict[str, tuple[dict[str, str], str]] = {
    "rank too large": (
        {"RANK": "8", "WORLD_SIZE": "8"},
        r"RANK must be in \[0, WORLD_SIZE\); got RANK=8, WORLD_SIZE=8",
    ),
    "negative rank": ({"RANK": "-1", "WORLD_SIZE": "8"}, r"RANK must be in \[0, WORLD_SIZE\); got RANK=-1"),
    "no world": ({"RANK": "0", "WORLD_SIZE": "0"}, "got RANK=0, WORLD_SIZE=0"),
    "rank without world": ({"RANK": "2"}, "RANK=2 needs a WORLD_SIZE; set both or neither"),
    "world without rank": ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 needs a RANK; set both or neither"),
    "rank is no number": ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be an integer; got 'one'"),
    "world is no number": ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be an integer; got ''"),
    "step too small": (
        {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "2"},
        "got SLURM_PROCID=2, SLURM_STEP_NUM_TASKS=2",
    ),
    "second node of unknown many": (
        {"LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "8"},
        "NODE_RANK=1 without RANK needs NUM_NODES",
    ),
    "local rank too large": ({"LOCAL_RANK": "2", "WORLD_SIZE": "2"}, "LOCAL_RANK must fit WORLD_SIZE; got NODE_RANK=0"),
}


@pytest.mark.parametrize("case", KNOWN)
def test_rank_and_world_size_are_those_of_the_launcher(case: str) -> None:
    environment, expected = KNOWN[case]
    assert detect_ranks(environment) == expected


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_itself_is_an_error_with_names_and_values(case: str) -> None:
    environment, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        detect_ranks(environment)


def test_the_environment_of_this_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert detect_ranks() == (1, 2)


def test_what_was_detected_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="equitar"):
        detect_ranks({"RANK": "1", "WORLD_SIZE": "2"})
    assert caplog.messages == ["rank 1 of 2 (torchrun)"]


def test_the_main_process_has_no_worker() -> None:
    assert detect_workers() == (0, 0)


def test_a_consumer_is_its_rank_and_worker() -> None:
    assert consumer(1, 2) == Topology(rank=1, world_size=2, worker=0, num_workers=0)


def test_detecting_loads_no_torch() -> None:
    code = "import sys; from equitar.ranks import *; detect_ranks(); detect_workers(); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
