"""Do statistics say what is in the sources, and what repeats make of it? Against counts over plain lists."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from equitar.errors import SidecarError
from equitar.indexing.index import index
from equitar.loading.builders import debiased
from equitar.planning.repeat_factors import RepeatFactor
from equitar.planning.weights import Passes
from equitar.reporting.plots import plot_stats, require_matplotlib
from equitar.reporting.stats import ClassStats, Stats, stats
from equitar.reporting.text import stats_json, stats_text
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source
from helpers.odd_tars import END, member

Shards = Sequence[Sequence[Iterable[int]]]

LONG_TAIL: Shards = [[[0], [0, 1], [0], []], [[0, 2], [0], [0, 1]], [[0], [0, 3], [0]]]


def source_of(
    folder: Path,
    shards: Shards,
    name: str = "s",
    *,
    labels: str | None = "json:labels",
    classes: Sequence[str] | None = None,
) -> Source:
    (folder / name).mkdir()
    for number, rows in enumerate(shards):
        members = [
            member(f"{number}_{row}.json", json.dumps({"labels": [*labelled]}).encode())
            for row, labelled in enumerate(rows)
        ]
        (folder / name / f"{number}.tar").write_bytes(b"".join(members) + END)
    source = Source(name, f"{folder}/{name}/*.tar")
    index(source, labels=labels, classes=classes, jobs=1, progress=False)
    return source


def classes_of(result: Stats) -> ClassStats:
    assert result.classes is not None
    return result.classes


def naive(shards: Shards, threshold: float, cap: float = np.inf) -> tuple[dict[int, int], dict[int, float], float]:
    """Return samples, expected copies of each class, and of all."""
    rows = [set(labels) for shard in shards for labels in shard]
    counts = {label: sum(label in row for row in rows) for label in set().union(*rows)}
    factor = {label: min(cap, max(1.0, (threshold / (n / len(rows))) ** 0.5)) for label, n in counts.items()}
    of_rows = [max((factor[label] for label in row), default=1.0) for row in rows]
    copies = {label: sum(r for r, row in zip(of_rows, rows, strict=True) if label in row) for label in counts}
    return counts, copies, sum(of_rows)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.4, 1.0])
def test_expected_copies_are_the_sum_of_the_factors_of_the_samples_with_a_class(
    tmp_path: Path, threshold: float, cap: float | None
) -> None:
    result = stats([source_of(tmp_path, LONG_TAIL)], repeat=RepeatFactor(threshold, cap=cap))
    counts, copies, total = naive(LONG_TAIL, threshold, cap or np.inf)
    classes = classes_of(result)
    assert dict(zip(classes.names, classes.samples.tolist(), strict=True)) == {f"s/{c}": n for c, n in counts.items()}
    assert classes.copies == pytest.approx([copies[int(name[2:])] for name in classes.names], abs=1e-4)
    assert result.copies == pytest.approx(total, abs=1e-4)


def test_classes_come_rarest_first_and_those_without_samples_are_a_number(tmp_path: Path) -> None:
    classes = classes_of(stats([source_of(tmp_path, LONG_TAIL, classes=["a", "b", "c", "d", "e", "f"])]))
    assert classes.names == ("c", "d", "b", "a")
    assert classes.samples.tolist() == [1, 1, 2, 9]
    assert classes.without_samples == 2


def test_classes_of_one_name_are_one_class_with_the_samples_of_all_that_know_it(tmp_path: Path) -> None:
    left = source_of(tmp_path, [[[0], [1]]], "left", classes=["cat", "dog"])
    right = source_of(tmp_path, [[[0], [0], [1]]], "right", classes=["dog", "fox"])
    classes = classes_of(stats([left, right], repeat=0.5))
    assert dict(zip(classes.names, classes.samples.tolist(), strict=True)) == {"cat": 1, "fox": 1, "dog": 3}
    assert dict(zip(classes.names, classes.frequency.tolist(), strict=True)) == {
        "cat": 1 / 2,
        "fox": 1 / 3,
        "dog": 3 / 5,
    }
    assert classes.factors is not None
    assert classes.factors == pytest.approx([1, (0.5 * 3) ** 0.5, 1], abs=1e-5)


def test_ids_without_names_stay_apart(tmp_path: Path) -> None:
    both = [source_of(tmp_path, [[[0], [0]]], name) for name in ("left", "right")]
    assert set(classes_of(stats(both)).names) == {"left/0", "right/0"}


def test_what_keep_leaves_out_counts_nowhere(tmp_path: Path) -> None:
    def without_the_first(sidecar: Sidecar) -> list[int]:
        return [0, *[1] * (sidecar.num_rows - 1)]

    whole = source_of(tmp_path, LONG_TAIL)
    kept = Source("s", whole.urls, keep=without_the_first)
    counts, copies, total = naive([shard[1:] for shard in LONG_TAIL], 0.4)
    result = stats([kept], repeat=0.4)
    classes = classes_of(result)
    assert result.samples == 7
    assert result.copies == pytest.approx(total, abs=1e-4)
    assert dict(zip(classes.names, classes.samples.tolist(), strict=True)) == {f"s/{c}": n for c, n in counts.items()}
    assert classes.copies == pytest.approx([copies[int(name[2:])] for name in classes.names], abs=1e-4)


def test_shares_and_passes_of_batches_are_those_of_their_plan(tmp_path: Path) -> None:
    sources = [source_of(tmp_path, [[[0]] * 8], "a"), source_of(tmp_path, [[[0]] * 24], "b")]
    batches = debiased(sources, batch_size=4, weights=Passes({"a": 3, "b": 1}), rank=0, world_size=1)
    result = stats(batches)
    assert [(source.passes, source.copies) for source in result.sources] == [(3, 24), (1, 24)]
    assert [(source.share_before, source.share_after) for source in result.sources] == [(0.25, 0.5), (0.75, 0.5)]
    assert classes_of(result).copies.tolist() == [24, 24]


def test_a_function_of_repeats_has_no_factor_of_a_class(tmp_path: Path) -> None:
    result = stats([source_of(tmp_path, LONG_TAIL)], repeat=lambda sidecar: np.full(sidecar.num_rows, 2.5))
    assert classes_of(result).factors is None
    assert result.copies == 25
    assert result.repeat == "by a function"
    assert "s/3" in stats_text(result, None)


def test_samples_that_repeats_drop_are_gone_and_medians_are_told(tmp_path: Path) -> None:
    result = stats([source_of(tmp_path, LONG_TAIL)], repeat=RepeatFactor("median", empty="drop"))
    assert result.samples == 9
    assert result.repeat == "threshold median, samples without labels dropped"
    assert result.copies > 9


def test_factors_below_one_are_told_too(tmp_path: Path) -> None:
    halved = RepeatFactor(heuristic=lambda frequency: frequency * 0 + 0.5)
    result = stats([source_of(tmp_path, [[[0], [1]], [[0]]])], repeat=halved)
    classes = classes_of(result)
    assert classes.factors is not None
    assert (classes.factors.tolist(), classes.copies.tolist()) == ([0.5, 0.5], [0.5, 1.0])


def test_a_source_without_labels_has_samples_and_no_classes(tmp_path: Path) -> None:
    bare = source_of(tmp_path, [[[0], [1]]], "bare", labels=None)
    result = stats([bare])
    assert result.classes is None
    assert (result.samples, result.sources[0].labels) == (2, None)
    assert "indexed without labels" in stats_text(result, None)
    with pytest.raises(SidecarError, match="`repeat` needs labels but source 'bare' was indexed without"):
        stats([bare], repeat=0.1)


def test_without_repeats_no_sidecar_is_opened(tmp_path: Path) -> None:
    source = source_of(tmp_path, LONG_TAIL)
    for sidecar in tmp_path.rglob("*.presence.npz"):
        sidecar.unlink()
    assert stats([source]).samples == 10


def test_json_and_text_name_the_same_numbers(tmp_path: Path) -> None:
    result = stats([source_of(tmp_path, [[[index] for index in range(30) for _ in range(index + 1)]])], repeat=0.05)
    printed = json.loads(json.dumps(stats_json(result)))
    assert [row["name"] for row in printed["classes"]] == [f"s/{index}" for index in range(30)]
    assert [row["samples"] for row in printed["classes"]] == [*range(1, 31)]
    text = stats_text(result, "there.png")
    for words in ("465 samples", "30 with samples", "rarest   1 samples (s/0)", "s/29", "...", "there.png"):
        assert words in text
    assert "s/15" not in text


@pytest.mark.parametrize("num_classes", [3, 1203])
def test_a_plot_is_drawn_without_the_state_of_pyplot(tmp_path: Path, num_classes: int) -> None:
    shards = [[[label] for label in range(num_classes)], [[0, 1], [1]]]
    result = stats([source_of(tmp_path, shards, "a"), source_of(tmp_path, [[[0]]], "b")], repeat=0.5)
    before = {name for name in sys.modules if name == "matplotlib.pyplot"}
    plot_stats(result, f"{tmp_path}/plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert {name for name in sys.modules if name == "matplotlib.pyplot"} == before


def test_sources_without_labels_are_plotted_too(tmp_path: Path) -> None:
    plot_stats(stats([source_of(tmp_path, [[[0]]], labels=None)]), f"{tmp_path}/plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 1000


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match=r"pip install 'equitar\[plot\]'"):
        require_matplotlib()


def test_statistics_of_sources_load_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    source = source_of(tmp_path, LONG_TAIL)
    program = (
        f"import sys, equitar; equitar.stats([equitar.Source('s', {source.urls!r})], repeat=0.1); "
        "print(*{'torch', 'webdataset', 'matplotlib'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
