"""Fuzzer of tars and sidecars: mutated ones give right samples or our errors. Seeded, bounded, in several processes.

Every input is made from a good one by a few mutations: bytes changed, blocks copied, zeroed, cut out or moved, sizes and names
of headers changed with their checksums made right again, two files spliced, the whole compressed. It goes through the builder
(the bulk way and the walk), the sidecar and back, the reader's slices, and the stream without an index. Checked are

    errors     only `ShardError` from tars and `SidecarError` from sidecars
    samples    each one given is one of the good file, or what Python's tarfile has under this key in the mutated one (data have no
               checksum in a tar, so that a changed byte of data is another good tar)
    hangs      an alarm for each input
    memory     peak of every 50th input: four times its size and a constant

    PYTHONPATH=tests python tests/fuzz/fuzz_tars.py [--inputs N] [--seed N] [--jobs N]
"""

from __future__ import annotations

import argparse
import gzip
import io
import multiprocessing
import os
import random
import signal
import sys
import tarfile
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from equitar.errors import ShardError, SidecarError
from equitar.sidecars.container import pack, unpack
from equitar.sidecars.sidecar import Sidecar, from_bytes, sidecar_of, to_bytes
from equitar.tar.grouping import split_name
from equitar.tar.stream import tar_samples
from equitar.tar.table import MemberTable, member_table, read_table
from equitar.tar.walk import walk
from helpers import odd_tars

BLOCK = 512
ALARM = 30  # seconds for one input; a busy machine makes some wait for several
MEMORY = 8_000_000  # bytes beyond four times the input
MEASURED = 50  # every so many inputs are measured for memory

Fields = dict[str, bytes]
Samples = dict[str, Fields]


@dataclass
class Figures:
    """What a run has seen."""

    counts: Counter[str] = field(default_factory=Counter)
    peak: int = 0
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Take in the figures of another process."""
        self.counts += other.counts
        self.peak, self.slowest = max(self.peak, other.peak), max(self.slowest, other.slowest)
        self.failures += other.failures


class WrongSampleError(AssertionError):
    """Something was given that is not there."""


# ---------------------------------------------------------------- good inputs


def good_tars() -> list[bytes]:
    """Return the tars that mutation begins with: all odd ones, and some of each format with contents that differ."""
    tars = [raw for case in odd_tars.CASES.values() for raw in case.make().values()]
    contents = np.random.default_rng(0)
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for moment in (0, 1.5):
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
                for row in range(8):
                    for name in (f"k{row}.jpg", f"k{row}.cls", f"d/k{row}.seg.png" if row % 3 == 0 else f"k{row}.txt"):
                        member = tarfile.TarInfo(name)
                        member.size, member.mtime = int(contents.integers(0, 1400)), moment
                        tar.addfile(member, io.BytesIO(contents.bytes(member.size)))
            tars += [file.getvalue()] * 8
    return tars


@contextmanager
def local_file(raw: bytes) -> Iterator[tuple[io.FileIO, str]]:
    """Give bytes as a file of the kernel, with a path that opens it."""
    with os.fdopen(os.memfd_create("fuzz"), "r+b", buffering=0) as file:
        file.write(raw)
        file.seek(0)
        yield file, f"/proc/self/fd/{file.fileno()}"


# ---------------------------------------------------------------- mutations


def _place(draw: random.Random, raw: bytearray) -> int:
    """Return a position, mostly one where something begins."""
    position = draw.randrange(len(raw) + 1)
    return position if draw.random() < 0.3 else position // BLOCK * BLOCK


def change_bytes(draw: random.Random, raw: bytearray) -> None:
    for _ in range(draw.choice([1, 1, 2, 8])):
        if raw:
            position = min(_place(draw, raw) + draw.choice([0, draw.randrange(BLOCK)]), len(raw) - 1)
            raw[position] = draw.choice(
                [raw[position] ^ 1 << draw.randrange(8), draw.randrange(256), 0, 0xFF, ord("0"), ord("/")]
            )


def cut(draw: random.Random, raw: bytearray) -> None:
    del raw[_place(draw, raw) :]


def leave_out(draw: random.Random, raw: bytearray) -> None:
    position = _place(draw, raw)
    del raw[position : position + draw.choice([1, BLOCK, 2 * BLOCK, draw.randrange(4 * BLOCK)])]


def copy_blocks(draw: random.Random, raw: bytearray) -> None:
    begin, to, count = _place(draw, raw), _place(draw, raw), draw.choice([1, 2, 3, 6]) * BLOCK
    part = raw[begin : begin + count]
    raw[to : to + draw.choice([0, len(part)])] = part


def overwrite(draw: random.Random, raw: bytearray) -> None:
    position, count = _place(draw, raw), draw.choice([16, BLOCK, 2 * BLOCK])
    raw[position : position + count] = draw.choice([bytes(count), draw.randbytes(count), b"<html>".ljust(count)])


def change_header(draw: random.Random, raw: bytearray) -> None:
    """Change a field of a header, and mostly its checksum with it."""
    heads = [head for head in range(0, len(raw) - BLOCK + 1, BLOCK) if raw[head + 257 : head + 262] == b"ustar"]
    if not heads:
        return
    head = draw.choice(heads)
    begin, new = draw.choice([
        (124, b"%011o\0" % draw.choice([0, 1, 511, 512, 513, 1 << 20, 8**11 - 1])),
        (124, b"\x80" + draw.choice([0, 5, 1 << 33, 1 << 80]).to_bytes(11, "big")),
        (124, draw.choice([b"-0000000001\0", b"         12 ", b"\xff" * 12, b"1_000000000\0", b"\0" * 12])),
        (156, draw.choice([b"0", b"\0", b"1", b"5", b"7", b"g", b"x", b"X", b"L", b"K", b"S", b"V", b"D"])),
        (345, draw.choice([b"p\0", b"folder/sub\0"])),
        (0, draw.choice([b"k1.jpg", b"a.jpg", b"./a.jpg", b"a.__key__", b"__x__/a.b", b".hid.jpg", b"a\0b.jpg", b"a\n.b.jpg", b"\xff.cls", b"/"]) + b"\0"),
        (257, draw.choice([b"ustar  \0", b"\0" * 8])),
    ])  # fmt: skip
    raw[head + begin : head + begin + len(new)] = new
    if draw.random() < 0.8:
        block = raw[head : head + BLOCK]
        raw[head + 148 : head + 156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 256)


MUTATIONS = (change_bytes, change_bytes, cut, leave_out, copy_blocks, overwrite, change_header, change_header)


def mutated(draw: random.Random, tars: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Return a mutated tar and the good ones it was made of."""
    origins = [draw.choice(tars)]
    raw = bytearray(origins[0])
    if draw.random() < 0.08:
        origins.append(draw.choice(tars))
        raw[_place(draw, raw) :] = origins[1][draw.choice([0, draw.randrange(len(origins[1]) + 1)]) :]
    is_packed = draw.random() < 0.04
    for _ in range(draw.choice([1, 1, 1, 2, 2, 4])):
        draw.choice(MUTATIONS)(draw, raw)
    if is_packed:
        raw = bytearray(gzip.compress(bytes(raw), 1))
        draw.choice([change_bytes, cut, lambda *_: None])(draw, raw)
    return bytes(raw), origins


