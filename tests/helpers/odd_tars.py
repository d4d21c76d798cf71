"""Tiny odd tar shards for testing tar-of-samples readers.

Standard library only. Every case is a function that returns ``{file name: bytes}``;
all outputs are reproducible byte for byte and the whole set is well under 1 MiB.

    python odd_tars.py OUTDIR              # write all cases, print one line per case
    python odd_tars.py OUTDIR gnu_* trunc* # write the cases matching the patterns

From a test::

    from odd_tars import CASES, build
    paths = build(tmp_path, "dup_member")          # {"dup_member.tar": Path(...)}
    CASES["dup_member"].right                      # proposed right answer, see below

``Case.right`` is the proposed answer of a strict reader, one of

* ``{key: {field: bytes}}``  these samples, in this order, and nothing else;
* ``"error: ..."``           the shard must be refused with an error naming the shard;
* ``"policy: ..."``          two answers are defensible; the text says which to offer.
"""

from __future__ import annotations

import fnmatch
import gzip
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

BLOCK = 512
USTAR = b"ustar\x0000"
GNU = b"ustar  \x00"
V7 = b"\x00" * 8
END = b"\x00" * (2 * BLOCK)

Build: TypeAlias = Callable[[], Any]
Right: TypeAlias = str | dict[str, dict[str, bytes]]


# ---------------------------------------------------------------- raw tar pieces


def octal(value: int, width: int) -> bytes:
    """Zero padded octal number that fills a field of ``width`` bytes, NUL ended."""
    return b"%0*o\x00" % (width - 1, value)


def base256(value: int, width: int) -> bytes:
    """GNU binary number: first byte 0x80, the rest big endian."""
    return b"\x80" + value.to_bytes(width - 1, "big")


def header(
    name: bytes,
    size: int = 0,
    kind: bytes = b"0",
    magic: bytes = USTAR,
    link: bytes = b"",
    prefix: bytes = b"",
    size_field: bytes | None = None,
    tail: bytes | None = None,
) -> bytes:
    """One 512 byte header block with a correct checksum."""
    if len(name) > 100 or len(link) > 100 or len(prefix) > 155:
        raise ValueError("too long for a plain header")
    owner = b"\x00" * 80 if magic == V7 else b"u".ljust(32, b"\x00") + b"g".ljust(32, b"\x00") + octal(0, 8) * 2
    rest = prefix.ljust(155, b"\x00") if tail is None else tail
    block = b"".join(
        [
            name.ljust(100, b"\x00"),
            octal(0o644, 8),
            octal(0, 8),
            octal(0, 8),
            size_field if size_field is not None else octal(size, 12),
            octal(0, 12),
            b" " * 8,
            kind,
            link.ljust(100, b"\x00"),
            magic,
            owner,
            rest,
        ]
    ).ljust(BLOCK, b"\x00")
    assert len(block) == BLOCK
    return block[:148] + b"%06o\x00 " % sum(block) + block[156:]


def padded(data: bytes) -> bytes:
    """Data rounded up to whole blocks."""
    return data + b"\x00" * (-len(data) % BLOCK)


def member(name: str | bytes, data: bytes = b"", **kw: Any) -> bytes:
    """Header plus data of one member."""
    raw = name if isinstance(name, bytes) else name.encode("utf-8")
    return header(raw, len(data), **kw) + padded(data)


def folder(name: str) -> bytes:
    return header(name.encode(), 0, kind=b"5")


def pax(records: dict[str, str], kind: bytes = b"x") -> bytes:
    """PAX extended header (kind ``x`` for the next member, ``g`` for all later ones)."""
    body = b""
    for key, value in records.items():
        text = b" " + key.encode() + b"=" + value.encode() + b"\n"
        length = len(text)
        while len(str(length)) + len(text) != length:
            length = len(str(length)) + len(text)
        body += str(length).encode() + text
    return header(b"PaxHeaders/x", len(body), kind=kind) + padded(body)


def gnu_long_name(name: str) -> bytes:
    """GNU ``L`` record that carries the name of the next member."""
    body = name.encode() + b"\x00"
    return header(b"././@LongLink", len(body), kind=b"L", magic=GNU) + padded(body)


