"""What does planning cost at scale? Time and memory of one worker until it knows its batch, of up to 2 billion samples.

Summaries are drawn with a seed and written, as `equitar index` would write them, for shards that are not there: planning opens
none. Each case runs in a process of its own. Seconds
are of processor time: nothing here waits or runs side by side, so that is what the clock shows on a machine with nothing else to
do. Four sources of 40, 30,
20 and 10 % of the samples, shards of 10,000 samples, batches of 64 per rank, shuffled over 5,000, `debiased` and `mixed`.

    main s       the main process: list the shards, read the summaries, make the supplies
    worker s     a worker that is spawned: unpickle what the main process sends, make the plan, know its first batch
    batch ms     each further batch of the epoch of this worker, over the first 2,000
    next s       the first batch of the next epoch
    resume s     a state from the middle of epoch 1,000: unpickle, plan, check the state, know the batch
    peak MB      the most memory of the main process, and of the worker until its first batch; "libraries" is what Python and its
                 imports take of it

Two more tables are of repeats: 1.7 million samples of 365 classes, long-tailed, as Objects365 has them. In the first one labels are
in memory, in the second in sidecars on disk, one for each shard of 10,000 samples.

    count s      the samples of each class, and its repeat factor
    sums s       the repeat factor of each sample, and their sum in each shard
    read s       both, with all sidecars read: what a main process does
    plan s       the plan from these, until the first batch
    labels MB    the labels in sparse rows
    on disk MB   the sidecars

    python benchmarks/bench_plan.py [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import json
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import equitar
from equitar.loading.request import Request, ResolvedRequest
from equitar.loading.state import check_state, pass_start_in, position_in, state_of
from equitar.planning.passes import PassStart
from equitar.planning.plan import Plan
from equitar.planning.repeat_factors import RepeatFactor, class_factors, count_classes, sample_factors
from equitar.planning.supply import Supply
from equitar.presence import Presence
from equitar.progress import Position
from equitar.samplers.label_rows import collected
from equitar.sidecars.sidecar import sidecar_of, write_sidecar
from equitar.sidecars.summary import Summary, summary_of, write_summary
from equitar.storage.listing import expand, sidecar_url
from equitar.tar.table import MemberTable
from measure import Book, cases_apart, in_own_process, parser_of, peak, print_figures
from planned import request_of

SHARES = (4, 3, 2, 1)  # tenths of the samples
ROWS = 10_000
BATCHES = 2_000  # of an epoch that are looked at one by one
MILLION = 1_000_000


class Case(NamedTuple):
    """A size: samples in all, ranks, workers of each."""

    samples: int
    ranks: int
    workers: int
    kind: str

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.samples // MILLION:,} M samples, {self.ranks} x {self.workers}, {self.kind}"


LARGEST = Case(2000 * MILLION, 1024, 8, "debiased")
CASES = (
    *(Case(samples * MILLION, 8, 8, "debiased") for samples in (1, 10, 100, 2000)),
    Case(2000 * MILLION, 1, 1, "debiased"),
    LARGEST,
    LARGEST._replace(kind="mixed"),
)
TINY = (Case(2 * MILLION, 2, 2, "mixed"),)
OBJECTS, FEW_OBJECTS, CLASSES = 1_700_000, 20_000, 365
REPEAT = RepeatFactor(1e-2)


def sources_in(folder: Path, samples: int) -> list[equitar.Source]:
    """Return the sources of a size."""
    shards = [max(1, samples * share // 10 // ROWS) for share in SHARES]
    return [
        equitar.Source(name, f"{folder}/{name}/{{000000..{num - 1:06}}}.tar", root=str(folder / name))
        for name, num in zip("abcd", shards, strict=True)
    ]


def draw_summaries(folder: Path, samples: int) -> None:
    """Write the summaries of a size, of shards that differ by a tenth in their rows."""
    rng = np.random.default_rng(0)
    for source, share in zip(sources_in(folder, samples), SHARES, strict=True):
        num = max(1, samples * share // 10 // ROWS)
        (folder / source.name).mkdir(parents=True)
        hexes = rng.bytes(16 * num).hex()
        summary = Summary(
            paths=tuple(f"{shard:06}.tar" for shard in range(num)),
            num_samples=rng.integers(ROWS * 9 // 10, ROWS * 11 // 10, num, endpoint=True),
            shard_sizes=rng.integers(1 << 29, 1 << 31, num),
            digests=tuple(hexes[start : start + 32] for start in range(0, 32 * num, 32)),
            label_counts=None,
            class_names=None,
        )
        write_summary(source, expand(source), summary)


def know(plan: Plan, case: Case, step: int) -> None:
    """Find out what one rank reads at a step."""
    plan.samples(step, *plan.share(step, case.ranks - 1, case.ranks))


def planned(order: Request, case: Case, epoch: int) -> Plan:
    """Return a plan that knows the first batch of its last worker."""
    plan = order.plan(Position(epoch, 0, 0, 0), case.workers, PassStart())
    know(plan, case, case.workers - 1)
    return plan


def main_process(case: Case, folder: Path) -> dict[str, float]:
    """Do what the main process does, and leave what it sends to workers in a file."""
    begin = time.process_time()
    order = request_of(case.kind, ranks=case.ranks, sources=sources_in(folder, case.samples))
    prepared = order.resolved
    figures = {"main s": time.process_time() - begin, "main peak MB": peak()}
    (folder / "sent").write_bytes(pickle.dumps(prepared))
    epoch = 1000
    plan = planned(order, case, epoch)
    state = state_of(order, plan, Position(epoch, plan.num_steps // 2, case.workers, case.ranks))
    (folder / "state").write_text(json.dumps(state), encoding="utf-8")
    return figures


def received(folder: Path) -> ResolvedRequest:
    """Return what the main process sends, as a spawned process reads it: from a stream."""
    with (folder / "sent").open("rb") as file:
        prepared: ResolvedRequest = pickle.load(file)
    return prepared


def worker(case: Case, folder: Path) -> dict[str, float]:
    """Do what a worker does until it knows its first batch, then go on through the epoch."""
    begin = time.process_time()
    order = request_of(case.kind, ranks=case.ranks, resolved=received(folder))
    plan = planned(order, case, 0)
    figures = {"worker s": time.process_time() - begin, "worker peak MB": peak()}
    steps = range(case.workers - 1, plan.num_steps, case.workers)
    begin = time.process_time()
    for step in steps[:BATCHES]:
        know(plan, case, step)
    figures |= {"batch ms": 1000 * (time.process_time() - begin) / len(steps[:BATCHES]), "steps": float(plan.num_steps)}
    begin = time.process_time()
    planned(order, case, 1)
    return {**figures, "next s": time.process_time() - begin}


def resumed(case: Case, folder: Path) -> dict[str, float]:
    """Do what a worker does that starts in the middle of an epoch."""
    begin = time.process_time()
    order = request_of(case.kind, ranks=case.ranks, resolved=received(folder))
    state = json.loads((folder / "state").read_text(encoding="utf-8"))
    position = position_in(state)
    plan = order.plan(position, case.workers, pass_start_in(state))
    check_state(state, state_of(order, plan, position))
    know(plan, case, position.step + case.workers - 1)
    return {"resume s": time.process_time() - begin}


def drawn_labels(samples: int) -> Iterator[Presence]:
    """Yield the labels of shards, long-tailed: class c with a density that falls with c."""
    rng = np.random.default_rng(0)
    for first in range(0, samples, ROWS):
        lengths = rng.integers(0, 13, min(ROWS, samples - first))
        ids = (CLASSES * rng.random(int(lengths.sum())) ** 4).astype(np.int64)
        yield Presence.of_entries(np.repeat(np.arange(len(lengths)), lengths), ids, None, num_rows=len(lengths))


def drawn_table(shard: int, num_rows: int) -> MemberTable:
    """Return the member table of a shard of images of some 60 KB, with a label file and a caption each."""
    size = np.random.default_rng(shard).integers((1, 45_000, 20), (9, 75_000, 90), (num_rows, 3)).ravel()
    return MemberTable(
        keys=[f"{shard:04}{row:05}" for row in range(num_rows)],
        indptr=np.arange(0, 3 * num_rows + 1, 3),
        fields=["cls", "jpg", "txt"],
        field=np.tile(np.arange(3), num_rows),
        offset=np.cumsum(1536 + (size + 511 & -512)) - (size + 511 & -512),
        size=size,
        sliceable=True,
        contents=[],
        notes=(),
    )


def objects_in(folder: Path, samples: int) -> equitar.Source:
    """Return the source of labelled samples."""
    num = -(-samples // ROWS)
    return equitar.Source("objects", f"{folder}/{{000000..{num - 1:06}}}.tar", root=str(folder))


def draw_sidecars(folder: Path, samples: int) -> None:
    """Write the sidecars of labelled samples, and their summary."""
    source = objects_in(folder, samples)
    listed, sidecars = expand(source), []
    for shard, (path, presence) in enumerate(zip(listed.paths, drawn_labels(samples), strict=True)):
        table = drawn_table(shard, presence.num_rows)
        size = int(table.offset[-1] + table.size[-1]) + 10_240
        sidecars.append(sidecar_of(table, shard_size=size, presence=presence, class_names=None, label_spec="cls"))
        write_sidecar(sidecar_url(listed, path), sidecars[-1])
    write_summary(source, listed, summary_of(listed.paths, sidecars))


def from_memory(case: Case, _: Path) -> dict[str, float]:
    """Plan repeats from labels in memory: what a main process does, apart from reading sidecars."""
    labels = collected(drawn_labels(case.samples), None)
    begin = time.process_time()
    counts = count_classes(labels.parts(), names=None, empty="keep")
    (factors,) = class_factors([counts], REPEAT)
    figures = {"count s": time.process_time() - begin}
    begin = time.process_time()
    rows = [sample_factors(part, counts.ids, factors) for part in labels.parts()]
    supply = Supply.of("objects", [f"{shard:06}.tar" for shard in range(len(rows))], rows)
    figures["sums s"] = time.process_time() - begin
    begin = time.process_time()
    resolved = ResolvedRequest(no_catalog(), [supply], 7, 8)
    planned(request_of(case.kind, ranks=case.ranks, resolved=resolved), case, 0)
    return {**figures, "plan s": time.process_time() - begin, "labels MB": labels.nbytes / 1e6}


def from_disk(case: Case, folder: Path) -> dict[str, float]:
    """Plan repeats from labels in sidecars: all that a main process does."""
    begin = time.process_time()
    sources = [objects_in(folder, case.samples)]
    order = replace(request_of(case.kind, ranks=case.ranks, sources=sources), repeat=REPEAT)
    _ = order.resolved
    figures = {"read s": time.process_time() - begin}
    begin = time.process_time()
    planned(order, case, 0)
    on_disk = sum(path.stat().st_size for path in folder.glob("*.presence.npz"))
    return {**figures, "plan s": time.process_time() - begin, "on disk MB": on_disk / 1e6}


def no_catalog() -> Any:
    """Stand for the catalog of a plan that reads nothing."""
    return None


PARTS: dict[str, Callable[[Case, Path], dict[str, float]]] = {
    "main": main_process,
    "worker": worker,
    "resume": resumed,
    "labels in memory": from_memory,
    "labels on disk": from_disk,
}


def measured(part: str, case: list[Any], folder: str) -> dict[str, float]:
    """Return what a part of a case takes."""
    libraries = peak()
    return {**PARTS[part](Case(*case), Path(folder)), "libraries MB": libraries}


def main() -> None:
    """Run every part of every case in a process of its own, print tables, and write `bench_plan.csv`."""
    chosen, book = cases_apart(parser_of("Measure planning at scale."), measured), Book()
    figures_of: dict[str, dict[str, float]] = {}
    for case in TINY if chosen.tiny else CASES:
        with tempfile.TemporaryDirectory() as folder:
            draw_summaries(Path(folder), case.samples)
            figures_of[case.name] = {}
            for part in ("main", "worker", "resume"):
                figures_of[case.name] |= in_own_process(__file__, part, case, folder)
        book.note_all(case.name, "equitar", figures_of[case.name])
    print_figures("Planning at scale", figures_of)
    objects = Case(FEW_OBJECTS if chosen.tiny else OBJECTS, 8, 4, "mixed")
    with tempfile.TemporaryDirectory() as folder:
        draw_sidecars(Path(folder), objects.samples)
        for part in ("labels in memory", "labels on disk"):
            name = f"{objects.samples:,} samples x {CLASSES} classes, {part}"
            figures = in_own_process(__file__, part, objects, folder)
            print_figures("Planning with repeats", {name: figures})
            book.note_all(name, "equitar", figures)
    book.write(chosen.out / "bench_plan.csv")


if __name__ == "__main__":
    main()
