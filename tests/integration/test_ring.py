"""Do batches come through shared memory as they went in, and is nothing left behind?"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equitar
from equitar.packing import Full, Space, pack, unpack
from equitar.pipeline import Batches
from equitar.ring import SLOT_BYTES
from shards import write_source

VALUES: list[Any] = [
    b"x" * 1000,
    b"",
    [b"a" * 100, b"", b"c" * 3000],
    [b"1", b"2"],
    ["a", 1, None],
    np.arange(12, dtype=np.int16).reshape(3, 4),
    np.zeros((0, 5)),
    np.array(7.5),
    torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    torch.zeros(0, 2),
    {"x": (torch.ones(3), [np.ones(2), b"y" * 99]), "n": 3},
]


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tolist())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_comes_out_as_it_went_in(value: Any, views: bool) -> None:
    buffer = memoryview(bytearray(1 << 16))
    assert plain(unpack(pack(value, Space(buffer)), buffer, views=views)) == plain(value)


def test_a_copy_does_not_change_with_the_buffer() -> None:
    buffer = memoryview(bytearray(1 << 12))
    found = unpack(pack([np.ones(4), torch.ones(4), b"z" * 99], Space(buffer)), buffer, views=False)
    buffer[:] = bytes(len(buffer))
    assert plain(found) == plain([np.ones(4), torch.ones(4), b"z" * 99])


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(Full):
        pack([b"x" * 3000], Space(memoryview(bytearray(2000))))


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    source = write_source(tmp_path_factory.mktemp("ring"), "a", [40, 40])
    return equitar.debiased([source], batch_size=8, rank=0, world_size=1, lanes=2)


@pytest.mark.parametrize("slots", [0, 1, None])
@pytest.mark.parametrize("views", [False, True])
def test_batches_are_the_same_with_any_number_of_slots(batches: Batches, slots: int | None, views: bool) -> None:
    loader = equitar.Loader(batches, num_workers=2, slots=slots, views=views, persistent_workers=True)
    for epoch in range(2):
        loader.set_epoch(epoch)
        next(iter(loader))  # broken off: its slots must not be lost to the passes that follow
        loader.set_epoch(epoch)
        found = [plain(batch) for batch in loader]
        batches.set_epoch(epoch)
        assert found == [plain(batch) for batch in batches]


def large(samples: list[Any]) -> Any:
    return {"x": torch.ones(SLOT_BYTES // 4 + 1)} if "0001" in samples[0]["__key__"] else {"x": torch.ones(1)}


def test_a_batch_that_does_not_fit_takes_the_pipe_and_is_counted(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [4])
    stream = equitar.debiased([source], batch_size=1, shuffle=0, collate=large, rank=0, world_size=1)
    loader = equitar.Loader(stream, num_workers=1)
    assert sorted(len(batch["x"]) for batch in loader) == [1, 1, 1, SLOT_BYTES // 4 + 1]
    assert loader.report()["piped"] == 1


SCRIPT = """
import sys, equitar
if __name__ == "__main__":
    source = equitar.Source("a", sys.argv[1])
    loader = equitar.Loader(equitar.debiased([source], batch_size=8, rank=0, world_size=1), num_workers=2)
    for batch in loader:
        print("came", flush=True)
        sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory is looked for in /dev/shm")
def test_nothing_is_left_in_shared_memory_when_the_main_process_is_killed(tmp_path: Path) -> None:
    write_source(tmp_path, "a", [40])
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, str(script), str(tmp_path / "a" / "*.tar")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "came\n"
        run.send_signal(signal.SIGKILL)
    assert {one.name for one in Path("/dev/shm").iterdir()} <= {one.name for one in before}
