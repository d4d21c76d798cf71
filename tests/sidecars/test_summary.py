"""Does a summary say what the sidecars say, for just the shards that are asked for?"""

from __future__ import annotations

import dataclasses
import io
import json
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from equitar.errors import SidecarError
from equitar.presence import Presence
from equitar.sidecars.container import pack, unpack
from equitar.sidecars.sidecar import ClassNames, Sidecar, sidecar_of, to_bytes, write_sidecar
from equitar.sidecars.summary import Summary, from_bytes, load_summary, summary_of, write_summary
from equitar.sources import Source
from equitar.storage.listing import expand, sidecar_url
from equitar.tar.table import member_table
from equitar.tar.walk import walk
from helpers import odd_tars
from helpers.odd_tars import member

NAMES: ClassNames = ((3, 7), ("cat", "dog"))


def _sidecar(labels: list[list[int]] | None, rows: int = 2, class_names: ClassNames | None = None) -> Sidecar:
    num_rows = rows if labels is None else len(labels)
    raw = b"".join(member(f"{row}.jpg", b"x" * row) for row in range(num_rows)) + odd_tars.END
    table = member_table(walk(io.BytesIO(raw), size=len(raw), where="x.tar"), "x.tar")
    presence = None if labels is None else Presence.of(labels)
    return sidecar_of(table, shard_size=len(raw), presence=presence, class_names=class_names, label_spec="cls")


SIDECARS = {"b.tar": _sidecar([[7], [3, 7, 7]]), "a/x.tar": _sidecar([[]]), "c.tar": _sidecar([[-1], [7], [7]])}


def _written(folder: Path, sidecars: dict[str, Sidecar] | None = None) -> Source:
    """Return a source whose sidecars are written; its shards need not be there."""
    sidecar_of_path = SIDECARS if sidecars is None else sidecars
    source = Source("s", [f"{folder}/{path}" for path in sidecar_of_path], root=str(folder))
    for path, sidecar in sidecar_of_path.items():
        write_sidecar(sidecar_url(expand(source), path), sidecar)
    return source


def _facts(summary: Summary) -> dict[str, Any]:
    counts = summary.label_counts
    assert counts is not None
    return {
        path: (int(summary.num_samples[row]), int(summary.shard_sizes[row]), summary.digests[row],
               dict(zip(counts.labels(row).tolist(), counts.counts[counts.indptr[row] :].tolist(), strict=False)))
        for row, path in enumerate(summary.paths)
    }  # fmt: skip


FACTS = {
    "a/x.tar": (1, SIDECARS["a/x.tar"].shard_size, SIDECARS["a/x.tar"].digest, {}),
    "b.tar": (2, SIDECARS["b.tar"].shard_size, SIDECARS["b.tar"].digest, {3: 1, 7: 2}),
    "c.tar": (3, SIDECARS["c.tar"].shard_size, SIDECARS["c.tar"].digest, {-1: 1, 7: 2}),
}


def test_counts_are_of_samples_and_shards_are_sorted() -> None:
    summary = summary_of(list(SIDECARS), iter(SIDECARS.values()))
    assert summary.paths == ("a/x.tar", "b.tar", "c.tar")
    assert _facts(summary) == FACTS


def test_the_digest_depends_on_content_and_not_on_order() -> None:
    digest = summary_of(list(SIDECARS), SIDECARS.values()).digest
    assert summary_of(list(SIDECARS)[::-1], list(SIDECARS.values())[::-1]).digest == digest
    named = [dataclasses.replace(sidecar, class_names=NAMES) for sidecar in SIDECARS.values()]
    assert summary_of(list(SIDECARS), named).digest != digest
    assert summary_of(["b.tar"], [SIDECARS["b.tar"]]).digest != digest


