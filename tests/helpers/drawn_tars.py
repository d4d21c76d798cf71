"""Drawn tars: ordinary ones, and nearly ordinary ones."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers import odd_tars
from helpers.odd_tars import BLOCK, END, GNU, USTAR, base256, folder, member, pax

KEYS = st.sampled_from(["a", "b", "c", "./a", "d/a", "v1.0/a", "__a", "__a__", "x.y", "é", "c\nd", "", "d/", "z" * 90])
FIELDS = st.sampled_from([["jpg", "cls"], ["jpg"], ["JPG", "seg.png", "txt"], ["cls", "CLS"], ["0.5", "txt"], ["__key__"], [""]])  # fmt: skip
TIMES = st.sampled_from(["1700000000.5", "1700000000.25", "1.5"])
STRANGERS = st.sampled_from([
    b"", b"", b"", folder("d/"), folder("d.x/"), member("LICENSE", b"text"), member("d/._a.jpg", b"x"),
    member("link.jpg", b"", kind=b"1", link=b"a.jpg"), member("n.jpg", b"1", magic=GNU, prefix=b"14751572634\0"),
    member("n.jpg", b"1", prefix=b"p"), member("n.jpg", b"1", kind=b"\0"), member("n.jpg", b"1", kind=b"7"),
    member("n.jpg", b"1", size_field=b"          1 "), member("n.jpg", b"1", size_field=b"000000000001"),
    member("n.jpg", b"1", size_field=b"0_000000001\0"), member("n.jpg", b"", size_field=b"-0000000001\0"),
    member("n.jpg", b"1", size_field=base256(1, 12)), member("dir.jpg/", b""), member(b"n\0m.jpg", b"1"),
    pax({"path": "new.jpg"}), pax({"size": "1"}), pax({"mtime": "1"}), pax({"comment": "c" * 300}),
    pax({"comment": "c"}, kind=b"g"), bytes(BLOCK), END, odd_tars.gnu_long_name("n" * 120 + ".jpg"),
    member("whole.tar", member("in.jpg", b"1") + END),
])  # fmt: skip


@st.composite
def nearly_ordinary(draw: st.DrawFn) -> bytes:
    """A tar of alike samples, and mostly something in it that is out of the ordinary."""
    fields, has_times, magic = draw(FIELDS), draw(st.booleans()), draw(st.sampled_from([USTAR, GNU]))
    parts: list[bytes] = []
    for key in draw(st.lists(KEYS, max_size=5, unique=draw(st.booleans()))):
        for field in fields if draw(st.integers(0, 9)) else draw(FIELDS):
            parts.append(draw(STRANGERS) if draw(st.integers(0, 9)) == 0 else b"")
            parts.append(pax({"mtime": draw(TIMES)}) if has_times else b"")
            parts.append(member(f"{key}.{field}", draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 40])), magic=magic))  # fmt: skip
    whole = bytearray(b"".join(parts) + draw(st.sampled_from([END, END, END, b"", bytes(BLOCK), END + b"junk"])))
    if whole and draw(st.integers(0, 3)) == 0:
        for position in draw(st.lists(st.integers(0, len(whole) - 1), max_size=2)):
            whole[position] ^= draw(st.integers(1, 255))
    if draw(st.integers(0, 5)) == 0:
        del whole[draw(st.integers(0, len(whole))) :]
    return bytes(whole)
