"""How do all benchmarks measure? Everything that is compared takes turns in one run, and every figure is written down.

A benchmark has *cases* (a size of samples, say) and *contenders*, which take turns, several rounds of them, after a first round
that warms the page cache and is not counted. Tables give the median and the best, and in the last column the ratio of the
medians to one of the contenders: that holds on a busy machine too, where the figures themselves do not. The CSV has one line
for each figure, ``case, contender, metric, round, value``, for all benchmarks alike, so that `plots.py` draws any of them.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import equitar

SIZES = {"4 KB": 4096, "60 KB": 61440, "1 MB": 1 << 20}
FIELDS = ("jpg", "cls", "txt")  # of the samples that `tars.py` writes
LARGEST = 400 << 20  # bytes of one corpus: of large samples there are fewer
COLUMNS = ("case", "contender", "metric", "round", "value")
SPEED = "samples/s"


class Setting(NamedTuple):
    """What the command line says.

    Attributes:
        out: Where the CSV goes.
        samples: Samples of each size, where they are not too large.
        rounds: Counted rounds.
        is_tiny: Whether it is only tried out.
    """

    out: Path
    samples: int
    rounds: int
    is_tiny: bool


class Corpus(NamedTuple):
    """Shards of two sources, indexed.

    Attributes:
        case: What the size is called.
        folder: Where they lie, as ``one-*.tar`` and ``two-*.tar``.
        num_samples: How many samples they hold in all.
    """

    case: str
    folder: Path
    num_samples: int

    @property
    def sources(self) -> list[equitar.Source]:
        """The two sources."""
        return [equitar.Source(name, str(self.folder / f"{name}-*.tar")) for name in ("one", "two")]

    @property
    def batch_size(self) -> int:
        """64, or fewer where there are few samples."""
        return min(64, self.num_samples // 4)

    @property
    def urls(self) -> list[str]:
        """All shards, in order."""
        return [str(path) for path in sorted(self.folder.glob("*.tar"))]


class Book:
    """The figures of one benchmark."""

    def __init__(self) -> None:
        """Begin without any."""
        self.figures: dict[tuple[str, str, str], list[float]] = {}

    def note(self, case: str, contender: str, metric: str, *values: float) -> None:
        """Write figures down."""
        self.figures.setdefault((case, contender, metric), []).extend(values)

    def note_all(self, case: str, contender: str, figures: Mapping[str, float]) -> None:
        """Write a figure of each metric down."""
        for metric, value in figures.items():
            self.note(case, contender, metric, value)

    def of(self, case: str, metric: str) -> dict[str, list[float]]:
        """Return the figures of each contender in a case."""
        return {
            contender: values
            for (of_case, contender, of_metric), values in self.figures.items()
            if (of_case, of_metric) == (case, metric)
        }

    def show(self, case: str, metric: str, *bases: str, title: str) -> None:
        """Print a table of the contenders in a case, with the ratios of their medians to those of some of them."""
        values_of = self.of(case, metric)
        middle = {name: statistics.median(values) for name, values in values_of.items()}
        best = max if "samples/" in metric or metric.endswith("/s") else min
        rows = [
            [
                name,
                number(middle[name]),
                number(best(values)),
                *(f"{middle[name] / middle[base]:.2f}" for base in bases),
            ]
            for name, values in values_of.items()
        ]
        print_table(title, ["", f"median {metric}", f"best {metric}", *(f"x {base}" for base in bases)], rows)

    def write(self, path: Path) -> None:
        """Write all figures as CSV."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for key, values in self.figures.items():
                writer.writerows([*key, round_number, f"{value:.6g}"] for round_number, value in enumerate(values))


