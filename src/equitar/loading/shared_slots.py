"""Slots of shared memory, reused for batch after batch, through which workers send batches to the main process.

A new piece of shared memory for each batch costs more than the pipe it saves: its pages must be allocated and freed. The pages
of a slot are allocated once. Each worker has a few slots; it writes a batch into a free one and sends only the number of the slot
and where each piece lies (`pack`). The main process puts the batch together again, as copies or views (`unpack`), and marks the
slot as free. A batch that finds no free slot takes torch's pipe: nobody ever waits for a slot. A slot grows to the largest batch
that it has held, and keeps that memory.

The memory has no name (`memfd_create`), so nothing is left behind if a process is killed. Where a system does not have it, all
batches take the pipe.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
import torch

from equitar.arrays import Int64
from equitar.text import size_in_words

_ALIGNED = 64  # bytes: suits vector instructions
_WORTH_IT = 64  # bytes: a smaller piece is faster in the pipe

_PLAIN = frozenset((bytes, str, int, float, bool, type(None)))  # lists of these need no look at each element
SLOT_BYTES = 1 << 28  # of address space, before a slot grows: only pages that were written to take memory
_LARGEST_SLOT = 1 << 38  # bytes between the beginnings of slots in the file, which is sparse
_PAGE = mmap.ALLOCATIONGRANULARITY
_TAUGHT_BYTES = 31 << 20  # glibc learns from blocks of up to 32 MB


def keep_freed_memory() -> None:
    """Let the allocator keep up to 62 MB that are freed, for the next batch; without glibc, nothing changes.

    glibc returns the end of its heap to the system when more than a threshold is free there, and the system clears every page again
    for the next batch: 64 samples of 1 MB then take more than twice the time. The threshold is dynamic: as `mallopt(3)` says under
    ``M_MMAP_THRESHOLD``, once a block with a mapping of its own is freed, twice its size may be kept. Programs reach that by
    themselves with the first large array they free; workers that only ever read samples do not.
    """
    np.empty(
        _TAUGHT_BYTES, np.uint8
    )  # freed at once, and never written to: a `bytes` would be cleared if it is not the first


class Full(Exception):  # noqa: N818  (a result, not an error)
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
        """Return room for a number of bytes, and where it begins."""
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
        return {name: pack(field, space) for name, field in value.items()}
    if kind in (list, tuple):
        return kind(pack(item, space) for item in value)
    return value


def _packed_bytes(values: list[bytes], space: Space) -> Any:
    lengths = np.array([len(value) for value in values], np.int64)
    total = int(lengths.sum())
    if total < _WORTH_IT * len(values):
        return values
    start, room = space.take(total)
    begin = 0
    for value, length in zip(values, lengths.tolist(), strict=True):
        room[begin : begin + length] = value
        begin += length
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
        return {name: unpack(field, buffer, views=views, pinned=pinned) for name, field in packed.items()}
    if kind in (list, tuple) and not set(map(type, packed)) <= _PLAIN:
        return kind(unpack(item, buffer, views=views, pinned=pinned) for item in packed)
    return packed


class Packed(NamedTuple):
    """A batch in a slot."""

    slot: int
    mapped: int  # bytes of the slot that the worker has mapped
    rest: Any


class SharedBuffers:
    """Slots of shared memory between the workers of a loader and its main process."""

    def __init__(self, num_workers: int, slots_per_worker: int) -> None:
        """Make the slots; memory is allocated as they are written to."""
        keep_freed_memory()  # for the copies of batches
        self._slots_per_worker = slots_per_worker
        self._is_supported = hasattr(os, "memfd_create")
        self._file = -1
        num_slots = num_workers * slots_per_worker
        self._header = -(-max(1, num_slots) // _PAGE) * _PAGE
        self._flags: mmap.mmap | None = None  # in the header: a byte for each slot: whether a batch is in it
        self._maps: dict[int, mmap.mmap] = {}
        if self._is_supported:
            self._file = os.memfd_create("equitar")
            os.ftruncate(self._file, self._header + num_slots * _LARGEST_SLOT)

    def __getstate__(self) -> dict[str, Any]:
        file = reduction.DupFd(self._file) if self._is_supported else -1  # is handed on when a process is spawned
        return {**self.__dict__, "_flags": None, "_maps": {}, "_file": file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._is_supported:
            self._file = state["_file"].detach()

    def __del__(self) -> None:
        if self._file >= 0:  # maps, and views of them, live on without the file
            os.close(self._file)

    def _taken(self) -> mmap.mmap:
        if self._flags is None:
            self._flags = mmap.mmap(self._file, self._header)
        return self._flags

    def _slot(self, slot: int, length: int) -> memoryview:
        """Return a slot of at least so many bytes.

        Raises:
            MemoryError: If there is no address space for it.
        """
        if slot not in self._maps or len(self._maps[slot]) < length:
            try:
                self._maps[slot] = mmap.mmap(self._file, length, offset=self._header + slot * _LARGEST_SLOT)
            except OSError as error:
                raise MemoryError(
                    f"a batch needs a slot of {size_in_words(length)}, which cannot be mapped ({error}); make batches smaller, "
                    "or set `slots=0` of equitar.Loader, which sends them through torch's pipe"
                ) from error
        return memoryview(self._maps[slot])

    def _packed(self, slot: int, batch: Any) -> Packed | None:
        """Write a batch into a slot, which grows until it fits; None if it is larger than any slot."""
        mapped = max(SLOT_BYTES, *map(len, self._maps.values()), 0)  # as large as another one had to be
        while mapped <= _LARGEST_SLOT:
            with suppress(Full):
                return Packed(slot, mapped, pack(batch, Space(self._slot(slot, mapped))))
            mapped *= 2
        return None

    def sent(self, worker: int, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield what a worker sends: each batch in a slot if one is free.

        The worker frees its slots when it begins: their batches were sent to an iterator that has ended.
        """
        taken = self._taken()
        own = range(worker * self._slots_per_worker, (worker + 1) * self._slots_per_worker)
        for slot in own:
            taken[slot] = 0
        for record, batch in batches:
            free = next((slot for slot in own if not taken[slot]), None)
            packed = None if free is None else self._packed(free, batch)
            if free is None or packed is None:
                yield record, batch
                continue
            taken[free] = 1
            yield record, packed

    def received(self, packed: Packed, *, views: bool, pinned: bool) -> Any:
        """Return a batch from its slot, which is free again unless the batch consists of views."""
        batch = unpack(packed.rest, self._slot(packed.slot, packed.mapped), views=views, pinned=pinned)
        if not views:
            self.free(packed.slot)
        return batch

    def free(self, slot: int) -> None:
        """Let a slot be written to again."""
        self._taken()[slot] = 0