def two_samples() -> bytes:
    """Two well formed samples without the end mark."""
    return member("a.jpg", b"img-a") + member("a.cls", b"0") + member("b.jpg", b"img-b") + member("b.cls", b"1")


A = {"jpg": b"img-a", "cls": b"0"}
B = {"jpg": b"img-b", "cls": b"1"}
TWO: Right = {"a": A, "b": B}


# ---------------------------------------------------------------- case registry


@dataclass(frozen=True)
class Case:
    name: str
    about: str
    right: Right
    make: Callable[[], dict[str, bytes]]


CASES: dict[str, Case] = {}


def case(about: str, right: Right, suffix: str = ".tar") -> Callable[[Build], Build]:
    """Register a builder that returns bytes (one file) or ``{file name: bytes}``."""

    def register(fn: Build) -> Build:
        name = fn.__name__

        def make() -> dict[str, bytes]:
            made = fn()
            return made if isinstance(made, dict) else {name + suffix: made}

        CASES[name] = Case(name, about, right, make)
        return fn

    return register


def build(outdir: str | Path, pattern: str = "*") -> dict[str, Path]:
    """Write the matching cases below ``outdir`` and return ``{file name: path}``."""
    out = Path(outdir)
    out.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for case in CASES.values():
        if fnmatch.fnmatch(case.name, pattern):
            for fname, data in case.make().items():
                paths[fname] = out / fname
                paths[fname].write_bytes(data)
    return paths


# ---------------------------------------------------------------- headers and formats

LONG = "class_with_a_long_name/" * 6 + "img_000001"


@case("reference: two ustar samples", TWO)
def plain() -> bytes:
    return two_samples() + END


@case("GNU 'L' long names (over 100 bytes)", {LONG: A})
def gnu_longname() -> bytes:
    out = b""
    for ext, data in A.items():
        name = f"{LONG}.{ext}"
        out += gnu_long_name(name) + member(name[:100], data, magic=GNU)
    return out + END


@case("PAX path records (over 100 bytes, not ASCII)", {LONG + "_é": A})
def pax_longname() -> bytes:
    out = b""
    for ext, data in A.items():
        out += pax({"path": f"{LONG}_é.{ext}"}) + member(f"short.{ext}", data)
    return out + END


@case("PAX header with only mtime before each member (what Python tarfile writes for float mtimes)", TWO)
def pax_mtime_each() -> bytes:
    out = b""
    for key, fields in (("a", A), ("b", B)):
        for ext, data in fields.items():
            out += pax({"mtime": "1700000000.5"}) + member(f"{key}.{ext}", data)
    return out + END


@case("global PAX header first (git archive)", TWO)
def pax_global() -> bytes:
    return pax({"comment": "0123456789abcdef"}, kind=b"g") + two_samples() + END


@case("PAX size record; the size field of the header is 0", TWO)
def pax_size() -> bytes:
    out = b""
    for key, fields in (("a", A), ("b", B)):
        for ext, data in fields.items():
            out += pax({"size": str(len(data))})
            out += header(f"{key}.{ext}".encode(), 0) + padded(data)
    return out + END


@case("ustar prefix field", {"x" * 60 + "/" + "y" * 60 + "/a": A})
def ustar_prefix() -> bytes:
    out = b""
    for ext, data in A.items():
        out += member("y" * 60 + f"/a.{ext}", data, prefix=b"x" * 60)
    return out + END


@case("v7 tar without magic", TWO)
def v7() -> bytes:
    out = b""
    for key, fields in (("a", A), ("b", B)):
        for ext, data in fields.items():
            out += member(f"{key}.{ext}", data, magic=V7, kind=b"\x00")
    return out + END


@case("sizes in base-256", TWO)
def base256_size() -> bytes:
    out = b""
    for key, fields in (("a", A), ("b", B)):
        for ext, data in fields.items():
            out += member(f"{key}.{ext}", data, magic=GNU, size_field=base256(len(data), 12))
    return out + END


