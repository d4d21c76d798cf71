"""Labels are made as before unless other ones are asked for, and a wrong place of labels is found at the first shard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import equitar
from equitar.cli.app import main
from equitar.errors import LabelError, ShardError
from equitar.indexing.index import check
from equitar.indexing.source_job import SourceReport
from equitar.sidecars.sidecar import read_sidecar
from equitar.sidecars.summary import load_summary
from equitar.sources import Source
from helpers.labelled_shards import named_rows, rows, shard, sidecar_of, tar


def source_of(folder: Path) -> Source:
    return Source("s", f"{folder}/*.tar", root=str(folder))


def run(folder: Path, **more: Any) -> SourceReport:
    return equitar.index(source_of(folder), jobs=1, progress=False, **more).sources[0]


def command(*words: str) -> Result:
    return CliRunner().invoke(main, ["index", *words, "--quiet"])


def write(folder: Path, *labels: str, begin: int = 0) -> None:
    for number, label in enumerate(labels, start=begin):
        shard(folder / f"x-{number}.tar", [label])


def counts(folder: Path) -> dict[int, int]:
    summary = load_summary(source_of(folder))
    assert summary.label_counts is not None
    totals: dict[int, int] = {}
    for class_id, count in zip(summary.label_counts.ids.tolist(), summary.label_counts.counts.tolist(), strict=True):
        totals[class_id] = totals.get(class_id, 0) + count
    return totals


# ---------------------------------------------------------------- labels stay


@pytest.mark.parametrize("force", [False, True])
def test_a_changed_shard_is_labelled_as_before(tmp_path: Path, force: bool) -> None:
    write(tmp_path, "0", "1")
    run(tmp_path, labels="cls")
    shard(tmp_path / "x-1.tar", ["7", "7"])
    report = run(tmp_path, force=force)
    assert report.written == (2 if force else 1)
    assert rows(sidecar_of(tmp_path / "x-1.tar")) == [[7], [7]]
    assert counts(tmp_path) == {0: 1, 7: 2}
    assert check(source_of(tmp_path), jobs=1, progress=False) == []


def test_a_new_shard_is_labelled_as_the_others(tmp_path: Path) -> None:
    write(tmp_path, "cat")
    run(tmp_path, labels="cls")
    write(tmp_path, "ant", begin=1)
    assert run(tmp_path).written == 1
    assert named_rows(sidecar_of(tmp_path / "x-1.tar")) == [["ant"]]
    assert load_summary(source_of(tmp_path)).class_names == ((0, 1), ("cat", "ant"))


def test_the_policy_for_missing_labels_and_the_vocabulary_are_remembered(tmp_path: Path) -> None:
    write(tmp_path, "cat", "dog")
    run(tmp_path, labels="cls", missing="empty", classes=["dog", "cat"])
    (tmp_path / "x-1.tar").write_bytes(tar({"a": {"jpg": b"image"}, "b": {"cls": b"cat"}}))
    assert run(tmp_path).written == 1
    assert rows(sidecar_of(tmp_path / "x-1.tar")) == [[], [1]]
    (tmp_path / "x-1.tar").write_bytes(tar({"a": {"jpg": b"image"}, "b": {"cls": b"cow"}}))
    with pytest.raises(ShardError, match="label 'cow' is "):
        run(tmp_path)


def test_a_damaged_sidecar_of_a_changed_shard_is_made_as_the_others_are(tmp_path: Path) -> None:
    write(tmp_path, "0", "1")
    run(tmp_path, labels="cls")
    (tmp_path / "x-1.presence.npz").write_bytes(b"?")
    run(tmp_path)
    assert rows(sidecar_of(tmp_path / "x-1.tar")) == [[1]]


def test_sidecars_that_move_to_a_folder_of_their_own_keep_labels(tmp_path: Path) -> None:
    write(tmp_path, "0", "1")
    run(tmp_path, labels="cls")
    (report,) = equitar.index(
        Source("s", f"{tmp_path}/*.tar", sidecars=str(tmp_path / "side")), jobs=1, progress=False
    ).sources
    assert report.written == 2
    assert rows(read_sidecar(str(tmp_path / "side/x-1.presence.npz"), fix="")) == [[1]]


def test_labels_from_a_file_stay_with_their_keys(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    (tmp_path / "labels.tsv").write_text("x-0-0\tdog\nx-1-0\tcat\nx-1-1\tdog\n")
    run(tmp_path, labels_from=str(tmp_path / "labels.tsv"))
    shard(tmp_path / "x-1.tar", ["another content"])
    assert run(tmp_path).written == 1
    assert named_rows(sidecar_of(tmp_path / "x-1.tar")) == [["cat"]]
    shard(tmp_path / "x-1.tar", ["b", "c"])
    wanted = r"1 of 2 samples of .*x-1\.tar are new, such as 'x-1-1', and labels came from the file 'labels\.tsv'; .*--labels-from"
    with pytest.raises(ShardError, match=wanted):
        run(tmp_path)
    assert named_rows(sidecar_of(tmp_path / "x-1.tar")) == [["cat"]]
    run(tmp_path, labels_from=str(tmp_path / "labels.tsv"))
    assert named_rows(sidecar_of(tmp_path / "x-1.tar")) == [["cat"], ["dog"]]


def test_labels_are_dropped_only_on_request(tmp_path: Path) -> None:
    write(tmp_path, "0", "1")
    run(tmp_path, labels="cls")
    words = f"s={tmp_path}/*.tar"
    assert command(words, "--force").exit_code == 0
    assert load_summary(source_of(tmp_path)).label_counts is not None
    assert command(words, "--no-labels").exit_code == 0
    assert load_summary(source_of(tmp_path)).label_counts is None
    assert run(tmp_path).written == 0
    run(tmp_path, labels="cls")
    assert run(tmp_path, labels=False).written == 2
    assert "either `--no-labels` or labels" in command(words, "--no-labels", "--labels", "cls").output


def test_a_source_without_any_label_is_noted(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar({"a": {"json": b'{"boxes": [{"id": 3}]}'}}))
    assert run(tmp_path, labels="json:boxes[].idd").notes == (
        "no sample has a label; is the place of the labels right?",
    )
    assert run(tmp_path, labels="json:boxes[].id").notes == ()


# ---------------------------------------------------------------- a wrong place


def json_shards(folder: Path, number: int = 20) -> None:
    for shard_number in range(number):
        samples = {
            f"{shard_number}-{row}": {"jpg": b"image", "json": json.dumps({"label": row, "url": "x"}).encode()}
            for row in range(2)
        }
        (folder / f"x-{shard_number:02}.tar").write_bytes(tar(samples))


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("labels", "there", "meant"),
    [
        ("label", "have 'jpg', 'json' ('json' has 'label', 'url')", "json:label"),
        ("json:lable", "their JSON has 'label', 'url'", "json:label"),
        ("jsn", "have 'jpg', 'json'", "json"),
    ],
)
def test_a_wrong_place_of_labels_fails_once_at_the_first_shard(
    tmp_path: Path, labels: str, there: str, meant: str, jobs: str
) -> None:
    json_shards(tmp_path)
    result = command(f"s={tmp_path}/*.tar", "--labels", labels, "--jobs", jobs)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert there in line
    assert f"(did you mean {meant!r}?)" in line
    assert not list(tmp_path.glob("*.npz"))


def test_only_the_first_shards_are_read_where_labels_are_in_the_wrong_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    json_shards(tmp_path)
    from equitar.indexing import shard_task

    walks: list[str] = []
    walked = shard_task._walked

    def counting(shard: shard_task.Shard, *words: Any, **named: Any) -> Any:
        walks.append(shard.path)
        return walked(shard, *words, **named)

    monkeypatch.setattr(shard_task, "_walked", counting)
    with pytest.raises(LabelError, match="did you mean 'json:label'"):
        run(tmp_path, labels="label")
    assert walks == ["x-00.tar"]


def test_a_shard_without_labels_among_others_with_labels_is_an_error_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "0", "1", "2")
    (tmp_path / "x-1.tar").write_bytes(tar({"a": {"jpg": b"image"}}))
    with pytest.raises(
        ShardError, match=r"^1 error in 3 shards: labels are read from field 'cls' but .*x-1\.tar have 'jpg'"
    ):
        run(tmp_path, labels="cls")
    assert (tmp_path / "x-2.presence.npz").exists()
