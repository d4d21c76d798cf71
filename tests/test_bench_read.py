"""The benchmarks that share `measure.py`, at a tiny size: they run, every contender reads, and the figures are written down."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from shards import let_webdataset_close

# webdataset leaves its files to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _webdataset_closes() -> Iterator[None]:
    yield
    let_webdataset_close()


def written(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> list[dict[str, str]]:
    """Run a benchmark at its tiny size and return the lines of its CSV."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(folder), "--tiny"])
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