@case("9 GiB declared in base-256, data missing", "error: truncated shard; must not allocate 9 GiB first")
def huge_declared() -> bytes:
    return two_samples() + header(b"c.npy", magic=GNU, size_field=base256(9 << 30, 12)) + b"\x01" * BLOCK


@case("contiguous file type '7'", TWO)
def contiguous_type() -> bytes:
    return member("a.jpg", b"img-a", kind=b"7") + two_samples()[2 * BLOCK :] + END


@case("GNU volume label first", TWO)
def volume_label() -> bytes:
    return header(b"my label", kind=b"V", magic=GNU) + two_samples() + END


# ---------------------------------------------------------------- names


@case("dot in a folder name", {"v1.0/a": A})
def dir_dot() -> bytes:
    return member("v1.0/a.jpg", b"img-a") + member("v1.0/a.cls", b"0") + END


@case("dot in a folder name, member without extension", {"v1.0/a": A})
def dir_dot_noext() -> bytes:
    return member("v1.0/README", b"text") + member("v1.0/a.jpg", b"img-a") + member("v1.0/a.cls", b"0") + END


@case("'./' prefix as made by 'tar -cf x.tar .'", {"./a": A, "./b": B})
def dot_slash() -> bytes:
    out = folder("./")
    for key, fields in (("./a", A), ("./b", B)):
        for ext, data in fields.items():
            out += member(f"{key}.{ext}", data)
    return out + END


@case("mixed: first file with './', second without", "policy: refuse, or one sample; never two half samples")
def dot_slash_mixed() -> bytes:
    return member("./a.jpg", b"img-a") + member("a.cls", b"0") + END


@case("absolute path and '..' path", {"/data/a": {"jpg": b"img-a"}, "../b": {"jpg": b"img-b"}})
def odd_roots() -> bytes:
    return member("/data/a.jpg", b"img-a") + member("../b.jpg", b"img-b") + END


@case("folder entry in the middle of a sample", {"d/a": A})
def dir_between() -> bytes:
    return folder("d/") + member("d/a.jpg", b"img-a") + folder("d/sub/") + member("d/a.cls", b"0") + END


@case("dots in the base name (22.05.jpg)", {"22": {"05.jpg": b"img-a", "05.cls": b"0"}})
def dots_in_base() -> bytes:
    return member("22.05.jpg", b"img-a") + member("22.05.cls", b"0") + END


@case(
    "dots in the base name make two samples collide (1.0.jpg, 1.5.jpg)", {"1": {"0.jpg": b"img-a", "5.jpg": b"img-b"}}
)
def dots_collide() -> bytes:
    return member("1.0.jpg", b"img-a") + member("1.5.jpg", b"img-b") + END


@case("multi dot extension", {"a": {"jpg": b"img-a", "seg.png": b"mask", "cls": b"0"}})
def multi_ext() -> bytes:
    return member("a.jpg", b"img-a") + member("a.seg.png", b"mask") + member("a.cls", b"0") + END


@case("no extension at all", TWO)
def no_ext() -> bytes:
    return member("LICENSE", b"text") + two_samples() + END


@case("AppleDouble '._' files at the root", {"a": A})
def apple_root() -> bytes:
    return (
        member("._a.jpg", b"xattr")
        + member("a.jpg", b"img-a")
        + member("._a.cls", b"xattr")
        + member("a.cls", b"0")
        + END
    )


@case("AppleDouble '._' files in a folder", {"d/a": A})
def apple_dir() -> bytes:
    return (
        member("d/._a.jpg", b"xattr")
        + member("d/a.jpg", b"img-a")
        + member("d/._a.cls", b"xattr")
        + member("d/a.cls", b"0")
        + END
    )


@case("upper case extensions", {"a": A})
def upper_ext() -> bytes:
    return member("a.JPG", b"img-a") + member("a.Cls", b"0") + END


@case("extensions that differ only in case", "error: a.JPG and a.jpg fall on the same field")
def case_clash() -> bytes:
    return member("a.JPG", b"img-a") + member("a.jpg", b"img-b") + member("a.cls", b"0") + END


@case("UTF-8 names without PAX", {"größe/猫": A})
def utf8_raw() -> bytes:
    return member("größe/猫.jpg", b"img-a") + member("größe/猫.cls", b"0") + END