# ---------------------------------------------------------------- what is checked


def samples_of(table: MemberTable, raw: bytes) -> Samples:
    """Read all rows by their offsets."""
    samples: Samples = {}
    for row, key in enumerate(table.keys):
        samples[key] = {}
        for entry in range(int(table.indptr[row]), int(table.indptr[row + 1])):
            begin, size = int(table.offset[entry]), int(table.size[entry])
            if begin < 0 or begin + size > len(raw):
                raise WrongSampleError(f"bytes {begin} to {begin + size} of {len(raw)}")
            samples[key][table.fields[int(table.field[entry])]] = raw[begin : begin + size]
    return samples


def plain_headers(raw: bytes) -> bytes:
    """Return a tar without what we do not read: modes, owners and times, for which tarfile refuses a header."""
    plain = bytearray(raw)
    for head in range(0, len(raw) - BLOCK + 1, BLOCK):
        block = raw[head : head + BLOCK]
        if b"%06o" % (sum(block) - sum(block[148:156]) + 256) == block[148:154]:
            plain[head + 100 : head + 124] = b"0000000\0" * 3
            plain[head + 136 : head + 148] = b"00000000000\0"
            plain[head + 329 : head + 345] = b"0000000\0" * 2
            if block[257:263] != b"ustar\0":  # GNU keeps times where the prefix is, which tarfile takes for one
                plain[head + 345 : head + 500] = bytes(155)
            block = bytes(plain[head : head + BLOCK])
            plain[head + 148 : head + 156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 256)
    return bytes(plain)


def inflated(raw: bytes) -> bytes:
    """Return as much as can be had of a compressed file."""
    stream, content = zlib.decompressobj(wbits=31), b""
    try:
        for position in range(len(raw)):
            content += stream.decompress(raw[position : position + 1])
    except zlib.error:
        pass
    return content


