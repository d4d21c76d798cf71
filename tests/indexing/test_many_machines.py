"""Many runs, one index: parts that know nothing of each other, sources that grow, shards that are not there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import equitar
from equitar.cli.app import main
from equitar.errors import ShardError, SidecarError
from equitar.indexing.index import IndexReport
from equitar.indexing.source_job import jobs_of_sources, keep_part
from equitar.sidecars.summary import load_summary
from equitar.sources import Source
from helpers.labelled_shards import named_rows, shard, sidecar_of

NAMES = ["dog", "cat", "ant", "bee", "cow", "elk", "fox"]


def words(folder: Path, *more: str) -> list[str]:
    return [f"s={folder}/x-{{000..006}}.tar", "--quiet", *more]


def command(*line: str, environment: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [*line], env=environment)


def seven(folder: Path) -> Source:
    """Write seven shards, each with a class of its own."""
    for number, name in enumerate(NAMES):
        shard(folder / f"x-{number:03}.tar", [name, "dog"])
    return Source("s", f"{folder}/x-{{000..006}}.tar", root=str(folder))


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".tar"}


def index(source: Source | Sequence[Source], **more: Any) -> IndexReport:
    return equitar.index(source, jobs=1, progress=False, **more)


# ---- parts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 9])
def test_parts_are_all_shards_disjoint_and_even_in_whatever_order_they_are_listed(tmp_path: Path, parts: int) -> None:
    first = seven(tmp_path / "a")
    second = Source("t", [f"{tmp_path}/b/{number}.tar" for number in range(4)], root=str(tmp_path / "b"))
    covered: list[list[tuple[str, str]]] = []
    for sources in ([first, second], [Source("t", [*second.urls][::-1], root=second.root), first]):
        taken = []
        for part in range(parts):
            ledgers = jobs_of_sources(sources)
            keep_part(ledgers, part, parts)
            taken.append(sorted((shard.source, shard.path) for ledger in ledgers for shard in ledger.shards))
        covered.append([shard for shards in taken for shard in shards])
        assert len(covered[-1]) == len(set(covered[-1])) == 11
        assert max(map(len, taken)) - min(map(len, taken)) <= 1
    assert covered[0] == covered[1]


def test_parts_and_a_summary_are_what_one_run_writes(tmp_path: Path) -> None:
    whole, parted = seven(tmp_path / "whole"), seven(tmp_path / "parted")
    index(whole, labels="cls")
    for part in (2, 0, 1):
        report = index(parted, labels="cls", part=(part, 3)).sources[0]
        assert report.written == len(range(part, 7, 3))
        assert report.summary is None
    assert not list((tmp_path / "parted").glob("*.summary.*"))
    (report,) = equitar.summarize(parted, jobs=1, progress=False).sources
    assert (report.samples, report.summary) == (14, load_summary(whole).digest)
    assert written(tmp_path / "parted") == written(tmp_path / "whole")
    assert named_rows(sidecar_of(tmp_path / "parted" / "x-002.tar")) == [["ant"], ["dog"]]


def test_a_summary_needs_no_tar(tmp_path: Path) -> None:
    source = seven(tmp_path)
    index(source, labels="cls", part=(0, 1))
    for path in tmp_path.glob("*.tar"):
        path.unlink()
    equitar.summarize(source, jobs=1, progress=False)
    assert load_summary(source).num_samples.tolist() == [2] * 7


def test_missing_sidecars_are_listed_with_the_command_that_makes_them(tmp_path: Path) -> None:
    source = seven(tmp_path)
    index(source, labels="cls", missing="empty", part=(1, 3))
    with pytest.raises(ShardError) as caught:
        equitar.summarize(source, jobs=1, progress=False)
    first, *rows, mend = str(caught.value).splitlines()
    assert first == "5 errors in 7 shards:"
    assert [row.partition(" ")[0] for row in map(str.strip, rows)] == [
        f"{tmp_path}/x-{number:03}.tar:" for number in (0, 2, 3, 5, 6)
    ]
    assert mend.strip() == f"run `equitar index 's={source.urls}' --root {tmp_path} --labels cls --missing empty`"
    assert all(row.endswith(".presence.npz is missing but every shard needs a sidecar") for row in rows)


def test_a_run_over_all_finishes_what_parts_began(tmp_path: Path) -> None:
    whole, parted = seven(tmp_path / "whole"), seven(tmp_path / "parted")
    index(whole, labels="cls")
    index(parted, labels="cls", part=(1, 3))
    assert index(parted, labels="cls").sources[0].written == 5
    assert written(tmp_path / "parted") == written(tmp_path / "whole")


def test_a_run_that_was_stopped_gives_names_the_ids_they_would_have_had(tmp_path: Path) -> None:
    whole, stopped = seven(tmp_path / "whole"), seven(tmp_path / "stopped")
    index(whole, labels="cls")
    index(Source("s", f"{tmp_path}/stopped/x-003.tar"), labels="cls", part=(0, 1))
    index(stopped, labels="cls")
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


def test_names_keep_their_ids_when_a_source_grows_in_parts(tmp_path: Path) -> None:
    source = seven(tmp_path)
    index(source, labels="cls")
    before = load_summary(source).class_names
    assert before is not None
    grown = Source("s", f"{tmp_path}/x-*.tar", root=str(tmp_path))
    for number, name in ((7, "auk"), (8, "bat")):
        shard(tmp_path / f"x-{number:03}.tar", [name, "dog"])
    for part in range(2):
        index(grown, labels="cls", part=(part, 2))
    equitar.summarize(grown, jobs=1, progress=False)
    after = load_summary(grown).class_names
    assert after is not None
    assert after[1] == (*before[1], "auk", "bat")


def test_a_part_says_nothing_of_labels_that_other_parts_take(tmp_path: Path) -> None:
    source = seven(tmp_path)
    keys = [f"x-{number:03}-{row}" for number in range(7) for row in range(2)]
    (tmp_path / "labels.tsv").write_text("".join(f"{key}\t3\n" for key in keys))
    report = index(source, labels_from=str(tmp_path / "labels.tsv"), part=(0, 2)).sources[0]
    assert [note.partition(" joined")[0] for note in report.notes] == ["8 samples"]


def test_a_task_of_a_slurm_array_takes_its_part(tmp_path: Path) -> None:
    source = seven(tmp_path)
    array = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "1"}
    for task, shards in (("1", 4), ("2", 3)):
        environment = {**array, "SLURM_ARRAY_TASK_ID": task}
        result = command("index", *words(tmp_path), "--part", "slurm", environment=environment)
        assert result.output.splitlines()[1].split()[:2] == ["s", str(shards)], result.output
    assert command("summarize", *words(tmp_path)).exit_code == 0
    assert load_summary(source).num_samples.sum() == 14


@pytest.mark.parametrize(
    ("part", "environment", "exit_code", "message"),
    [
        ("3/3", {}, 2, "must be I/N with 0 <= I < N"),
        ("1", {}, 2, "must be I/N"),
        ("slurm", {}, 1, "SLURM_ARRAY_TASK_ID is not set"),
        (
            "slurm",
            {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"},
            1,
            "got task 9 of 3 from 1 by 1",
        ),
    ],
)
def test_a_part_that_cannot_be_is_told(
    tmp_path: Path, part: str, environment: dict[str, str], exit_code: int, message: str
) -> None:
    seven(tmp_path)
    result = command("index", *words(tmp_path), "--part", part, environment=environment)
    assert (result.exit_code, message in result.output) == (exit_code, True), result.output
    assert not list(tmp_path.glob("*.npz"))


# ---- shards that are not there -------------------------------------------------------------------------------------------


def lose(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"x-{number:03}.tar").unlink()


def test_a_shard_that_a_pattern_names_must_be_there(tmp_path: Path) -> None:
    seven(tmp_path)
    lose(tmp_path, 2, 5)
    result = command("index", *words(tmp_path))
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "2 of 7 shards are missing: 'x-002.tar', 'x-005.tar'; " in line
    assert "`--missing-shards skip`" in line
    assert not list(tmp_path.glob("*.summary.*"))


def test_of_many_missing_shards_some_are_named_and_all_are_counted(tmp_path: Path) -> None:
    shard(tmp_path / "x-00.tar", ["a"])
    with pytest.raises(ShardError, match=r"98 of 99 shards are missing: 'x-01.tar', .* and 88 more; "):
        index(Source("s", f"{tmp_path}/x-{{00..98}}.tar", root=str(tmp_path)))


def test_shards_left_out_are_named_and_training_leaves_them_out_too(tmp_path: Path) -> None:
    source = seven(tmp_path)
    lose(tmp_path, 2, 5)
    result = command("index", *words(tmp_path, "--missing-shards", "skip"))
    assert result.exit_code == 0, result.output
    assert "s: 2 missing, left out: 'x-002.tar', 'x-005.tar'" in result.output.splitlines()
    batches = equitar.debiased([source], batch_size=2, rank=0, world_size=1)
    assert {key[:5] for batch in batches for key in batch["__key__"]} == {
        f"x-{number:03}" for number in (0, 1, 3, 4, 6)
    }
    assert equitar.check(source, jobs=1, progress=False) == []
    with pytest.raises(SidecarError, match=r"does not cover 1 of 8 shards, such as 'x-007\.tar'"):
        load_summary(Source("s", f"{tmp_path}/x-{{000..007}}.tar", root=str(tmp_path)))


def test_a_shard_that_comes_back_is_taken_in(tmp_path: Path) -> None:
    source = seven(tmp_path)
    lose(tmp_path, 2)
    index(source, missing_shards="skip")
    assert load_summary(source).skipped == ("x-002.tar",)
    seven(tmp_path)
    report = index(source, missing_shards="skip").sources[0]
    assert (report.missing, report.added) == ((), ("x-002.tar",))
    assert load_summary(source).skipped == ()


def test_a_summary_in_parts_knows_missing_shards_from_missing_sidecars(tmp_path: Path) -> None:
    source = seven(tmp_path)
    lose(tmp_path, 2, 5)
    index(source, part=(0, 2), missing_shards="skip")
    with pytest.raises(ShardError, match="2 errors in 7 shards"):  # x-001 and x-003
        equitar.summarize(source, jobs=1, progress=False, missing_shards="skip")
    index(source, part=(1, 2), missing_shards="skip")
    with pytest.raises(ShardError, match="2 of 7 shards are missing"):
        equitar.summarize(source, jobs=1, progress=False)
    (report,) = equitar.summarize(source, jobs=1, progress=False, missing_shards="skip").sources
    assert (report.missing, report.samples) == (("x-002.tar", "x-005.tar"), 10)


def test_that_no_shard_is_there_is_an_error_under_skip_too(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="1 of 1 shards are missing"):
        index(Source("s", f"{tmp_path}/x.tar"), missing_shards="skip")


def test_numbers_that_jump_in_a_glob_are_reported(tmp_path: Path) -> None:
    seven(tmp_path)
    lose(tmp_path, 2)
    globbed = [f"s={tmp_path}/x-*.tar", "--quiet"]
    assert "s: 1 missing from the numbering: 'x-002.tar'" in command("index", *globbed).output.splitlines()
    report = json.loads(command("index", *globbed, "--json").output)
    assert report["sources"][0]["holes"] == ["x-002.tar"]


# ---- sources that grow ---------------------------------------------------------------------------------------------------


def test_added_changed_and_gone_shards_are_listed(tmp_path: Path) -> None:
    seven(tmp_path)
    globbed = [f"s={tmp_path}/x-*.tar", "--quiet", "--labels", "cls"]
    first = json.loads(command("index", *globbed, "--json").output)["sources"][0]
    assert (len(first["added"]), first["changed"], first["gone"]) == (7, [], [])
    shard(tmp_path / "x-007.tar", ["gnu"])
    shard(tmp_path / "x-001.tar", ["cat", "dog", "dog"])
    lose(tmp_path, 6)
    lines = command("index", *globbed).output.splitlines()
    assert lines[1].split()[:4] == ["s", "2", "5", "14"]
    assert {"s: 1 added: 'x-007.tar'", "s: 1 changed: 'x-001.tar'", "s: 1 gone: 'x-006.tar'"} <= set(lines)
    again = json.loads(command("index", *globbed, "--json").output)["sources"][0]
    assert (again["written"], again["added"], again["changed"], again["gone"]) == (0, [], [], [])
