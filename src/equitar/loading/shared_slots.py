"""How does a batch lie in a buffer? Its bytes, arrays and tensors one after another; the rest of it as it is.

`pack` writes what is large into a buffer and returns what is left: a small structure that says where each piece lies.
`unpack` puts the batch together again, as copies or as views of the buffer.

How do batches come from a worker? Through slots of shared memory that are used again and again.

A fresh piece of shared memory for each batch costs more than the pipe it saves: its pages must be made and thrown away. A slot's
pages are made once. Each worker has a few slots; it writes a batch into a free one and sends only which one, and where each
piece lies. The main process copies the batch out and marks the slot as free. A batch that finds no free slot, or does not
fit, takes the pipe: nobody ever waits for a slot.

The memory has no name (`memfd_create`), so nothing is left behind whatever process is killed. Where a system has none, all
batches take the pipe.

What does the memory of a batch cost? More than reading it, where it goes back to the system in between.

glibc gives the end of its heap back when more than a bound is free there, and the system clears every page again for the next batch:
64 samples of 1 MB then take more than twice the time. The bound is not fixed. As `mallopt(3)` says under ``M_MMAP_THRESHOLD``, once a
block that had a mapping of its own is freed, twice its size may be kept. Programs come to that by themselves, with the first large
array they let go of; workers that only ever read samples do not.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
import torch

from equitar.arrays import Int64

_TAUGHT_BYTES = 31 << 20  # bytes; glibc learns from blocks of up to 32 MB


def keep_freed_memory() -> None:
    """Let the allocator keep up to 62 MB that are freed, for the next batch; without glibc, nothing changes."""
    np.empty(
        _TAUGHT_BYTES, np.uint8
    )  # freed at once, and never written to: a `bytes` would be cleared where it is not the first


_ALIGNED = 64  # bytes: arrays and tensors begin where vector instructions like it
_WORTH_IT = 64  # bytes: below that a piece is quicker in the pipe

_PLAIN = frozenset((bytes, str, int, float, bool, type(None)))  # what lists hold that need no look at each element


class Full(Exception):  # noqa: N818  (an answer, not an error: the batch takes the pipe)
    """A batch does not fit into the buffer."""


class _Bytes(NamedTuple):
    start: int
    length: int


class _ListOfBytes(NamedTuple):
    start: int
    lengths: Int64


class _Array(NamedTuple):
    start: int
    dtype: str
    shape: tuple[int, ...]


class _Tensor(NamedTuple):
    start: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Space:
    """A buffer that is filled from its start."""

    def __init__(self, buffer: memoryview) -> None:
        """Begin at the start of a buffer."""
        self._buffer, self._end = buffer, 0

    def take(self, length: int) -> tuple[int, memoryview]:
        """Return room for so many bytes, and where it begins."""
        start = -(-self._end // _ALIGNED) * _ALIGNED
        if start + length > len(self._buffer):
            raise Full
        self._end = start + length
        return start, self._buffer[start : self._end]


def pack(value: Any, space: Space) -> Any:  # noqa: PLR0911  (one for each kind)
    """Write what is large in a value into a space, and return the rest.

    Raises:
        Full: If it does not fit.
    """
    kind = type(value)
    if kind is list and (kinds := set(map(type, value))) <= _PLAIN:  # most fields: looked at as a whole
        return _packed_bytes(value, space) if kinds == {bytes} else value
    if kind is bytes and len(value) >= _WORTH_IT:
        start, room = space.take(len(value))
        room[:] = value
        return _Bytes(start, len(value))
    if kind is np.ndarray and value.nbytes and not value.dtype.hasobject and np.dtype(value.dtype.str) == value.dtype:
        start, room = space.take(value.nbytes)
        np.frombuffer(room, value.dtype).reshape(value.shape)[...] = value
        return _Array(start, value.dtype.str, value.shape)
    if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        return _packed_tensor(value, space)
    if kind is dict:
        return {name: pack(one, space) for name, one in value.items()}
    if kind in (list, tuple):
        return kind(pack(one, space) for one in value)
    return value


def _packed_bytes(values: list[bytes], space: Space) -> Any:
    lengths = np.array([len(one) for one in values], np.int64)
    total = int(lengths.sum())
    if total < _WORTH_IT * len(values):
        return values
    start, room = space.take(total)
    at = 0
    for one, length in zip(values, lengths.tolist(), strict=True):
        room[at : at + length] = one
        at += length
    return _ListOfBytes(start, lengths)


def _packed_tensor(value: torch.Tensor, space: Space) -> Any:
    if not value.numel() or value.is_quantized:
        return value
    raw = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    start, room = space.take(raw.numel())
    torch.frombuffer(room, dtype=torch.uint8).copy_(raw)
    return _Tensor(start, raw.numel(), value.dtype, tuple(value.shape))


def unpack(packed: Any, buffer: memoryview, *, views: bool, pinned: bool = False) -> Any:  # noqa: PLR0911  (one for each kind)
    """Return the value that was packed, as copies, or as views of the buffer; tensors as copies in pinned memory if asked for.

    >>> buffer = memoryview(bytearray(4096))
    >>> unpack(pack({"x": np.arange(3), "y": [b"a" * 99]}, Space(buffer)), buffer, views=False)
    {'x': array([0, 1, 2]), 'y': [b'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa']}
    """
    kind = type(packed)
    if kind is _ListOfBytes:
        ends = np.cumsum(packed.lengths) + packed.start
        pieces = [
            buffer[end - length : end] for end, length in zip(ends.tolist(), packed.lengths.tolist(), strict=True)
        ]
        return pieces if views else [bytes(piece) for piece in pieces]
    if kind is _Bytes:
        piece = buffer[packed.start : packed.start + packed.length]
        return piece if views else bytes(piece)
    if kind is _Array:
        dtype = np.dtype(packed.dtype)
        length = int(np.prod(packed.shape, dtype=np.int64)) * dtype.itemsize
        array = np.frombuffer(buffer[packed.start : packed.start + length], dtype).reshape(packed.shape)
        return array if views else array.copy()
    if kind is _Tensor:
        raw = torch.frombuffer(buffer[packed.start : packed.start + packed.length], dtype=torch.uint8)
        tensor = raw.view(packed.dtype).reshape(packed.shape)
        if pinned:
            return tensor.pin_memory()  # copies
        return tensor if views else tensor.clone()
    if kind is dict:
        return {name: unpack(one, buffer, views=views, pinned=pinned) for name, one in packed.items()}
    if kind in (list, tuple) and not set(map(type, packed)) <= _PLAIN:
        return kind(unpack(one, buffer, views=views, pinned=pinned) for one in packed)
    return packed


SLOT_BYTES = 1 << 28  # of address space: only pages that were written to take memory
_PAGE = mmap.ALLOCATIONGRANULARITY


class Packed(NamedTuple):
    """A batch in a slot."""

    slot: int
    rest: Any


class SharedBuffers:
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
