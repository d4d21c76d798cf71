"""The benchmarks at a tiny size: they run, every contender reads, and the figures are written down."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

import measure
import plots
from helpers.shards import let_webdataset_close

# webdataset leaves its files to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _webdataset_closes() -> Iterator[None]:
    yield
    let_webdataset_close()


def written(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *more: str) -> list[dict[str, str]]:
    """Run a benchmark at its tiny size and return the lines of its CSV."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(folder), "--tiny", *more])
    import_module(name).main()
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["value"]) > 0 for row in rows if row["metric"].endswith("/s"))
    return rows


@pytest.mark.parametrize(
    ("name", "contenders"),
    [
        ("bench_read", {"wds", "raw", "equitar", "debiased", "mixed"}),
        ("bench_loader", {"wds", "equitar pipe", "equitar", "equitar views"}),
        ("bench_index", {"wds", "index", "tar_samples", "check"}),
    ],
)
def test_each_size_is_measured_beside_webdataset(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    contenders: set[str],
) -> None:
    rows = written(monkeypatch, tmp_path, name)
    assert {row["contender"] for row in rows} >= contenders
    assert {row["case"] for row in rows} == {"4 KB", "60 KB", "1 MB"}
    assert "x wds" in capsys.readouterr().out


def test_tensors_come_through_workers_as_from_webdataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = written(monkeypatch, tmp_path, "bench_tensors")
    assert {(row["case"], row["contender"]) for row in rows} >= {
        (case, contender) for case in ("jpeg", "floats") for contender in ("wds", "wds default", "equitar views")
    }


def test_few_samples_are_read_before_the_first_batch_and_reading_goes_on_beside_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = written(monkeypatch, tmp_path, "bench_first")
    value = {(row["contender"], row["metric"]): float(row["value"]) for row in rows}
    assert 0 < value["debiased", "samples"] < 2 * 8
    assert value["both", "ms a step"] < value["reading, no read_ahead", "ms a step"]


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("bench_plan", {"worker s", "resume s", "sums s", "read s"}),
        ("bench_memory", {"Pss last MB"}),
        ("bench_sidecars", {"peak MB"}),
    ],
)
def test_what_is_measured_in_processes_of_its_own_is_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, metrics: set[str]
) -> None:
    rows = written(monkeypatch, tmp_path, name)
    assert metrics <= {row["metric"] for row in rows}
    assert all(float(row["value"]) > 0 for row in rows if row["metric"] in metrics)


def test_resuming_is_measured_at_the_start_middle_and_end_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = written(monkeypatch, tmp_path, "bench_resume")
    states = {(row["contender"], row["case"]): float(row["value"]) for row in rows if row["metric"] == "state bytes"}
    assert states.keys() == {
        (repeats, where) for repeats in ("no repeats", "repeats") for where in ("start", "middle", "end")
    }
    assert max(states.values()) < 1000


@pytest.mark.slow
def test_samplers_are_measured_by_what_they_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = written(monkeypatch, tmp_path, "bench_samplers")
    assert [float(row["value"]) >= 2900 for row in rows if row["metric"] == "copies"] == [True]


def test_a_refusal_names_the_largest_batch_size_for_every_kind_of_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = written(monkeypatch, tmp_path, "bench_refusals")
    named = {row["contender"]: float(row["value"]) for row in rows if row["metric"] == "batch_size named"}
    assert named["by size"] == 300  # what the smallest of its sources has
    assert all(0 < size <= 300 for size in named.values())


def test_a_changed_run_is_measured_by_what_comes_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = written(monkeypatch, tmp_path, "bench_restart")
    assert {float(row["value"]) for row in rows if row["metric"] == "seen again %"} == {0.0}
    assert {float(row["value"]) > 0 for row in rows if row["metric"] == "given up"} == {True}


def test_offsets_are_measured_on_disk_and_over_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = written(monkeypatch, tmp_path, "bench_offsets")
    seconds = {row["contender"] for row in rows if row["metric"] == "seconds"}
    assert seconds == {"disk", "disk + offsets", "http, 0 s a request", "http + offsets, 0 s a request"}


def test_what_is_under_way_does_not_grow_with_the_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = written(monkeypatch, tmp_path, "bench_many", "--at-once", "2")
    under_way = {row["case"]: float(row["value"]) for row in rows if row["metric"] == "under way"}
    assert under_way == {"20 shards": 8, "40 shards": 8}


def test_the_time_of_a_sample_is_shared_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(monkeypatch, tmp_path, "bench_costs")
    printed = capsys.readouterr().out
    for reader, num_parts in (("equitar", 5), ("webdataset", 4)):
        metric = f"{reader}: microseconds a sample"
        parts = [float(row["value"]) for row in rows if (row["case"], row["metric"]) == ("4 KB", metric)]
        assert len(parts) == num_parts
        assert f"{reader}: {sum(parts):.1f} microseconds" in printed


def test_every_csv_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    book = measure.Book()
    for case, contender in (("4 KB", "wds"), ("4 KB", "equitar"), ("1 MB", "wds")):
        book.note(case, contender, "samples/s", 1.0, 3.0, 2.0)
    book.write(tmp_path / "bench_drawn.csv")
    monkeypatch.setattr(sys, "argv", ["plots.py", str(tmp_path)])
    plots.main()
    assert (tmp_path / "bench_drawn.png").read_bytes().startswith(b"\x89PNG")
    result = plots.read(tmp_path / "bench_drawn.csv")
    assert result["samples/s"]["4 KB"] == {"wds": [1.0, 3.0, 2.0], "equitar": [1.0, 3.0, 2.0]}


def test_rounds_take_turns_and_the_first_is_not_counted() -> None:
    ran: list[str] = []

    def run(name: str) -> int:
        ran.append(name)
        return 7

    runs = {name: partial(run, name) for name in ("a", "b")}
    result = measure.alternate(runs, 2)
    assert ran == ["a", "b"] * 3
    assert {name: [timing.samples for timing in took] for name, took in result.items()} == {"a": [7, 7], "b": [7, 7]}


def test_ratios_are_those_of_medians(capsys: pytest.CaptureFixture[str]) -> None:
    book = measure.Book()
    book.note("c", "wds", "samples/s", 100.0, 300.0, 200.0)
    book.note("c", "equitar", "samples/s", 900.0, 500.0, 600.0)
    book.show("c", "samples/s", "wds", title="t")
    assert capsys.readouterr().out.splitlines()[-1].split() == ["equitar", "600", "900", "3.00"]
