"""The file format below sidecars and summaries: integer arrays in an ``.npz``, written and read with checks.

It is an ordinary ``.npz`` of one-dimensional integer arrays: `numpy.load` opens it, and so does any zip tool. It is written in
a fixed order with a fixed time, so that equal arrays give equal bytes. It is not read by `numpy.load`, for two reasons: a
thousand small files are read five times as fast here, and whatever is wrong with the bytes ends in a `ContainerError`, before
memory is reserved for what they claim.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from equitar.arrays import Int64
from equitar.presence import Presence

Integers: TypeAlias = NDArray[np.integer[Any]]
Arrays: TypeAlias = dict[str, Integers]
_LOCAL = struct.Struct("<26xHH")  # lengths of name and extra of the header before the bytes of an array
_ENTRY = struct.Struct("<4s4x2H4x3L3H8xL")  # signature, flags, method, CRC, packed and plain size, 3 lengths, offset
_END = struct.Struct(
    "<4s6xH2LH"
)  # signature, number of entries, size and offset of the directory, length of the comment
_NEW_LOCAL, _NEW_ENTRY, _NEW_END = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s4x2H2LH")
_LEVEL = 2  # twice as fast as the usual 6, and 6 % larger
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][iu][1248])', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n",
    re.DOTALL,
)
_MAX_RATIO = 256  # what we write is packed to a third or a tenth; a file that claims more is damaged or hostile
_FREE = 1 << 20


class ContainerError(ValueError):
    """Bytes are not a container of arrays, or are damaged."""


def pack(arrays: Mapping[str, Integers]) -> bytes:
    """Return the bytes of a file of one-dimensional integer arrays, in their order.

    >>> unpack(pack({"sizes": np.array([3, 500])}))["sizes"]
    array([  3, 500], dtype=uint16)
    """
    parts: list[bytes] = []
    entries: list[bytes] = []
    offset = 0
    for array_name, array in arrays.items():
        plain, name = _npy(smallest(array)), f"{array_name}.npy".encode("ascii")
        packer = zlib.compressobj(_LEVEL, wbits=-15)
        packed = packer.compress(plain) + packer.flush()
        # Their time is that of the zip epoch: equal arrays, equal bytes.
        known = (20, 0, zipfile.ZIP_DEFLATED, 0, 0x21, zlib.crc32(plain), len(packed), len(plain), len(name), 0)
        entries += [_NEW_ENTRY.pack(b"PK\1\2", 3 << 8 | 20, *known, 0, 0, 0, 0o644 << 16, offset), name]
        parts += [_NEW_LOCAL.pack(b"PK\3\4", *known), name, packed]
        offset += _NEW_LOCAL.size + len(name) + len(packed)
    directory = b"".join(entries)
    return b"".join([*parts, directory, _NEW_END.pack(b"PK\5\6", *[len(arrays)] * 2, len(directory), offset, 0)])


def _npy(array: Integers) -> bytes:
    """Return the bytes of a ``.npy`` file, format 1.0."""
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': ({len(array)},), }}".encode("ascii")
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + array.tobytes()


def smallest(array: Integers) -> Integers:
    """Return the same numbers in the smallest little-endian dtype that holds them: unsigned if none is negative."""
    low, high = (int(array.min()), int(array.max())) if len(array) else (0, 0)
    kinds = "u1 <u2 <u4 <u8" if low >= 0 else "i1 <i2 <i4 <i8"
    fitting = (np.dtype(kind) for kind in kinds.split())
    return array.astype(next(kind for kind in fitting if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max))


def unpack(raw: bytes) -> Arrays:
    """Return the arrays of a file written by `pack` (or by `numpy.savez`, if they are such arrays), by name.

    Raises:
        ContainerError: If the bytes are anything else.
    """
    if len(raw) < _END.size or raw[:2] != b"PK":
        raise ContainerError(f"its {len(raw)} bytes begin with {raw[:8]!r}, so it is not an .npz file")
    signature, num_entries, directory_size, offset, comment = _END.unpack(raw[-_END.size :])
    if signature != b"PK\5\6" or comment or offset + directory_size + _END.size != len(raw):
        raise ContainerError("the directory at its end is missing or damaged: the file was truncated or changed")
    arrays = {}
    room = _FREE + _MAX_RATIO * len(raw)
    try:
        for _ in range(num_entries):
            signature, flags, method, crc, packed_size, size, *lengths, start = _ENTRY.unpack_from(raw, offset)
            offset += 46
            name = raw[offset : offset + lengths[0]].decode()
            offset += sum(lengths)
            room -= size
            if signature != b"PK\1\2" or flags & 1 or room < 0:
                raise ContainerError(f"its entry {name!r} has a damaged header")
            arrays[name.removesuffix(".npy")] = _array(
                name, _inflated(name, raw, start, packed_size, size, method), crc
            )
    except (struct.error, UnicodeDecodeError) as error:
        raise ContainerError(f"its directory is damaged ({error})") from error
    return arrays


def check_names(arrays: Arrays, always: Sequence[str], *optional: Sequence[str]) -> None:
    """Refuse a file that lacks an array or has an unknown one; an optional group must be complete or absent."""
    groups = [group for group in optional if not arrays.keys().isdisjoint(group)]
    if arrays.keys() != {*always, *(name for group in groups for name in group)}:
        wanted = "".join(f" (and {', '.join(group)}, all or none of them)" for group in optional)
        raise ContainerError(f"it holds {', '.join(arrays)} but must hold {', '.join(always)}{wanted}")


def _inflated(name: str, raw: bytes, start: int, packed_size: int, size: int, method: int) -> bytes:
    """Return the bytes of one entry."""
    begin = start + 30 + sum(_LOCAL.unpack_from(raw, start))
    packed = raw[begin : begin + packed_size]
    if method == zipfile.ZIP_STORED:
        return packed
    inflate = zlib.decompressobj(wbits=-15)
    try:
        plain = inflate.decompress(packed, size + 1)  # a byte more than expected shows that there is more
    except zlib.error as error:
        raise ContainerError(f"its entry {name!r} cannot be inflated ({error})") from error
    if method != zipfile.ZIP_DEFLATED or len(plain) != size or not inflate.eof:
        raise ContainerError(f"its entry {name!r} does not hold the {size} bytes that the directory claims")
    return plain


def _array(name: str, plain: bytes, crc: int) -> Integers:
    """Return the array of one entry."""
    if zlib.crc32(plain) != crc:
        raise ContainerError(f"its entry {name!r} has a wrong checksum")
    header = _NPY.match(plain)
    if header is None:
        raise ContainerError(f"its entry {name!r} is not a one-dimensional array of integers")
    kind = np.dtype(header[1].decode())
    if int(header[2]) * kind.itemsize != len(plain) - header.end():
        raise ContainerError(f"its entry {name!r} does not hold the {int(header[2])} numbers that it claims")
    return np.frombuffer(plain, kind, offset=header.end())


def pack_texts(texts: Sequence[str]) -> tuple[Integers, Integers]:
    """Return the bytes of all texts, one after another, and the length of each in bytes."""
    raw = [text.encode("utf-8", "surrogateescape") for text in texts]
    return np.frombuffer(b"".join(raw), np.uint8), np.fromiter(map(len, raw), np.int64, len(raw))


class Texts(Sequence[str]):
    """Texts stored one after another, decoded at the first iteration: most readers never get there."""

    __slots__ = ("_decoded", "_ends", "_raw")

    def __init__(self, raw: bytes, ends: Int64) -> None:
        """Keep the bytes of all texts, and the end of each, preceded by a zero, (texts + 1,)."""
        self._raw, self._ends = raw, ends
        self._decoded: list[str] | None = None

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self)[index]
        row = range(len(self))[index]  # handles negative indices, and checks the bounds
        begin, end = self._ends[row : row + 2].tolist()
        return self._raw[begin:end].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        if self._decoded is None:
            self._decoded = self._decode()
        return iter(self._decoded)

    def _decode(self) -> list[str]:
        pairs = itertools.pairwise(self._ends.tolist())
        if self._raw.isascii():
            text = self._raw.decode("ascii")
            return [text[begin:end] for begin, end in pairs]
        return [self._raw[begin:end].decode("utf-8", "surrogateescape") for begin, end in pairs]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Texts | list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like a list


def unpack_texts(blob: Integers, lengths: Integers) -> Texts:
    """Return the texts that `pack_texts` was given.

    Raises:
        ContainerError: If the lengths do not add up to the bytes.

    >>> list(unpack_texts(np.frombuffer(b"abc", np.uint8), np.array([1, 0, 2], np.uint8)))
    ['a', '', 'bc']
    """
    raw, ends = blob.tobytes(), pointers(lengths)
    if blob.dtype != np.uint8 or ends[-1] != len(raw):
        raise ContainerError(f"its texts have {len(raw)} bytes, but their lengths add up to {ends[-1]}")
    return Texts(raw, ends)


def pack_json(content: Mapping[str, object]) -> Integers:
    """Return the bytes of a JSON object, in ASCII, its keys sorted."""
    return np.frombuffer(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii"), np.uint8)


def unpack_json(array: Integers, kind: Mapping[str, object], keys: Sequence[str]) -> dict[str, Any]:
    """Return a JSON object that has all of `keys`, and the format and version of `kind`."""
    try:
        content = json.loads(array.tobytes().decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"its `meta` is not JSON ({error})") from error
    actual = {key: content.get(key) for key in kind} if isinstance(content, dict) else content
    if not isinstance(content, dict) or actual != kind:
        raise ContainerError(f"its format is {actual!r} but must be {dict(kind)!r}")
    for key in keys:
        if key not in content:
            raise ContainerError(f"its `meta` has no {key!r}")
    return content


def distinct_texts(content: Any) -> tuple[str, ...]:
    """Return a JSON list of distinct texts."""
    if not isinstance(content, list) or not all(isinstance(text, str) for text in content):
        raise ContainerError(f"a list of texts is expected but there is {content!r:.60}")
    if len(set(content)) != len(content):
        raise ContainerError(f"a list of names has a duplicate: {content!r:.60}")
    return tuple(content)


def read_class_names(meta: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Return ids and names of classes, None if there are none."""
    ids, names = meta["class_ids"], meta["class_names"]
    if ids is None and names is None:
        return None
    known = distinct_texts(names)
    if not isinstance(ids, list) or not all(type(class_id) is int for class_id in ids) or len(set(ids)) != len(known):
        raise ContainerError(f"its {len(known)} class names have the ids {ids!r:.60}")
    return tuple(ids), known


def wide(array: Integers) -> Int64:
    """Return the numbers as int64; a number that does not fit means damage."""
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 1 << 63:
        raise ContainerError(f"the number {int(array.max())} needs more than 63 bits")
    return array.astype(np.int64)


def pointers(lengths: Integers) -> Int64:
    """Return row pointers from the length of each row."""
    if lengths.dtype.kind != "u" or (len(lengths) and int(lengths.max()) >= 1 << 40):
        raise ContainerError("the length of a row is negative or absurd")
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def read_presence(lengths: Integers, ids: Integers, counts: Integers) -> Presence:
    """Return the labels of rows, after a check that ids rise within each row."""
    presence = Presence(indptr=pointers(lengths), ids=wide(ids), counts=wide(counts))
    rises = np.diff(presence.ids) > 0
    starts = presence.indptr[(presence.indptr > 0) & (presence.indptr < len(ids))]
    rises[starts - 1] = True  # from one row to the next they may fall
    if not rises.all() or (presence.counts < 1).any():
        raise ContainerError("label ids must rise within a row, and counts be at least 1")
    return presence