@case("latin-1 name bytes", {b"gr\xf6\xdfe".decode("utf-8", "surrogateescape"): A})
def latin1_raw() -> bytes:
    return member(b"gr\xf6\xdfe.jpg", b"img-a") + member(b"gr\xf6\xdfe.cls", b"0") + END


@case("space, newline and backslash in names", {"a b": {"jpg": b"1"}, "c\nd": {"jpg": b"2"}, "e\\f": {"jpg": b"3"}})
def odd_chars() -> bytes:
    return member("a b.jpg", b"1") + member("c\nd.jpg", b"2") + member("e\\f.jpg", b"3") + END


# ---------------------------------------------------------------- grouping


@case("same member twice in one sample", "error: duplicate field jpg of key a")
def dup_member() -> bytes:
    return member("a.jpg", b"old") + member("a.cls", b"0") + member("a.jpg", b"new") + END


@case("files of a sample are not adjacent", "error: key a appears again after key b")
def not_adjacent() -> bytes:
    return member("a.jpg", b"img-a") + member("b.jpg", b"img-b") + member("a.cls", b"0") + member("b.cls", b"1") + END


@case(
    "natural sort of 'tar' without --sort (a1, a10, a2)",
    {"a1": {"jpg": b"1"}, "a10": {"jpg": b"2"}, "a2": {"jpg": b"3"}},
)
def numeric_order() -> bytes:
    return member("a1.jpg", b"1") + member("a10.jpg", b"2") + member("a2.jpg", b"3") + END


@case("a key that is a prefix of the next (a.jpg, a.b.jpg)", {"a": {"jpg": b"1", "b.jpg": b"2"}})
def prefix_key() -> bytes:
    return member("a.jpg", b"1") + member("a.b.jpg", b"2") + END


@case(
    "same key in two shards; last key of the first is first key of the second",
    "policy: two samples, identified by (shard, key)",
)
def key_across_shards() -> dict[str, bytes]:
    return {
        "key_across_shards-0.tar": member("a.jpg", b"0a") + member("z.jpg", b"0z") + member("z.cls", b"0") + END,
        "key_across_shards-1.tar": member("z.jpg", b"1z") + member("z.cls", b"1") + END,
    }


@case(
    "first shard cut inside its last sample, second starts with the same key",
    "error: first shard truncated; never mix the two z",
)
def cut_then_same_key() -> dict[str, bytes]:
    cut = member("a.jpg", b"0a") + member("z.jpg", b"0z") + header(b"z.cls", 5000) + b"x" * BLOCK
    return {
        "cut_then_same_key-0.tar": cut,
        "cut_then_same_key-1.tar": member("z.cls", b"1") + member("z.jpg", b"1z") + END,
    }


@case("empty member", {"a": {"jpg": b"img-a", "txt": b""}})
def empty_member() -> bytes:
    return member("a.jpg", b"img-a") + member("a.txt", b"") + END


@case("sample that misses its label", {"a": A, "b": {"jpg": b"img-b"}})
def missing_label() -> bytes:
    return member("a.jpg", b"img-a") + member("a.cls", b"0") + member("b.jpg", b"img-b") + END


# ---------------------------------------------------------------- ends and damage


@case("file of zero bytes", "error: empty file is no shard (a failed upload or download)")
def zero_length() -> bytes:
    return b""


@case("only zero blocks (valid empty archive)", {})
def empty_archive() -> bytes:
    return b"\x00" * 10240


@case("no end mark, cut exactly between two samples", "policy: accept only with a sidecar that agrees; else warn")
def trunc_boundary() -> bytes:
    return two_samples()


@case("cut exactly between two files of one sample", "error: fewer members than the sidecar says; sample b is half")
def trunc_in_sample() -> bytes:
    return two_samples()[: 6 * BLOCK]


@case("cut in the data of the last member", "error: truncated")
def trunc_data() -> bytes:
    return member("a.jpg", b"img-a") + member("a.cls", b"0") + member("b.jpg", b"x" * 2000)[:-1024]


