"""Do batches come through shared memory as they went in, and is nothing left behind?"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds

import equitar
from equitar.loading.batches import Batches
from equitar.loading.shared_slots import SLOT_BYTES, Full, SharedBuffers, Space, pack, unpack
from helpers.shards import indexed, write_source

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
    torch.tensor([1 + 2j, 3 - 4j]).conj(),
    torch.tensor([1 + 2j, 3 - 4j]).conj().imag,  # a view that is negated when it is read
    np.zeros(3, "V0"),
    np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
    {"x": (torch.ones(3), [np.ones(2), b"y" * 99]), "n": 3},
]


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tolist())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_comes_out_as_it_went_in(value: Any, views: bool) -> None:
    buffer = memoryview(bytearray(1 << 16))
    assert plain(unpack(pack(value, Space(buffer)), buffer, views=views)) == plain(value)


def test_a_copy_does_not_change_with_the_buffer() -> None:
    buffer = memoryview(bytearray(1 << 12))
    unpacked = unpack(pack([np.ones(4), torch.ones(4), b"z" * 99], Space(buffer)), buffer, views=False)
    buffer[:] = bytes(len(buffer))
    assert plain(unpacked) == plain([np.ones(4), torch.ones(4), b"z" * 99])


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(Full):
        pack([b"x" * 3000], Space(memoryview(bytearray(2000))))


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    source = write_source(tmp_path_factory.mktemp("ring"), "a", [40, 40])
    return equitar.debiased([source], batch_size=8, rank=0, world_size=1, plan_workers=2)


@pytest.mark.parametrize("slots", [0, 1, None])
@pytest.mark.parametrize("views", [False, True])
def test_batches_are_the_same_with_any_number_of_slots(batches: Batches, slots: int | None, views: bool) -> None:
    loader = equitar.Loader(batches, num_workers=2, slots=slots, views=views, persistent_workers=True)
    for epoch in range(2):
        loader.set_epoch(epoch)
        next(iter(loader))  # broken off: its slots must not be lost to the passes that follow
        loader.set_epoch(epoch)
        received = [plain(batch) for batch in loader]
        batches.set_epoch(epoch)
        assert received == [plain(batch) for batch in batches]


def write_large(folder: Path, number: int) -> equitar.Source:
    """Write samples whose bytes go into slots: small ones would go through the pipe with their keys."""
    path = folder / "large.tar"
    with wds.TarWriter(str(path), mtime=0) as writer:
        for row in range(number):
            writer.write({"__key__": f"{row:03}", "bin": f"{row:03}".encode() * 500})
    return indexed(equitar.Source("large", str(path)), labels=None)


def test_iterators_of_one_loader_do_not_write_into_each_others_slots(tmp_path: Path) -> None:
    batches = equitar.debiased([write_large(tmp_path, 200)], batch_size=8, rank=0, world_size=1, plan_workers=2)
    loader = equitar.Loader(batches, num_workers=2)
    expected = [plain(batch) for batch in batches]
    first = iter(loader)
    received = [plain(next(first))]
    assert [plain(batch) for batch in loader] == expected  # goes through all slots while the first one's are in use
    assert received + [plain(batch) for batch in first] == expected


def test_views_last_until_the_next_batch_but_one_is_asked_for(tmp_path: Path) -> None:
    batches = equitar.debiased([write_large(tmp_path, 100)], batch_size=4, rank=0, world_size=1)
    expected = [plain(batch) for batch in batches]
    loader = equitar.Loader(batches, num_workers=1, views=True)
    passing, received = iter(loader), []
    before = next(passing)
    for batch in passing:
        time.sleep(0.02)  # for the worker to write what it may
        received.append(plain(before))
        before = batch
    assert [*received, plain(before)] == expected
    assert loader.counters()["piped"] == 0


def large(samples: list[Any]) -> Any:
    return {"x": torch.ones(SLOT_BYTES // 4 + 1)} if "0001" in samples[0]["__key__"] else {"x": torch.ones(1)}


def test_a_batch_above_256_mb_does_not_take_the_pipe(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [4])
    stream = equitar.debiased([source], batch_size=1, shuffle=0, collate_fn=large, rank=0, world_size=1)
    loader = equitar.Loader(stream, num_workers=1)
    assert sorted(len(batch["x"]) for batch in loader) == [1, 1, 1, SLOT_BYTES // 4 + 1]
    assert loader.counters()["piped"] == 0


@pytest.mark.parametrize("views", [False, True])
def test_slots_grow_for_batches_of_any_size(views: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equitar.loading.shared_slots.SLOT_BYTES", 1 << 12)
    batches = equitar.debiased([write_large(tmp_path, 40)], batch_size=4, plan_workers=2, rank=0, world_size=1)
    loader = equitar.Loader(batches, num_workers=2, views=views)
    for _ in range(2):
        assert [plain(batch) for batch in loader] == [plain(batch) for batch in batches]
        batches.set_epoch(loader.epoch)
    assert loader.counters()["piped"] == 0


def test_a_slot_that_cannot_be_mapped_names_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = SharedBuffers(1, 1)

    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    sent = buffers.sent(0, iter([(None, {"x": torch.ones(1)})]))
    buffers.free(0)  # maps the flags
    monkeypatch.setattr("mmap.mmap", refused)
    with pytest.raises(MemoryError, match=r"a slot of 268\.4 MB, which cannot be mapped .* set `slots=0`"):
        next(sent)


class Slow:
    """A stage that says which process it is in, and then takes its time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        for sample in samples:
            (self.folder / str(os.getpid())).touch()
            time.sleep(0.05)
            yield sample