def parser_of(what: str) -> argparse.ArgumentParser:
    """Return a parser of what every benchmark takes."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="where the CSV goes")
    parser.add_argument("--tiny", action="store_true", help="a size for tests")
    return parser


def setting(what: str, *, samples: int, rounds: int = 5) -> Setting:
    """Return what the command line of a benchmark says; `--tiny` overrules its sizes."""
    parser = parser_of(what)
    parser.add_argument("--samples", type=int, default=samples, help="samples of each size")
    parser.add_argument("--rounds", type=int, default=rounds, help="counted rounds of each contender")
    chosen = parser.parse_args()
    if chosen.tiny:
        return Setting(chosen.out, 256, 1, is_tiny=True)
    return Setting(chosen.out, chosen.samples, chosen.rounds, is_tiny=False)


@contextmanager
def corpus(case: str, chosen: Setting) -> Iterator[Corpus]:
    """Give shards of one size of samples for a while: two sources of two shards, in the page cache as they were just written."""
    from tars import write_tars  # which loads webdataset and torch: a process that counts its memory needs neither

    size = SIZES[case]
    per_shard = max(2, min(chosen.samples, (8 << 20 if chosen.is_tiny else LARGEST) // size) // 4)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for seed, name in enumerate(("one", "two")):
            write_tars(folder, name=name, num_shards=2, samples_per_shard=per_shard, sample_bytes=size, seed=seed)
        shards = Corpus(case, folder, 4 * per_shard)
        equitar.index(shards.sources, labels="cls", jobs=1, progress=False)
        yield shards


class Took(NamedTuple):
    """One run of one contender."""

    samples: int
    seconds: float
    busy: float


def alternate(runs: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, list[Took]]:
    """Return what each contender took in each round.

    Args:
        runs: Contenders by name: each does its work once and returns how many samples it gave.
        rounds: Rounds that count, after one that does not.
    """
    result: dict[str, list[Took]] = {name: [] for name in runs}
    for one_round in range(rounds + 1):
        for name, run in runs.items():
            begin, begin_busy = time.perf_counter(), time.process_time()
            count = run()
            took = Took(count, time.perf_counter() - begin, time.process_time() - begin_busy)
            if one_round:
                result[name].append(took)
    return result


def cases_apart(parser: argparse.ArgumentParser, measured: Callable[..., Mapping[str, float]]) -> argparse.Namespace:
    """Return what the command line of a benchmark says whose cases are run by `in_own_process`; there, run the case and exit.

    Args:
        parser: Of its command line.
        measured: Returns the figures of a case, whose values it takes as they come out of JSON.
    """
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case is not None:
        print(json.dumps(measured(*chosen.case)))
        raise SystemExit
    return chosen


def in_own_process(script: str, *case: Any) -> dict[str, float]:
    """Return the figures of a case that a benchmark measures in a process of its own, which counts its own memory only."""
    command = [sys.executable, script, "--case", json.dumps(case)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def memory_of(pid: int | str = "self") -> dict[str, float]:
    """Return RSS, PSS and private dirty pages of a process in MB: Linux tells."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return {name: kilobytes[name] * 1024 / 1e6 for name in ("Rss", "Pss", "Private_Dirty")}


def peak() -> float:
    """Return the most memory of this process so far, in MB; `getrusage` would count what started it, too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def as_it_is(batch: Any) -> Any:
    """Return a batch: torch's own function would look at every element."""
    return batch


def dict_of_lists(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Make a batch for others as equitar does."""
    return {name: [sample[name] for sample in samples] for name in ("__key__", *FIELDS)}


def samples_in(batches: Iterable[Mapping[str, Any]]) -> int:
    """Count the samples of batches."""
    return sum(len(batch["__key__"]) for batch in batches)


def number(value: float) -> str:
    """Return a figure with about three digits.

    >>> number(123456.7), number(12.34), number(0.01234)
    ('123,457', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_figures(title: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table of figures: a row for each name, a column for each metric."""
    metrics = list(dict.fromkeys(metric for each in figures.values() for metric in each))
    rows = [
        [name, *(number(each[metric]) if metric in each else "" for metric in metrics)]
        for name, each in figures.items()
    ]
    print_table(title, ["", *metrics], rows)


def print_table(title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    print(f"\n{title}")
    for row in (heading, *rows):
        print(row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))