@pytest.mark.parametrize(
    ("sidecars", "message"),
    [
        ({"a.tar": _sidecar([[1]]), "b.tar": _sidecar(None)}, "1 of 2 shards have no labels, such as 'b.tar', but others have"),
        ({"a.tar": _sidecar([[3]], class_names=NAMES), "b.tar": _sidecar([[3]])}, "'b.tar' has other class names than 'a.tar'"),
        ({"a.tar": _sidecar([[3]], class_names=NAMES), "b.tar": _sidecar([[3]], class_names=((3, 7), ("dog", "cat")))},
         "'b.tar' has other class names than 'a.tar', but a class needs one id; run `equitar index`"),
    ],
)  # fmt: skip
def test_shards_of_a_source_agree_on_labels(sidecars: dict[str, Sidecar], message: str) -> None:
    with pytest.raises(SidecarError, match=rf"^{message}"):
        summary_of(list(sidecars), sidecars.values())


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_written_summary_comes_back(tmp_path: Path, mirrored: bool) -> None:
    side = tmp_path / "side"
    source = Source("coco 2017/val", str(tmp_path / "{a/x,b,c}.tar"), sidecars=str(side) if mirrored else None)
    summary = summary_of(
        list(SIDECARS), [dataclasses.replace(sidecar, class_names=NAMES) for sidecar in SIDECARS.values()]
    )
    url = write_summary(source, expand(source), summary)
    assert Path(url).parent == (side if mirrored else tmp_path)
    assert Path(url).name == f"coco%202017%2Fval.{summary.digest[:16]}.summary.npz"
    again = load_summary(source)
    assert _facts(again) == FACTS
    assert again.digest == summary.digest
    assert again.class_names == NAMES


def test_without_labels_there_are_no_counts(tmp_path: Path) -> None:
    source = _written(tmp_path, {"a.tar": _sidecar(None), "b.tar": _sidecar(None, rows=5)})
    write_summary(source, expand(source), load_summary(source))
    again = load_summary(source)
    assert again.label_counts is None
    assert again.num_samples.tolist() == [2, 5]


def test_a_summary_is_restricted_to_the_shards_of_the_source(tmp_path: Path) -> None:
    source = _written(tmp_path)
    write_summary(source, expand(source), load_summary(source))
    for paths in (["c.tar"], ["a/x.tar", "c.tar"], ["c.tar", "b.tar"]):
        part = dataclasses.replace(source, urls=[f"{tmp_path}/{path}" for path in paths])
        assert _facts(load_summary(part)) == {path: FACTS[path] for path in sorted(paths)}


def test_without_a_summary_the_sidecars_serve(tmp_path: Path) -> None:
    assert _facts(load_summary(_written(tmp_path))) == FACTS
    assert not list(tmp_path.glob("*.summary.*"))


def test_sidecars_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    together = threading.Barrier(3, timeout=20)
    cat_file = type(files).cat_file

    def slow(self: Any, path: str) -> Any:
        if path.endswith(".presence.npz"):
            together.wait()  # breaks unless all three are asked for at once
        return cat_file(self, path)

    for path, sidecar in SIDECARS.items():
        files.pipe_file(f"/side/{path.removesuffix('.tar')}.presence.npz", to_bytes(sidecar))
    monkeypatch.setattr(type(files), "cat_file", slow)
    assert _facts(load_summary(Source("s", "memory://d/{b,a/x,c}.tar", sidecars="memory://side"))) == FACTS
    files.rm("/side", recursive=True)


def test_a_missing_sidecar_is_an_error_with_the_command(tmp_path: Path) -> None:
    source = dataclasses.replace(_written(tmp_path), urls=str(tmp_path / "{a/x,b,c,d}.tar"))
    with pytest.raises(
        SidecarError, match=r"d\.presence\.npz is missing .* run `equitar index 's=.*/\{a/x,b,c,d\}\.tar' --root .*`"
    ):
        load_summary(source)


def test_a_source_that_grew_needs_indexing_and_the_old_summary_stays(tmp_path: Path) -> None:
    source = _written(tmp_path)
    old = load_summary(source)
    write_summary(source, expand(source), old)
    grown = dataclasses.replace(source, urls=str(tmp_path / "{a/x,b,c,d,e}.tar"))
    with pytest.raises(
        SidecarError, match=r"source 's' does not cover 2 of 5 shards, such as 'd\.tar'; run `equitar index"
    ):
        load_summary(grown)
    new = summary_of([*SIDECARS, "d.tar", "e.tar"], [*SIDECARS.values(), _sidecar([[5]]), _sidecar([[]])])
    write_summary(grown, expand(grown), new)
    assert load_summary(grown).digest == new.digest
    assert _facts(load_summary(source)) == FACTS
    assert load_summary(source, digest=old.digest).digest == old.digest
    assert _facts(load_summary(grown, digest=old.digest)) == FACTS