def by_tarfile(raw: bytes) -> list[tuple[str, Fields]]:
    """Return the runs of members with one key as Python's tarfile sees them, up to where it stops."""
    runs: list[tuple[str, Fields]] = []
    contents: dict[str, bytes] = {}  # for hard links
    raw = inflated(raw) if raw[:2] == b"\x1f\x8b" else raw
    try:
        with tarfile.open(fileobj=io.BytesIO(plain_headers(raw)), mode="r:", errors="surrogateescape") as tar:
            for member in tar:
                if member.isreg():
                    contents[member.name] = raw[member.offset_data : member.offset_data + member.size]
                elif member.islnk() and (target := _target(member.linkname, contents)) is not None:
                    contents[member.name] = contents[target]
                else:
                    continue
                parts = split_name(member.name)
                if parts is not None:
                    if not runs or runs[-1][0] != parts[0]:
                        runs.append((parts[0], {}))
                    runs[-1][1][parts[1]] = contents[member.name]
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, IndexError, KeyError):
        pass  # so much for what comes after
    return runs


def _target(name: str, contents: Fields) -> str | None:
    """Return the file before that a hard link points to."""
    bare = name.removeprefix("./")
    return next((path for path in (name, bare, f"./{bare}") if path in contents), None)


def check_samples(samples: Samples, raw: bytes, origins: list[Samples], *, is_whole: bool) -> None:
    """Raise unless every sample is of the good tar, or is in the mutated one.

    A stream cannot know that a key will come back: what it gave before it says so (not `is_whole`) may be a run of members.
    """
    if any(all(origin.get(key) == fields for key, fields in samples.items()) for origin in origins):
        return
    runs = by_tarfile(raw)
    joined: Samples = {}
    for key, fields in runs:
        joined.setdefault(key, {}).update(fields)
    for key, fields in samples.items():
        is_there = fields == joined.get(key) or (not is_whole and (key, fields) in runs)
        if not is_there and all(fields != origin.get(key) for origin in origins):
            sizes = {name: len(value) for name, value in fields.items()}
            raise WrongSampleError(f"sample {key!r} with {sizes} is neither in the good tar nor in the mutated one")


def good_samples(raw: bytes) -> Samples:
    """Return the samples of a good tar; of an odd one that is refused, those before the error."""
    samples: Samples = {}
    with local_file(raw) as (_, path):
        try:
            for sample in tar_samples()([path]):
                samples[sample["__key__"]] = {name: sample[name] for name in sample if not name.startswith("__")}
        except ShardError:
            pass
    return samples


def _table(raw: bytes, *, in_bulk: bool, regroup: bool) -> MemberTable | None:
    """Build the member table, None if the tar is refused."""
    try:
        if in_bulk:
            with local_file(raw) as (file, _):
                return read_table(file, size=len(raw), where="x.tar", fields=None, regroup=regroup)
        walked = walk(io.BytesIO(raw), size=len(raw), where="x.tar", want=lambda _: True)
        return member_table(walked, "x.tar", regroup=regroup)
    except ShardError:
        return None


def check_tar(draw: random.Random, raw: bytes, origins: list[Samples]) -> str:
    """Put one tar through everything, and return what came of it."""
    is_regrouped = draw.random() < 0.1
    table = _table(raw, in_bulk=draw.random() < 0.7, regroup=is_regrouped)
    if table is not None:
        built = dict(zip(table.keys, table.contents, strict=True))
        check_samples(built, raw, origins, is_whole=True)
        sidecar = sidecar_of(table, shard_size=len(raw), presence=None, class_names=None, label_spec="")
        again = from_bytes(to_bytes(sidecar), where="x.npz")
        if table.sliceable and samples_of(again.table, raw) != built:
            raise WrongSampleError("slices differ from what was built")
    streamed: Samples = {}
    is_whole = True
    try:
        with local_file(raw) as (_, path):
            for sample in tar_samples()([path]):
                streamed[sample["__key__"]] = {name: sample[name] for name in sample if not name.startswith("__")}
    except ShardError:
        is_whole = False
        if table is not None and not is_regrouped:
            raise WrongSampleError("built, but not streamed") from None
    check_samples(streamed, raw, origins, is_whole=is_whole)
    if is_whole and table is None and not is_regrouped:
        raise WrongSampleError("streamed, but not built")
    return "tar refused" if table is None else "tar read"


def check_sidecar(draw: random.Random, good: bytes, sidecar: Sidecar) -> str:
    """Mutate the bytes of a sidecar, so that it is refused or unchanged; or what its arrays hold."""
    if draw.random() < 0.5:
        raw = bytearray(good)
        for _ in range(draw.choice([1, 1, 3])):
            draw.choice([change_bytes, change_bytes, cut, leave_out, copy_blocks, overwrite])(draw, raw)
        try:
            reread = from_bytes(bytes(raw), where="x.npz")
        except SidecarError:
            return "sidecar refused"
        if to_bytes(reread) != to_bytes(sidecar):
            raise WrongSampleError("a sidecar was changed, and read as if it were not")
        return "sidecar read"
    return check_forged(draw, unpack(good))


