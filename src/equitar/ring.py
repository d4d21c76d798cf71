"""How do batches come from a worker? Through slots of shared memory that are used again and again.

A fresh piece of shared memory for each batch costs more than the pipe it saves: its pages must be made and thrown away. A slot's
pages are made once. Each worker has a few slots; it writes a batch into a free one and sends only which one, and where each
piece lies. The main process copies the batch out and marks the slot as free. A batch that finds no free slot, or does not
fit, takes the pipe: nobody ever waits for a slot.

The memory has no name (`memfd_create`), so nothing is left behind whatever process is killed. Where a system has none, all
batches take the pipe.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any, NamedTuple

from equitar.heap import keep_freed_memory
from equitar.packing import Full, Space, pack, unpack

SLOT_BYTES = 1 << 28  # of address space: only pages that were written to take memory
_PAGE = mmap.ALLOCATIONGRANULARITY


class Packed(NamedTuple):
    """A batch in a slot."""

    slot: int
    rest: Any


class Ring:
    """Slots of shared memory between the workers of a loader and its main process.

    Attributes:
        is_there: Whether the system has such memory.
    """

    def __init__(self, num_workers: int, slots_per_worker: int) -> None:
        """Make the slots; their memory is taken as it is written to."""
        keep_freed_memory()  # for what is copied out of them
        self._slots_per_worker = slots_per_worker
        self._num_slots = num_workers * slots_per_worker
        self.is_there = hasattr(os, "memfd_create")
        self._file = -1
        self._map: mmap.mmap | None = None
        if self.is_there:
            self._file = os.memfd_create("equitar")
            os.ftruncate(self._file, _PAGE + self._num_slots * SLOT_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        file = reduction.DupFd(self._file) if self.is_there else -1  # travels when a process is spawned
        return {**self.__dict__, "_map": None, "_file": file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_there:
            self._file = state["_file"].detach()

    def __del__(self) -> None:
        if self._file >= 0:  # the map, and views of it, live on without the file
            os.close(self._file)

    def _memory(self) -> memoryview:
        if self._map is None:
            self._map = mmap.mmap(self._file, _PAGE + self._num_slots * SLOT_BYTES)
        return memoryview(self._map)

    def _slot(self, slot: int) -> memoryview:
        start = _PAGE + slot * SLOT_BYTES
        return self._memory()[start : start + SLOT_BYTES]

    def sent(self, worker: int, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield what a worker sends: each batch in a slot if one is free.

        The worker frees its slots when it begins: what lay in them was sent to an iterator that is no more.
        """
        taken = self._memory()
        own = range(worker * self._slots_per_worker, (worker + 1) * self._slots_per_worker)
        for slot in own:
            taken[slot] = 0
        for record, batch in batches:
            free = next((slot for slot in own if not taken[slot]), None)
            if free is None:
                yield record, batch
                continue
            try:
                packed = Packed(free, pack(batch, Space(self._slot(free))))
            except Full:
                yield record, batch
                continue
            taken[free] = 1
            yield record, packed

    def received(self, packed: Packed, *, views: bool, pinned: bool) -> Any:
        """Return a batch from its slot, which is free again unless views of it are handed out."""
        batch = unpack(packed.rest, self._slot(packed.slot), views=views, pinned=pinned)
        if not views:
            self.free(packed.slot)
        return batch

    def free(self, slot: int) -> None:
        """Let a slot be written to again."""
        self._memory()[slot] = 0