def test_a_pointer_to_a_summary_that_is_gone_is_an_error(tmp_path: Path) -> None:
    source = _written(tmp_path)
    summary = load_summary(source)
    Path(write_summary(source, expand(source), summary)).unlink()
    with pytest.raises(
        SidecarError, match=rf"s\.{summary.digest[:16]}\.summary\.npz, a summary of 's', is missing; run `equ"
    ):
        load_summary(source)
    with pytest.raises(SidecarError, match=r"s\.0000000000000000\.summary\.npz, a summary of 's', is missing"):
        load_summary(source, digest="0" * 32)


@pytest.mark.parametrize(
    ("pointer", "message"),
    [
        (b"", "its `meta` is not JSON"),
        (b"{}", "its format is .* but must be"),
        (b'{"format":"equitar summary pointer","version":2}', "'version': 2}? but must be"),
        (b'{"format":"equitar summary pointer","version":1}', "has no 'summary'"),
        (
            b'{"format":"equitar summary pointer","version":1,"summary":"../x.0.summary.npz"}',
            "which is not the name of a summary",
        ),
        (b'{"format":"equitar summary pointer","version":1,"summary":7}', "which is not the name of a summary"),
    ],
)
def test_a_damaged_pointer_is_an_error(tmp_path: Path, pointer: bytes, message: str) -> None:
    source = _written(tmp_path)
    (tmp_path / "s.summary.json").write_bytes(pointer)
    with pytest.raises(SidecarError, match=rf"s\.summary\.json .*{message}.*; run `equitar index"):
        load_summary(source)


def test_a_summary_under_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    source = _written(tmp_path)
    url = Path(write_summary(source, expand(source), load_summary(source)))
    other = summary_of(["a/x.tar", "b.tar", "c.tar"], [_sidecar([[1]])] * 3)
    moved = Path(write_summary(source, expand(source), other))
    moved.replace(url)
    with pytest.raises(SidecarError, match=rf"holds the summary {other.digest}, which its name contradicts"):
        load_summary(source, digest=url.name.split(".")[-3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": np.array([1, 2])}, "its columns have other lengths than its 3 paths"),
        ({"digests": np.array([1, 2])}, "its columns have other lengths"),
        ({"num_samples": np.array([1, 2, -3])}, "more samples than fit into its bytes"),
        ({"num_samples": np.array([1, 2, 1 << 40])}, "more samples than fit into its bytes"),
        ({"shard_labels": np.array([2, 2]), "label_ids": np.array([1, 2, 1, 2])}, "its columns have other lengths"),
        ({"path_lengths": np.array([1, 2, 3])}, "its texts have"),
        ({"label_ids": np.array([7, 7, 7, 7])}, "label ids must rise"),
        ({"more": np.array([1])}, "it holds .*more but must hold"),
        ({"meta": np.frombuffer(b'{"format":"equitar summary","version":9}', np.uint8)}, "'version': 9"),
        ({"meta": np.frombuffer(b'{"format":"equitar summary","version":1}', np.uint8)}, "has no 'class_ids'"),
    ],
)
def test_a_damaged_summary_is_a_sidecar_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    source = _written(tmp_path)
    arrays = unpack(Path(write_summary(source, expand(source), load_summary(source))).read_bytes())
    with pytest.raises(SidecarError, match=rf"^x is damaged: .*{message}.*; fix it$"):
        from_bytes(pack(arrays | changes), where="x", fix="fix it")


def test_a_golden_digest_is_kept() -> None:
    assert summary_of(list(SIDECARS), SIDECARS.values()).digest == "bb36cb2a0021b3e5cbae46ca89624e88"


def test_the_pointer_is_readable(tmp_path: Path) -> None:
    source = _written(tmp_path)
    url = write_summary(source, expand(source), load_summary(source))
    assert json.loads((tmp_path / "s.summary.json").read_bytes()) == {
        "format": "equitar summary pointer",
        "version": 1,
        "summary": Path(url).name,
    }
