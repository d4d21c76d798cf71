"""Tar headers: name, size and kind of a member from 512 bytes, and the records of extended headers.

The formats are v7, ustar with its prefix, GNU (base-256 numbers) and PAX. Nothing here knows the position of a header, so errors
only state the broken rule; `equitar.tar.walk` adds the shard and the byte.

Two differences from Python's tarfile (3.11), and so from webdataset:

    a GNU long name and a PAX path for one member    PAX is used here, in either order; tarfile uses the first of the two
    bytes in the prefix area of a header that is     ignored here, as GNU has times there and v7 nothing; tarfile puts them
    not ustar (GNU without a long name, v7)          and a slash before the name, whatever they are
"""

from __future__ import annotations

from zlib import adler32

HEADER_BYTES = 512
ZEROS = bytes(HEADER_BYTES)
REGULAR = frozenset({b"0", b"\0", b"7"})  # 7, contiguous, is an ordinary file on today's systems
HARD_LINK = b"1"
WITHOUT_DATA = frozenset(
    {b"1", b"2", b"3", b"4", b"5", b"6"}
)  # links, devices, folders: their size does not count data
PAX = b"x"
PAX_GLOBAL = b"g"
LONG_NAME = b"L"
LONG_LINK = b"K"
EXTENDED = frozenset({PAX, b"X", PAX_GLOBAL, LONG_NAME, LONG_LINK})  # X is the x of Solaris before POSIX
MAX_SILENT = 16  # different PAX headers that hold only a time; they differ by the number of digits
MAX_EXTENDED = 1 << 24  # bytes; PAX records and long names are far shorter, so a larger one is damage
_ADLER_BASE = 65521
_SPACES = 8 * 0x20  # the checksum field counts as spaces in its own sum


class HeaderError(ValueError):
    """512 bytes are not a tar header, or contradict themselves."""


def parse_header(block: bytes) -> tuple[bytes, int, bytes]:
    """Return name, size and kind of a member from its header; the checksum is verified.

    Args:
        block: Exactly 512 bytes.

    Raises:
        HeaderError: If the block is short, its checksum is wrong, or a number cannot be read.
    """
    if len(block) != HEADER_BYTES:
        raise HeaderError(f"only {len(block)} of the {HEADER_BYTES} bytes of a header are left, {_shown(block)!r}")
    declared = size = 0
    try:  # numbers as nearly all writers write them
        declared = int(block[148:154], 8)
        size = int(block[124:135], 8)
        is_unusual = block[135] > 0x20  # a number that fills its field
    except ValueError:
        is_unusual = True
    if is_unusual:
        declared = _number(block[148:156], "checksum", block)
        size = _number(block[124:136], "size", block)
    # The low half of Adler-32 is 1 + the sum of the bytes, modulo 65521: the checksum at a tenth of the price of `sum`.
    if adler32(block[156:], adler32(block[:148])) & 0xFFFF != (declared - _SPACES + 1) % _ADLER_BASE:
        _check_sum(block, _number(block[148:156], "checksum", block))
    end = block.find(b"\0", 0, 100)
    name = block[: end if end >= 0 else 100]
    kind = block[156:157]
    if block[345] and block[257:263] == b"ustar\0":  # GNU has times where POSIX has the prefix
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    if kind != b"0":
        if kind == b"S":
            raise HeaderError(f"member {name!r} is a sparse file, whose data in the tar are not its contents")
        if kind == b"\0" and name.endswith(b"/"):
            kind = b"5"  # v7 has no kind for folders
    if size < 0:
        raise HeaderError(f"the header {_shown(block)!r} has the negative size {size}")
    return name, size, kind


def link_target(block: bytes) -> bytes:
    """Return the name in a header that a link points to."""
    return block[157:257].partition(b"\0")[0]


def _shown(block: bytes) -> bytes:
    """The beginning of a bad block, which shows for example an error page of a server."""
    return block[:40].rstrip(b"\0")


def _check_sum(block: bytes, declared: int) -> None:
    """Verify the checksum byte by byte; old writers summed signed bytes."""
    rest = block[:148] + block[156:]
    unsigned = sum(rest) + _SPACES
    if declared not in (unsigned, unsigned - 256 * sum(byte > 127 for byte in rest)):
        raise HeaderError(
            f"the header {_shown(block)!r} has checksum {declared:o} but its bytes give {unsigned:o} (octal)"
        )


def _number(field: bytes, what: str, block: bytes) -> int:
    """Read a number in octal, or in base-256, which GNU uses for large ones."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        raise HeaderError(f"{_shown(block)!r} is not a header, as its {what} is {field!r}") from None


def pax_records(body: bytes) -> dict[bytes, bytes]:
    r"""Return the records in the body of a PAX header.

    Raises:
        HeaderError: If a length does not fit its record.

    >>> pax_records(b"14 path=a.jpg\n")
    {b'path': b'a.jpg'}
    """
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(body) and body[start]:  # some writers pad with zeros
        digits = body[start : start + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        keyword, equals, value = body[start + len(digits) + 1 : start + length].partition(b"=")
        if start + length > len(body) or not equals or not value.endswith(b"\n"):
            raise HeaderError(f"the PAX records hold {body[start : start + 40]!r}")
        records[keyword] = value[:-1]
        start += length
    return records


def affects_data(body: bytes) -> bool:
    """Whether the records of a PAX header may concern name or data; most only hold times and owners."""
    return b"path=" in body or b"size=" in body or b"GNU.sparse" in body


class PaxState:
    """Records of extended headers that apply to the members after them."""

    def __init__(self) -> None:
        self.pending = False  # whether any record applies to the next member
        self.unused = False  # whether an extended header still lacks its member
        self._kinds: set[bytes] = set()  # of extended headers that lack their member
        self._next: dict[bytes, bytes] = {}
        self._lasting: dict[bytes, bytes] = {}

    def add(self, kind: bytes, body: bytes, *, after_time: bool) -> None:
        """Add the body of an extended header; one that only holds a time may come just before it."""
        if after_time:
            self._kinds.add(PAX)
        if kind in self._kinds:
            raise HeaderError(
                "two extended headers of one kind follow each other, so the member of the first is missing"
            )
        if kind != PAX_GLOBAL:
            self._kinds.add(kind)
        self.unused = bool(self._kinds)
        if kind in (LONG_NAME, LONG_LINK):
            self._next.setdefault(b"path" if kind == LONG_NAME else b"linkpath", body.partition(b"\0")[0])
        else:
            (self._lasting if kind == PAX_GLOBAL else self._next).update(pax_records(body))
        self.pending = self.unused or bool(self._lasting)

    def applied(self, name: bytes, size: int) -> tuple[bytes, int, bytes]:
        """Return name, size and, if given, link target of the next member, and drop the records for it alone."""
        records = self._lasting | self._next
        self._next = {}
        self._kinds.clear()
        self.unused, self.pending = False, bool(self._lasting)
        if any(keyword.startswith(b"GNU.sparse") for keyword in records):
            raise HeaderError(f"member {name!r} is a sparse file, whose data in the tar are not its contents")
        text = records.get(b"size", b"%d" % size)
        if not text.isdigit():
            raise HeaderError(f"the PAX size of {name!r} is {text!r}")
        name = records[b"path"].rstrip(b"/") if b"path" in records else name
        return name, int(text), records.get(b"linkpath", b"")