def shared_files() -> int:
    """Count the pieces of our shared memory that this process has open or mapped."""
    gc.collect()  # loaders of other tests that are only garbage would count before and not after
    files = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("memfd:equitar" in line for line in [*files, *Path("/proc/self/maps").read_text().splitlines()])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="shared memory is looked for in /proc")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_killed_worker_is_an_error_and_leaves_nothing(tmp_path: Path, method: str) -> None:
    source = write_source(tmp_path / "shards", "a", [40])
    pids = tmp_path / "pids"
    pids.mkdir()
    before = shared_files()
    stages = [Slow(pids)]
    batches = equitar.debiased([source], batch_size=4, stages=stages, rank=0, world_size=1)
    loader = equitar.Loader(batches, num_workers=2, multiprocessing_context=method)
    passing = iter(loader)
    first = plain(next(passing))
    os.kill(int(next(pids.iterdir()).name), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"worker.*(killed|exited)"):
        list(passing)
    del passing
    assert plain(next(iter(loader))) == first  # the next pass has workers and slots of its own
    del loader
    assert shared_files() == before


def test_tensors_are_pinned_on_their_way_out_of_a_slot(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no device here, so what it would do is noted, and done as a copy."""
    pinned: list[tuple[int, ...]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tuple(tensor.shape))
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    stacked = batches.map(as_tensors)
    loader = equitar.Loader(stacked, num_workers=2)
    loader._is_pinning = True
    received = [plain(batch) for batch in loader]
    batches.set_epoch(0)
    stacked.set_epoch(0)
    assert received == [plain(batch) for batch in stacked]
    assert pinned == [(8, 3)] * len(received)


def as_tensors(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.arange(24.0).reshape(8, 3) + batch["__step__"], "key": batch["__key__"]}


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
    before = in_shared_memory()
    command = [sys.executable, str(script), str(tmp_path / "a" / "*.tar")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "came\n"
        run.send_signal(signal.SIGKILL)
    assert in_shared_memory() <= before


def in_shared_memory() -> set[str]:
    """Return the names in shared memory, without the semaphores of joblib, which another test may be using."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.loky-")}