@case("cut in a header", "error: truncated")
def trunc_header() -> bytes:
    return two_samples() + member("c.jpg", b"img-c")[:300]


@case("cut in the padding after complete data", "error: truncated")
def trunc_padding() -> bytes:
    return two_samples()[:-100]


@case("junk after the end mark", TWO)
def junk_after_end() -> bytes:
    return two_samples() + END + b"trailing junk, not a tar header" * 40


@case("header of the third member has a bad checksum", "error: bad header at offset 2048")
def bad_checksum() -> bytes:
    good = bytearray(two_samples() + END)
    good[4 * BLOCK] ^= 0x01
    return bytes(good)


@case("HTML error page instead of a tar", "error: not a tar")
def html_page() -> bytes:
    return b"<html><head><title>503 Service Unavailable</title></head></html>\n" * 20


@case("HTML error page spliced into the middle", "error: bad header")
def html_middle() -> bytes:
    good = two_samples()
    return good[: 4 * BLOCK] + padded(b"<html>504 Gateway Time-out</html>" * 20)


# ---------------------------------------------------------------- compression


@case("gzip, named .tar.gz", TWO, suffix=".tar.gz")
def gz_named() -> bytes:
    return gzip.compress(two_samples() + END, mtime=0)


@case("gzip, but named .tar", "policy: read it, or refuse when offsets are needed")
def gz_as_tar() -> bytes:
    return gzip.compress(two_samples() + END, mtime=0)


@case("gzip cut in the stream", "error: truncated", suffix=".tar.gz")
def gz_truncated() -> bytes:
    whole = gzip.compress(
        two_samples() + b"".join(member(f"{i}.bin", bytes(range(256)) * 8) for i in range(9)) + END, mtime=0
    )
    return whole[: len(whole) // 2]


# ---------------------------------------------------------------- labels


def npy(text_header: str, data: bytes) -> bytes:
    """Minimal .npy version 1.0 file."""
    head = text_header.encode("latin1")
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


LABELS = {
    "cls_newline": {"cls": b"3\n"},
    "cls_blank": {"cls": b""},
    "cls_float": {"cls": b"3.0"},
    "cls_name": {"cls": b"cat"},
    "cls_list": {"cls": b"3,7"},
    "cls_negative": {"cls": b"-1"},
    "json_list": {"json": b"[3, 7, 7]"},
    "json_empty": {"json": b"[]"},
    "json_names": {"json": b'{"labels": ["cat", "dog"]}'},
    "json_mixed": {"json": b'{"labels": [3, "3", 3.0, true]}'},
    "json_coco": {
        "json": b'{"image_id": 9, "annotations": [{"category_id": 17}, {"category_id": 17}, {"category_id": 90}]}'
    },
    "json_broken": {"json": b'{"labels": [1,'},
    "npy_onehot": {"npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (5,), }", bytes([0, 1, 0, 0, 1]))},
    "npy_scalar": {"npy": npy("{'descr': '<i8', 'fortran_order': False, 'shape': (), }", (7).to_bytes(8, "little"))},
    "txt_multi": {"txt": b"cat, dog\nbird"},
}


@case("one label spelling per sample (see LABELS)", {k: dict(v) for k, v in LABELS.items()})
def label_spellings() -> bytes:
    out = b""
    for key, fields in LABELS.items():
        for ext, data in fields.items():
            out += member(f"{key}.{ext}", data)
    return out + END


# ---------------------------------------------------------------- command line


def main(argv: list[str]) -> int:
    if len(argv) < 2:
        print(__doc__)
        return 2
    patterns = argv[2:] or ["*"]
    for pattern in patterns:
        paths = build(argv[1], pattern)
        for case in CASES.values():
            if fnmatch.fnmatch(case.name, pattern):
                for fname in case.make():
                    try:
                        with tarfile.open(paths[fname]) as tar:
                            seen = f"{len(tar.getnames())} members for Python tarfile"
                    except (tarfile.TarError, EOFError, OSError) as exc:
                        seen = f"{type(exc).__name__}: {exc}".splitlines()[0]
                    print(f"{fname:28} {paths[fname].stat().st_size:7d} B  {case.about}  [{seen}]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