def check_forged(draw: random.Random, arrays: dict[str, Any]) -> str:
    """Change an array of a sidecar and make its checksums right again: then it must only not be absurd."""
    name = draw.choice(list(arrays))
    values = arrays[name].astype(np.int64)
    kind = draw.randrange(4)
    if kind == 0 and len(values):
        index = draw.randrange(len(values))
        values[index] = draw.choice([-1, 0, 1, 255, 1 << 31, (1 << 62) + 1, draw.randrange(1 << 40)])
    elif kind == 1:
        values = values[: draw.randrange(len(values) + 1)]
    elif kind == 2:
        values = np.concatenate([values, values[:3]])
    changed = {**arrays, name: values} if kind < 3 else {other: arrays[other] for other in arrays if other != name}
    try:
        forged = from_bytes(pack(changed), where="x.npz")
    except SidecarError:
        return "forged sidecar refused"
    if len(forged.table.offset) and forged.table.sliceable:
        assert int(forged.table.offset.min()) >= 0, "a negative offset"
        assert int((forged.table.offset + forged.table.size).max()) <= forged.shard_size, "an offset beyond the shard"
    return "forged sidecar read"


# ---------------------------------------------------------------- a run


def _on_alarm(*_: object) -> None:
    raise TimeoutError(f"more than {ALARM} seconds")


def fuzz(seed: int, first: int, count: int) -> Figures:
    """Check inputs with the numbers `first` and so on; an input depends on seed and number alone."""
    figures = Figures()
    tars = good_tars()
    samples = {raw: good_samples(raw) for raw in set(tars)}
    readable = [raw for raw in tars if _table(raw, in_bulk=False, regroup=False) is not None]
    sidecars = [
        sidecar_of(table, shard_size=len(raw), presence=None, class_names=None, label_spec="")
        for raw in dict.fromkeys(readable)
        if (table := _table(raw, in_bulk=False, regroup=False)) is not None
    ]
    files = [to_bytes(sidecar) for sidecar in sidecars]
    before = signal.signal(signal.SIGALRM, _on_alarm)
    for number in range(first, first + count):
        draw = random.Random(f"{seed} {number}")
        if draw.random() < 0.25:
            index = draw.randrange(len(files))
            size, check = len(files[index]), partial(check_sidecar, draw, files[index], sidecars[index])
        else:
            raw, origins = mutated(draw, tars)
            size, check = len(raw), partial(check_tar, draw, raw, [samples[origin] for origin in origins])
        _watched(check, size, number, figures)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return figures


def _watched(check: Callable[[], str], size: int, number: int, figures: Figures) -> None:
    """Run one check under an alarm, and now and then with an eye on memory."""
    is_measured = number % MEASURED == 0
    if is_measured:
        tracemalloc.start()
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, ALARM)
    try:
        figures.counts[check()] += 1
    except Exception as error:  # noqa: BLE001  (any error but ours is what is looked for)
        figures.failures.append(f"input {number}: {type(error).__name__}: {error}"[:500])
    signal.setitimer(signal.ITIMER_REAL, 0)
    figures.slowest = max(figures.slowest, time.perf_counter() - begin)
    figures.counts["inputs"] += 1
    if is_measured:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        figures.peak = max(figures.peak, peak)
        figures.counts["measured"] += 1
        if peak > 4 * size + MEMORY:
            figures.failures.append(f"input {number}: {peak} bytes for {size}")


def main() -> None:
    """Fuzz as the command line says, and end with status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="Put mutated tars and sidecars through builder and reader.")
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    begin = time.perf_counter()
    step = min(2_000, -(-chosen.inputs // chosen.jobs))
    parts = [(chosen.seed, first, min(step, chosen.inputs - first)) for first in range(0, chosen.inputs, step)]
    total = Figures()
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        for figures in pool.imap_unordered(_part, parts):
            total.add(figures)
    for what, count in sorted(total.counts.items()):
        print(f"{what:24}{count:>10,}")
    print(f"{'seconds':24}{time.perf_counter() - begin:>10,.0f}")
    print(f"{'slowest input, s':24}{total.slowest:>10.3f}")
    print(f"{'largest peak, bytes':24}{total.peak:>10,}")
    print(f"{'failures':24}{len(total.failures):>10,}")
    print("\n".join(total.failures[:20]))
    sys.exit(bool(total.failures))


def _part(part: tuple[int, int, int]) -> Figures:
    return fuzz(*part)


if __name__ == "__main__":
    main()
