"""Real tars in, sidecars and summaries out: complete, restartable, and never wrong in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from equitar.errors import LabelError, ShardError, SidecarError, SourceError
from equitar.indexing.index import IndexReport, check, index
from equitar.labels.tables import Vocabulary, read_labels
from equitar.sidecars.sidecar import read_sidecar
from equitar.sidecars.summary import load_summary
from equitar.sources import Source
from equitar.storage.listing import sidecar_path
from helpers.labelled_shards import named_rows, rows, shard, sidecar_of, tar
from helpers.odd_tars import CASES, END, LABELS, build, member

CIFAR = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10"


def source_of(folder: Path, name: str = "s", *, sidecars: str | None = None) -> Source:
    return Source(name, str(folder / "*.tar"), root=str(folder), sidecars=sidecars)


def run(
    source: Source | Sequence[Source],
    *,
    labels: str | None = None,
    labels_from: str | None = None,
    classes: Sequence[str] | None = None,
    jobs: int = 1,
    empty: bool = False,
    force: bool = False,
) -> IndexReport:
    return index(
        source,
        labels=labels,
        labels_from=labels_from,
        classes=classes,
        missing="empty" if empty else "error",
        jobs=jobs,
        progress=False,
        force=force,
    )


@pytest.fixture
def five(tmp_path: Path) -> Source:
    for number in range(5):
        shard(tmp_path / f"x-{number}.tar", [str(number), str(number + 1)])
    return source_of(tmp_path)


def files(source: Source, pattern: str) -> list[Path]:
    assert source.root is not None
    return sorted(Path(source.root).rglob(pattern))


# ---------------------------------------------------------------- what is written


def test_two_processes_write_what_one_writes(tmp_path: Path) -> None:
    made = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        for number in range(4):
            shard(folder / f"x-{number}.tar", ["cat", "dog", "ant"][: number % 3 + 1])
        report = run(source_of(folder), labels="cls", jobs=jobs).sources[0]
        assert (report.written, report.skipped, report.samples) == (4, 0, 7)
        assert report.bytes == sum(path.stat().st_size for path in folder.glob("*.tar"))
        made.append({path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".tar"})
    assert made[0] == made[1]
    assert len(made[0]) == 6  # four sidecars, the summary and its pointer


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case.right, dict)])
def test_the_samples_of_an_odd_tar_are_those_a_reader_finds(tmp_path: Path, name: str) -> None:
    paths = build(tmp_path, name)
    run(Source("s", [str(path) for path in paths.values()], root=str(tmp_path)))
    right = CASES[name].right
    assert isinstance(right, dict)
    sidecar = sidecar_of(next(iter(paths.values())))
    fields_of = {
        key: {
            sidecar.table.fields[sidecar.table.field[member]] for member in range(*sidecar.table.indptr[row : row + 2])
        }
        for row, key in enumerate(sidecar.keys)
    }
    assert fields_of == {key: set(fields) for key, fields in right.items()}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if str(case.right).startswith("error")])
def test_an_odd_tar_that_cannot_be_right_gets_no_sidecar(tmp_path: Path, name: str) -> None:
    paths = build(tmp_path, name)
    first = next(iter(paths.values()))
    with pytest.raises(ShardError, match=first.name):
        run(Source("s", [str(path) for path in paths.values()], root=str(tmp_path)))
    assert not Path(sidecar_path(str(first))).exists()
    assert not list(tmp_path.glob("*.summary.*"))


def test_labels_are_a_set_whose_frequency_counts_samples(tmp_path: Path) -> None:
    samples = {"a": {"json": json.dumps([0] * 50).encode()}} | {f"b{number}": {"json": b"[1]"} for number in range(9)}
    (tmp_path / "x.tar").write_bytes(tar(samples))
    run(source_of(tmp_path), labels="json")
    summary = load_summary(source_of(tmp_path))
    assert summary.label_counts is not None
    assert dict(zip(summary.label_counts.ids.tolist(), summary.label_counts.counts.tolist(), strict=True)) == {
        0: 1,
        1: 9,
    }
    presence = sidecar_of(tmp_path / "x.tar").presence
    assert presence is not None
    assert presence.counts.tolist() == [50] + [1] * 9


def test_samples_without_labels_keep_their_place(tmp_path: Path) -> None:
    labels = [[0], [], [1], [0], []]
    samples = {f"k{row}": {"json": json.dumps(ids).encode()} for row, ids in enumerate(labels)}
    (tmp_path / "x.tar").write_bytes(tar(samples))
    run(source_of(tmp_path), labels="json")
    assert rows(sidecar_of(tmp_path / "x.tar")) == labels


def test_a_missing_label_is_an_error_unless_it_may_be_empty(tmp_path: Path) -> None:
    (path,) = build(tmp_path, "missing_label").values()
    with pytest.raises(ShardError, match=r"no member 'cls'.* for key 'b' of .*missing_label\.tar"):
        run(source_of(tmp_path), labels="cls")
    assert not Path(sidecar_path(str(path))).exists()
    run(source_of(tmp_path), labels="cls", empty=True)
    assert rows(sidecar_of(path)) == [[0], []]


def test_a_wrong_label_names_shard_and_key(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar({"good": LABELS["cls_newline"], "bad": LABELS["cls_float"]}))
    with pytest.raises(ShardError, match=r"got '3.0' for key 'bad' of .*x\.tar"):
        run(source_of(tmp_path), labels="cls")


def test_gaps_of_category_ids_stay(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar({"a": LABELS["json_coco"]}))
    run(source_of(tmp_path), labels="json:annotations[].category_id")
    assert rows(sidecar_of(tmp_path / "x.tar")) == [[17, 90]]


def test_classes_that_never_occur_are_kept_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", ["3", "0"])
    run(source_of(tmp_path), labels="cls", classes=[f"class {number}" for number in range(10)])
    summary = load_summary(source_of(tmp_path))
    assert summary.class_names is not None
    assert summary.class_names[0] == tuple(range(10))
    with pytest.raises(ShardError, match=r"label 3 is not one of 3 classes for key 'x-0' of .*x\.tar"):
        run(source_of(tmp_path), labels="cls", classes=["a", "b", "c"])


def test_a_function_of_the_user_is_found_in_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words_of_mine.py").write_text("def labels(sample):\n    return sample['txt'].decode().split(', ')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for number, text in enumerate(["cat, teddy bear", "dog"]):
        shard(tmp_path / f"x-{number}.tar", [text], field="txt")
    run(source_of(tmp_path), labels="words_of_mine:labels", jobs=2)
    assert named_rows(sidecar_of(tmp_path / "x-0.tar")) == [["cat", "teddy bear"]]
    assert check(source_of(tmp_path), jobs=1, progress=False) == []


@pytest.mark.skipif(not CIFAR.is_dir(), reason="needs real shards")
def test_real_shards_have_the_classes_they_are_known_for(tmp_path: Path) -> None:
    source = Source("cifar", str(CIFAR / "train-{000000..000001}.tar"), sidecars=str(tmp_path))
    index(source, labels="cls", classes=str(CIFAR / "classes.txt"), jobs=1, progress=False)
    summary = load_summary(source)
    assert summary.num_samples.tolist() == [1000, 1000]
    assert summary.label_counts is not None
    assert summary.label_counts.counts.sum() == 2000
    assert set(summary.label_counts.ids.tolist()) == set(range(10))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.npz")) < 0.01 * summary.shard_sizes.sum()


# ---------------------------------------------------------------- names


def test_names_have_one_id_in_all_shards_of_a_source(tmp_path: Path) -> None:
    for number, label in enumerate(["dog", "cat", "ant"]):
        shard(tmp_path / f"x-{number}.tar", [label, "dog"])
    run(source_of(tmp_path), labels="cls", jobs=1)
    sidecars = [sidecar_of(tmp_path / f"x-{number}.tar") for number in range(3)]
    assert {sidecar.class_names for sidecar in sidecars} == {((0, 1, 2), ("ant", "cat", "dog"))}
    assert [named_rows(sidecar) for sidecar in sidecars] == [[["dog"], ["dog"]], [["cat"], ["dog"]], [["ant"], ["dog"]]]
    assert load_summary(source_of(tmp_path)).class_names == sidecars[0].class_names
    assert check(source_of(tmp_path), jobs=1, progress=False) == []


def test_names_that_come_later_leave_ids_and_digests_as_they_were(tmp_path: Path) -> None:
    shard(tmp_path / "x-0.tar", ["dog", "cat"])
    run(source_of(tmp_path), labels="cls")
    before = sidecar_of(tmp_path / "x-0.tar")
    shard(tmp_path / "x-1.tar", ["ant", "cat"])
    report = run(source_of(tmp_path), labels="cls").sources[0]
    assert (report.written, report.skipped) == (1, 1)
    after = sidecar_of(tmp_path / "x-0.tar")
    assert after.class_names == ((0, 1, 2), ("cat", "dog", "ant"))
    assert after.digest == before.digest
    assert named_rows(sidecar_of(tmp_path / "x-1.tar")) == [["ant"], ["cat"]]


def test_a_shard_without_any_label_fits_into_both_kinds(tmp_path: Path) -> None:
    shard(tmp_path / "x-0.tar", [None])
    shard(tmp_path / "x-1.tar", ["cat"])
    run(source_of(tmp_path), labels="cls", empty=True)
    assert load_summary(source_of(tmp_path)).class_names == ((0,), ("cat",))


def test_ids_in_one_shard_and_names_in_another_are_an_error_naming_both(tmp_path: Path) -> None:
    for number, label in enumerate(["3", "cat"]):
        shard(tmp_path / f"x-{number}.tar", [label])
    with pytest.raises(ShardError, match=r"got 3 in 'x-0\.tar' and 'cat' in 'x-1\.tar'"):
        run(source_of(tmp_path), labels="cls")
    assert not list(tmp_path.glob("*.summary.*"))


def test_ids_and_names_in_one_shard_are_an_error_naming_both_keys(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", ["cat", "3"])
    with pytest.raises(ShardError, match=r"'cat' for key 'x-0'.*|3 for key 'x-1'"):
        run(source_of(tmp_path), labels="cls")


# ---------------------------------------------------------------- labels from a file


def test_labels_from_a_file_are_joined_by_key_and_the_rest_is_counted(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", [None, None])
    (tmp_path / "labels.tsv").write_text("x-1\t7 7 3\nx-0\t\nelsewhere\t9\n")
    report = run(source_of(tmp_path), labels_from=str(tmp_path / "labels.tsv")).sources[0]
    assert rows(sidecar_of(tmp_path / "x.tar")) == [[], [3, 7]]
    notes = "; ".join(report.notes)
    assert "2 samples joined" in notes
    assert "1 keys" in notes
    assert "'elsewhere'" in notes
    skipped = run(source_of(tmp_path), labels_from=str(tmp_path / "labels.tsv")).sources[0]
    assert (skipped.written, skipped.notes) == (0, report.notes)


def test_a_key_that_the_file_does_not_have_is_an_error_unless_it_may_be_empty(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", [None, None])
    (tmp_path / "labels.tsv").write_text("x-1\t7\n")
    with pytest.raises(ShardError, match=r"1 of 2.* for key 'x-0' of .*x\.tar"):
        run(source_of(tmp_path), labels_from=str(tmp_path / "labels.tsv"))
    report = run(source_of(tmp_path), labels_from=str(tmp_path / "labels.tsv"), empty=True).sources[0]
    assert rows(sidecar_of(tmp_path / "x.tar")) == [[], [7]]
    assert any(note.startswith("1 samples are not in") for note in report.notes)


def test_a_file_that_has_none_of_the_keys_is_an_error(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", [None])
    (tmp_path / "labels.csv").write_text("key,labels\n")
    with pytest.raises(ShardError, match="the label is missing"):
        run(source_of(tmp_path), labels_from=str(tmp_path / "labels.csv"))


def test_new_labels_from_a_file_need_no_second_walk(five: Source, tmp_path: Path) -> None:
    keys = [f"x-{number}-{row}" for number in range(5) for row in range(2)]
    run(five)
    for path in files(five, "*.tar"):  # what cannot be read is not read
        path.write_bytes(b"?" * path.stat().st_size)
        os.utime(path, (0, 0))  # older than its sidecar: nothing says that it has changed
    for label in ("cat", "dog"):
        (tmp_path / "labels.tsv").write_text("".join(f"{key}\t{label}\n" for key in keys))
        assert run(five, labels_from=str(tmp_path / "labels.tsv")).sources[0].written == 5
        assert named_rows(sidecar_of(tmp_path / "x-4.tar")) == [[label], [label]]


def test_a_table_read_before_is_as_good_as_its_file(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", [None])
    (tmp_path / "labels.tsv").write_text("x-0\tdog\n")
    table = read_labels(str(tmp_path / "labels.tsv"), classes=Vocabulary(ids=(4,), names=("dog",)))
    index(source_of(tmp_path), labels_from=table, jobs=2, progress=False)
    assert rows(sidecar_of(tmp_path / "x.tar")) == [[4]]
    with pytest.raises(ValueError, match="pass `classes` to `read_labels`"):
        index(source_of(tmp_path), labels_from=table, classes=["dog"], progress=False)


# ---------------------------------------------------------------- restart, damage, change


def test_after_half_the_sidecars_are_lost_only_their_shards_are_read(five: Source) -> None:
    run(five, labels="cls")
    complete = {path: path.read_bytes() for path in files(five, "*.npz")}
    for path in files(five, "*.presence.npz")[::2]:
        path.unlink()
    for path in files(five, "*.tar")[1::2]:  # what cannot be read is not read
        path.write_bytes(b"?" * path.stat().st_size)
        os.utime(path, (0, 0))  # older than its sidecar: nothing says that it has changed
    report = run(five, labels="cls").sources[0]
    assert (report.written, report.skipped, report.samples) == (3, 2, 10)
    assert {path: path.read_bytes() for path in files(five, "*.npz")} == complete


def test_a_damaged_sidecar_is_made_again(five: Source) -> None:
    run(five, labels="cls")
    path = files(five, "*.presence.npz")[2]
    path.write_bytes(path.read_bytes()[:-30])
    assert run(five, labels="cls").sources[0].written == 1


def test_other_labels_or_force_make_sidecars_again(five: Source) -> None:
    run(five, labels="cls")
    assert run(five, labels="cls").sources[0].written == 0
    assert run(five, labels="cls", classes=list("abcdef")).sources[0].written == 5
    assert run(five, labels="cls", classes=list("abcdef"), force=True).sources[0].written == 5


def test_labels_are_not_lost_when_the_next_run_names_none(five: Source) -> None:
    run(five, labels="cls")
    assert run(five).sources[0].written == 0
    assert load_summary(five).label_counts is not None
    run(five, force=True)
    assert load_summary(five).label_counts is not None


def test_some_shards_with_labels_and_some_without_are_an_error(five: Source, tmp_path: Path) -> None:
    run(five, labels="cls")
    shard(tmp_path / "x-5.tar", ["5"])
    (tmp_path / "s.summary.json").unlink()  # it would tell how the others were labelled
    with pytest.raises(ShardError, match=r"1 of 6 shards have no labels, such as 'x-5\.tar'.*`--labels`"):
        run(five)


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_damaged_shard_does_not_lose_the_others(tmp_path: Path, jobs: int) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for number in range(5):
        shard(bad / f"x-{number}.tar", [str(number)])
    shard(good / "y.tar", ["0"])
    whole = (bad / "x-2.tar").read_bytes()
    (bad / "x-2.tar").write_bytes(whole[:700])
    sources = [source_of(bad, "bad"), source_of(good, "good")]
    with pytest.raises(ShardError, match=r"1 error in 6 shards: .*x-2\.tar") as caught:
        run(sources, labels="cls", jobs=jobs)
    assert "\n" not in str(caught.value)
    assert len(list(bad.glob("*.presence.npz"))) == 4
    assert not list(bad.glob("*.summary.*"))
    assert load_summary(sources[1]).num_samples.tolist() == [1]
    (bad / "x-2.tar").write_bytes(whole)
    report = run(sources, labels="cls", jobs=jobs)
    assert [(source.written, source.skipped) for source in report.sources] == [(1, 4), (0, 1)]


def test_of_many_damaged_shards_twenty_are_told_and_all_are_counted(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"x-{number:02}.tar").write_bytes(b"")
    with pytest.raises(ShardError, match="25 errors in 25 shards") as caught:
        run(source_of(tmp_path))
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert "x-00.tar" in lines[1]
    assert lines[-1].strip() == "and 5 more"


def test_a_shard_that_is_not_there_is_told_as_such(five: Source, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"1 of 6 shards are missing: 'x-9\.tar'; .*`--missing-shards skip`"):
        run(Source("s", [str(five.urls), str(tmp_path / "x-9.tar")], root=str(tmp_path)))


def test_oddities_are_counted_over_shards(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"x-{number}.tar").write_bytes(member("README", b"text") + tar({"a": {"jpg": b"image"}}))
    (note,) = run(source_of(tmp_path)).sources[0].notes
    assert "README" in note
    assert "3 shards, the first x-0.tar" in note


def test_a_shard_rewritten_at_the_same_size_is_indexed_again_and_others_are_not(five: Source, tmp_path: Path) -> None:
    run(five, labels="cls")
    path = tmp_path / "x-2.tar"
    before, size = sidecar_of(path), path.stat().st_size
    shard(path, ["2", "9"])
    later = 1 + Path(sidecar_path(str(path))).stat().st_mtime_ns
    os.utime(path, ns=(later, later))
    os.utime(tmp_path / "x-3.tar", ns=(later + 10**9, later + 10**9))  # touched, but not changed
    assert path.stat().st_size == size
    (report,) = run(five, labels="cls").sources
    assert (report.written, report.skipped) == (1, 4)
    assert sidecar_of(path).digest != before.digest
    assert run(five, labels="cls").sources[0].written == 0


# ---------------------------------------------------------------- check


def test_check_finds_nothing_after_index(five: Source) -> None:
    run(five, labels="cls")
    assert check(five, jobs=2, progress=False) == []


def test_check_finds_what_changed_since(five: Source, tmp_path: Path) -> None:
    run(five, labels="cls")
    paths = [tmp_path / f"x-{number}.tar" for number in range(5)]
    paths[0].write_bytes(paths[0].read_bytes().replace(END, member("new.cls", b"0") + END))
    paths[1].write_bytes(paths[1].read_bytes().replace(b"x-1-1.jpg", b"x-1-1.png"))  # a wrong checksum
    shard(paths[2], ["2", "9"])  # equal size, another label
    shard(tmp_path / "z.tar", ["3", "4"])  # equal size, other keys
    (tmp_path / "z.tar").replace(paths[3])
    problems = check(five, jobs=1, progress=False)
    assert len(problems) == 4
    for problem, what in zip(problems, ["bytes but its sidecar is for", "damaged", "labels", "members"], strict=True):
        assert what in problem
    assert "`equitar index" in problems[0]
    assert "--force" in problems[2]


def test_check_names_the_command_for_a_missing_sidecar(five: Source) -> None:
    with pytest.raises(SidecarError, match="run `equitar index"):
        load_summary(five)
    problems = check(five, jobs=1, progress=False)
    assert len(problems) == 5
    assert all("run `equitar index" in problem for problem in problems)


def test_check_finds_a_summary_of_other_sidecars(five: Source, tmp_path: Path) -> None:
    run(five)
    shard(tmp_path / "x-0.tar", ["0", "1", "2"])
    with pytest.raises(ShardError):  # a summary is not written when another shard fails
        run(Source("s", [str(five.urls), str(tmp_path / "gone.tar")], root=str(tmp_path)))
    (problem,) = check(five, jobs=1, progress=False)
    assert "the summary of source 's'" in problem


# ---------------------------------------------------------------- sources


def test_shards_of_equal_base_name_have_sidecars_of_their_own(tmp_path: Path) -> None:
    for folder, label in (("A", "1"), ("B", "2")):
        shard(tmp_path / "tars" / folder / "000.tar", [label])
    source = Source("s", str(tmp_path / "tars/*/000.tar"), sidecars=str(tmp_path / "sidecars"))
    run(source, labels="cls")
    sidecars = [read_sidecar(str(tmp_path / "sidecars" / folder / "000.presence.npz"), fix="") for folder in "AB"]
    assert [rows(sidecar) for sidecar in sidecars] == [[[1]], [[2]]]


def test_two_sources_may_not_share_a_sidecar(tmp_path: Path) -> None:
    for folder in "AB":
        shard(tmp_path / folder / "000.tar", ["1"])
    sources = [source_of(tmp_path / folder, folder, sidecars=str(tmp_path / "sidecars")) for folder in "AB"]
    with pytest.raises(SourceError, match=r"A/000\.tar and .*B/000\.tar would share the sidecar"):
        run(sources)


def test_a_name_stands_for_one_source(five: Source, tmp_path: Path) -> None:
    shard(tmp_path / "other/y.tar", ["1"])
    with pytest.raises(SourceError, match="two are called 's'; list all URLs"):
        run([five, source_of(tmp_path / "other")])


def test_labels_are_inside_or_outside_but_not_both(five: Source) -> None:
    with pytest.raises(ValueError, match="not both; got"):
        run(five, labels="cls", labels_from="labels.tsv")
    with pytest.raises(LabelError, match="ends in 'txt'"):
        run(five, labels_from="labels.txt")


def test_sidecars_say_how_labels_were_made(five: Source, tmp_path: Path) -> None:
    run(five, labels="cls", empty=True, classes=list("abcdef"))
    spec, *more = sidecar_of(tmp_path / "x-0.tar").label_spec.split("\n")
    assert spec == "cls"
    assert [line.partition("=")[0] for line in more] == ["missing", "classes"]
    assert np.diff(load_summary(five).num_samples).tolist() == [0] * 4
