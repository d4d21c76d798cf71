"""How does a batch lie in a buffer? Its bytes, arrays and tensors one after another; the rest of it as it is.

`pack` writes what is large into a buffer and returns what is left: a small structure that says where each piece lies.
`unpack` puts the batch together again, as copies or as views of the buffer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from equitar.mix64 import Int64

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
