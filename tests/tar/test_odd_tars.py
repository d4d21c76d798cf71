"""Odd tars and labels that people meet, end to end: through `equitar.index` and `equitar.exact`. Each test names its case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from equitar.reading.reader import Reader, open_shards
from equitar.sidecars.catalog import catalog_of
from equitar.sidecars.sidecar import read_sidecar
from equitar.sidecars.summary import Summary, load_summary
from equitar.sources import Sample
from equitar.storage.listing import sidecar_path
from helpers import odd_tars
from helpers.odd_tars import END, LABELS, member, two_samples

Samples = dict[str, dict[str, bytes]]

ALL = [(case, name) for case in odd_tars.CASES.values() for name in case.make()]


def indexed(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    labels: str | None = None,
    empty: bool = False,
    classes: Sequence[str] | None = None,
    regroup: bool = False,
) -> equitar.Source:
    """Write shards and index them."""
    folder.mkdir(exist_ok=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    source = equitar.Source("s", [str(folder / name) for name in files], root=str(folder))
    equitar.index(
        source,
        labels=labels,
        missing="empty" if empty else "error",
        classes=classes,
        regroup=regroup,
        jobs=1,
        progress=False,
        force=True,
    )
    return source


def odd(folder: Path, name: str) -> equitar.Source:
    return indexed(folder, odd_tars.CASES[name].make())


def listed(source: equitar.Source) -> list[tuple[str, dict[str, bytes]]]:
    """Read all samples in order, as validation does."""
    batches = equitar.exact([source], batch_size=2, collate_fn=list, rank=0, world_size=1)
    samples = [sample for batch in batches for sample in batch if not sample.get("__pad__")]
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if not name.startswith("__")})
        for sample in samples
    ]


def samples_of(source: equitar.Source) -> Samples:
    samples = listed(source)
    assert len({key for key, _ in samples}) == len(samples)
    return dict(samples)


def refused(folder: Path, name: str, match: str) -> None:
    """Check that a shard is refused, with its name, and leaves no sidecar."""
    with pytest.raises(equitar.errors.ShardError, match=match) as caught:
        odd(folder, name)
    assert str(folder / name) in str(caught.value)
    assert not list(folder.glob("*.npz"))


def tar(samples: Mapping[str, Mapping[str, bytes]]) -> bytes:
    files = ((f"{key}.{field}", raw) for key, fields in samples.items() for field, raw in fields.items())
    return b"".join(member(name, raw) for name, raw in files) + END


def labels_of(source: equitar.Source) -> dict[str, list[int]]:
    (sidecars,) = catalog_of([source]).sidecars
    rows = {}
    for sidecar in sidecars.all():
        assert sidecar.presence is not None
        for row, key in enumerate(sidecar.keys):
            rows[key] = sidecar.presence.labels(row).tolist()
    return rows


def images_of_class(summary: Summary) -> dict[int, int]:
    assert summary.label_counts is not None
    pairs = zip(summary.label_counts.ids.tolist(), summary.label_counts.counts.tolist(), strict=True)
    counts: Counter[int] = Counter()
    for label, count in pairs:
        counts[label] += count
    return dict(counts)


# ---------------------------------------------------------------- tars


def test_scattered_members_are_an_error_or_one_sample_if_asked_for(tmp_path: Path) -> None:
    """A06."""
    refused(tmp_path, "not_adjacent", r"key 'a' again at byte 2560 .*, after byte 512 and with key 'b' between")
    source = indexed(tmp_path, odd_tars.CASES["not_adjacent"].make(), regroup=True)
    assert samples_of(source) == odd_tars.TWO
    stream = equitar.stages.tar_samples()([str(tmp_path / "not_adjacent.tar")])
    with pytest.raises(equitar.errors.ShardError, match="key 'a' again"):
        list(stream)


@pytest.mark.parametrize("name", ["dots_in_base", "dots_collide", "dir_dot", "multi_ext", "prefix_key"])
def test_the_first_dot_ends_the_key_and_fields_that_look_like_a_mistake_are_told(name: str, tmp_path: Path) -> None:
    """A07."""
    assert samples_of(odd(tmp_path, name)) == odd_tars.CASES[name].right
    report = equitar.index(equitar.Source("s", str(tmp_path / "*.tar")), jobs=1, progress=False, force=True)
    is_told = any("fields that start with a digit" in note for note in report.sources[0].notes)
    assert is_told == name.startswith("dots")


@pytest.mark.parametrize(("name", "offsets"), [("dup_member", "512 and 2560"), ("case_clash", "512 and 1536")])
def test_a_field_twice_is_an_error_with_both_offsets(name: str, offsets: str, tmp_path: Path) -> None:
    """A08."""
    refused(tmp_path, name, rf"field 'jpg' of key 'a' twice, at bytes {offsets}")


@pytest.mark.parametrize("name", ["trunc_data", "trunc_padding", "gz_truncated", "huge_declared"])
def test_a_cut_shard_is_refused_and_its_complete_samples_can_be_streamed(name: str, tmp_path: Path) -> None:
    """A09."""
    refused(tmp_path, name, r"is damaged at byte \d+")
    given: list[Sample] = []
    with pytest.raises(equitar.errors.ShardError, match="is damaged at byte"):
        given.extend(equitar.stages.tar_samples()([str(path) for path in tmp_path.iterdir()]))
    keys = [sample["__key__"] for sample in given]
    assert keys[0] == "a"
    assert "c" not in keys


def test_a_damaged_shard_touches_no_other(tmp_path: Path) -> None:
    """A19."""
    files = odd_tars.CASES["cut_then_same_key"].make()
    with pytest.raises(
        equitar.errors.ShardError, match=r"1 error in 2 shards: .*cut_then_same_key-0.tar is damaged at byte 2048"
    ):
        indexed(tmp_path, files)
    good = indexed(tmp_path, {"cut_then_same_key-1.tar": files["cut_then_same_key-1.tar"]})
    assert samples_of(good) == {"z": {"cls": b"1", "jpg": b"1z"}}


@pytest.mark.parametrize("name", ["bad_checksum", "html_middle", "trunc_header", "trunc_in_sample"])
def test_a_shard_that_ends_early_is_never_a_normal_end(name: str, tmp_path: Path) -> None:
    """A20."""
    refused(tmp_path, name, "is damaged at byte|it was truncated")


def test_a_shard_cut_between_samples_is_told_and_then_held_to_its_sidecar(tmp_path: Path) -> None:
    """A20."""
    source = odd(tmp_path, "trunc_boundary")
    assert samples_of(source) == odd_tars.TWO
    path = tmp_path / "trunc_boundary.tar"
    path.write_bytes(path.read_bytes()[: 4 * 512])
    with pytest.raises(equitar.errors.StaleSidecarError, match=r"has 2048 bytes but its sidecar was made of 4096"):
        listed(source)


@pytest.mark.parametrize("name", ["apple_root", "apple_dir"])
def test_files_that_macos_puts_beside_others_are_passed_over_and_counted(name: str, tmp_path: Path) -> None:
    """A21."""
    assert samples_of(odd(tmp_path, name)) == odd_tars.CASES[name].right
    report = equitar.index(equitar.Source("s", str(tmp_path / "*.tar")), jobs=1, progress=False, force=True)
    assert any("2 hidden files ignored" in note for note in report.sources[0].notes)


@pytest.mark.parametrize("name", ["dot_slash", "dir_between", "dir_dot_noext", "no_ext", "odd_roots"])
def test_names_stay_as_they_are_and_folders_end_no_sample(name: str, tmp_path: Path) -> None:
    """A22."""
    assert samples_of(odd(tmp_path, name)) == odd_tars.CASES[name].right


def test_a_sample_of_two_spellings_is_an_error(tmp_path: Path) -> None:
    """A22."""
    refused(tmp_path, "dot_slash_mixed", r"keys './a' and 'a', at bytes 512 and 1536")


def test_extensions_are_folded_to_lower_case_and_so_are_fields_asked_for(tmp_path: Path) -> None:
    """A23."""
    source = odd(tmp_path, "upper_ext")
    assert samples_of(source) == {"a": odd_tars.A}
    batches = equitar.exact([source], batch_size=1, fields=["JPG"], collate_fn=list, rank=0, world_size=1)
    assert [sample["jpg"] for batch in batches for sample in batch] == [b"img-a"]


@pytest.mark.parametrize(
    "name", ["pax_mtime_each", "gnu_longname", "pax_longname", "pax_size", "pax_global", "ustar_prefix"]
)
def test_slices_are_right_after_extended_headers_and_long_keys_are_whole(name: str, tmp_path: Path) -> None:
    """A24."""
    assert samples_of(odd(tmp_path, name)) == odd_tars.CASES[name].right


@pytest.mark.parametrize("name", ["gz_named", "gz_as_tar"])
def test_compressed_shards_are_known_by_their_bytes_and_never_sliced_wrongly(name: str, tmp_path: Path) -> None:
    """A25."""
    source = odd(tmp_path, name)
    (path,) = tmp_path.glob("*.presence.npz")
    assert not read_sidecar(str(path), fix="").table.sliceable
    assert samples_of(source) == odd_tars.TWO


def test_equal_keys_in_two_shards_are_two_samples(tmp_path: Path) -> None:
    """A26."""
    source = odd(tmp_path, "key_across_shards")
    assert listed(source) == [
        ("a", {"jpg": b"0a"}),
        ("z", {"jpg": b"0z", "cls": b"0"}),
        ("z", {"jpg": b"1z", "cls": b"1"}),
    ]


@pytest.mark.parametrize("name", ["base256_size", "v7", "contiguous_type", "volume_label"])
def test_old_and_large_headers_are_read(name: str, tmp_path: Path) -> None:
    """A27."""
    assert samples_of(odd(tmp_path, name)) == odd_tars.TWO


def test_a_size_beyond_the_file_is_a_cut(tmp_path: Path) -> None:
    """A27."""
    refused(tmp_path, "huge_declared", "declares 9663676416 bytes .* but 512 are left")


@pytest.mark.parametrize("name", ["utf8_raw", "latin1_raw", "odd_chars"])
def test_names_of_any_bytes_come_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    """A28."""
    assert samples_of(odd(tmp_path, name)) == odd_tars.CASES[name].right


@pytest.mark.parametrize(
    ("name", "error"),
    [("zero_length", r"is empty \(0 bytes\)"), ("html_page", "is not a tar: b'<html><head><title>503")],
)
def test_an_empty_file_and_an_error_page_are_errors_that_show_it(name: str, error: str, tmp_path: Path) -> None:
    """A29."""
    refused(tmp_path, name, error)


def test_an_empty_archive_has_no_samples_and_says_so(tmp_path: Path) -> None:
    """A29."""
    (tmp_path / "x.tar").write_bytes(odd_tars.CASES["empty_archive"].make()["empty_archive.tar"])
    report = equitar.index(equitar.Source("s", str(tmp_path / "x.tar")), jobs=1, progress=False)
    assert report.sources[0].samples == 0
    assert any("no samples" in note for note in report.sources[0].notes)


@pytest.mark.parametrize(("case", "name"), ALL, ids=[name for _, name in ALL])
def test_builder_reader_and_stream_have_equal_samples_for_every_odd_tar(
    case: odd_tars.Case, name: str, tmp_path: Path
) -> None:
    """A49."""
    streamed: list[tuple[str, dict[str, bytes]]] = []
    try:
        source = indexed(tmp_path, {name: case.make()[name]})
    except equitar.errors.ShardError:
        with pytest.raises(equitar.errors.ShardError):
            list(equitar.stages.tar_samples()([str(tmp_path / name)]))
        return
    (sidecars,) = catalog_of([source]).sidecars
    reader = Reader(sidecars, open_shards(), fields=None, copy=True)
    built = sidecars(0)
    for sample in equitar.stages.tar_samples()([str(tmp_path / name)]):
        key, _ = sample.pop("__key__"), sample.pop("__url__")
        streamed.append((key, sample))
    read = [reader.read(0, row) for row in range(built.num_rows)]
    reader.close()
    assert [sample["__key__"] for sample in read] == list(built.keys) == [key for key, _ in streamed]
    assert [{name: sample[name] for name in sample if not name.startswith("__")} for sample in read] == [
        fields for _, fields in streamed
    ]
    if read:
        assert listed(source) == streamed


def test_a_shard_that_changed_since_is_never_sliced(tmp_path: Path) -> None:
    """A48."""
    source = indexed(tmp_path, {"x.tar": two_samples() + END})
    path = tmp_path / "x.tar"
    path.write_bytes(two_samples() + member("c.jpg", b"new") + END)
    with pytest.raises(equitar.errors.StaleSidecarError, match="run `equitar index"):
        listed(source)
    path.write_bytes((two_samples() + END).replace(b"a.jpg", b"z.jpg"))  # equal size, a wrong checksum
    (problem,) = equitar.check(source, jobs=1, progress=False)
    assert "is not a tar: the header b'z.jpg' has checksum" in problem
    path.write_bytes(member("z.jpg", b"img-a") + (two_samples() + END)[2 * 512 :])  # equal size, another name
    (problem,) = equitar.check(source, jobs=1, progress=False)
    assert "has other members than its sidecar" in problem
    assert "--force" in problem


def test_a_missing_index_is_an_error_with_the_command_and_one_bad_shard_loses_no_other(tmp_path: Path) -> None:
    """A51."""
    for number in range(4):
        (tmp_path / f"x-{number}.tar").write_bytes(two_samples() + END)
    source = equitar.Source("s", str(tmp_path / "x-*.tar"))
    with pytest.raises(
        equitar.errors.SidecarError, match=rf"run `equitar index s={tmp_path}/x-\*\.tar`|run `equitar index 's="
    ):
        listed(source)
    good = (tmp_path / "x-2.tar").read_bytes()
    (tmp_path / "x-2.tar").write_bytes(good[:700])
    words = ["index", f"s={tmp_path}/x-*.tar", "--jobs", "1", "--quiet"]
    assert CliRunner().invoke(main, words).exit_code == 1
    assert len(list(tmp_path.glob("*.presence.npz"))) == 3
    (tmp_path / "x-2.tar").write_bytes(good)
    ran = CliRunner().invoke(main, words)
    assert ran.output.split("\n")[1].split()[1:3] == ["1", "3"]  # written, up to date


# ---------------------------------------------------------------- labels


def test_a_sample_without_labels_is_emitted_once_and_a_missing_label_is_an_error(tmp_path: Path) -> None:
    """A38."""
    texts = [b"[0]", b"[]", b"[1]", b"[0]", b"[]"]
    source = indexed(
        tmp_path, {"x.tar": tar({f"k{row}": {"json": text} for row, text in enumerate(texts)})}, labels="json"
    )
    assert labels_of(source) == {"k0": [0], "k1": [], "k2": [1], "k3": [0], "k4": []}
    batches = equitar.exact([source], batch_size=3, repeat=1.0, rank=0, world_size=1)
    times = Counter(key for batch in batches for key in batch["__key__"])
    assert (times["k1"], times["k4"]) == (1, 1)
    assert times["k2"] in {2, 3}  # sqrt(1 / 0.2)
    with pytest.raises(equitar.errors.ShardError, match=r"label is missing .* for key 'b' of"):
        indexed(tmp_path / "b", odd_tars.CASES["missing_label"].make(), labels="cls")
    assert labels_of(indexed(tmp_path / "b", odd_tars.CASES["missing_label"].make(), labels="cls", empty=True)) == {
        "a": [0],
        "b": [],
    }


def test_frequencies_count_images_and_not_boxes(tmp_path: Path) -> None:
    """A39."""
    samples = {
        "many": {"json": b"[" + b",".join([b"0"] * 50) + b"]"},
        **{f"k{row}": {"json": b"[1]"} for row in range(9)},
    }
    source = indexed(tmp_path, {"x.tar": tar(samples)}, labels="json")
    summary = load_summary(source)
    assert images_of_class(summary) == {0: 1, 1: 9}
    assert int(summary.num_samples.sum()) == 10


def test_classes_that_never_occur_change_nothing_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    """A40."""
    names = [f"class {number}" for number in range(10)]
    files = {"x.tar": tar({f"k{number}": {"cls": b"%d" % number} for number in range(4)})}
    source = indexed(tmp_path, files, labels="cls", classes=names)
    bare = indexed(tmp_path / "bare", files, labels="cls")
    emitted = [
        [
            key
            for batch in equitar.exact([variant], batch_size=2, repeat=0.9, rank=0, world_size=1)
            for key in batch["__key__"]
        ]
        for variant in (source, bare)
    ]
    assert emitted[0] == emitted[1]
    with pytest.raises(equitar.errors.ShardError, match="label 3 is not one of 3 classes for key 'k3' of"):
        indexed(tmp_path, files, labels="cls", classes=names[:3])


def test_every_spelling_of_labels_ends_as_a_set(tmp_path: Path) -> None:
    """A47."""
    for name, spec, expected in [
        ("json_list", "json", [3, 7]),
        ("json_empty", "json", []),
        ("npy_onehot", "npy", [1, 4]),
        ("npy_scalar", "npy", [7]),
    ]:
        source = indexed(tmp_path, {"x.tar": tar({"a": LABELS[name]})}, labels=spec)
        assert labels_of(source) == {"a": expected}, name
    for name, spec, error in [
        ("json_broken", "json", "JSON is broken .*for member 'json' of key 'a' of"),
        ("txt_multi", "txt", "must be one integer or one name; got 'cat, dog.*for key 'a' of"),
    ]:
        with pytest.raises(equitar.errors.ShardError, match=error):
            indexed(tmp_path, {"x.tar": tar({"a": LABELS[name]})}, labels=spec)


def test_a_text_label_is_one_integer_or_one_name_and_anything_else_is_an_error(tmp_path: Path) -> None:
    """A55."""
    for name, expected in [("cls_newline", [3]), ("cls_negative", [-1])]:
        source = indexed(tmp_path, {"x.tar": tar({"a": LABELS[name]})}, labels="cls")
        assert labels_of(source) == {"a": expected}
    for name in ("cls_blank", "cls_float", "cls_list"):
        with pytest.raises(
            equitar.errors.ShardError, match=r"must be one integer or one name; got .* for key 'a' of .*x\.tar"
        ):
            indexed(tmp_path, {"x.tar": tar({"a": LABELS[name]})}, labels="cls")
    source = indexed(tmp_path, {"x.tar": tar({"a": LABELS["cls_name"]})}, labels="cls")
    assert load_summary(source).class_names == ((0,), ("cat",))


def test_names_and_integers_are_never_mixed(tmp_path: Path) -> None:
    """A56."""
    with pytest.raises(equitar.errors.ShardError, match=r"got '?3'?|must be all ids or all names|got 3\.0"):
        indexed(tmp_path, {"x.tar": tar({"a": LABELS["json_mixed"]})}, labels="json:labels")
    source = indexed(tmp_path, {"x.tar": tar({"a": LABELS["json_names"]})}, labels="json:labels")
    sidecar = read_sidecar(sidecar_path(str(tmp_path / "x.tar")), fix="")
    assert sidecar.class_names == ((0, 1), ("cat", "dog"))
    assert labels_of(source) == {"a": [0, 1]}
    with pytest.raises(equitar.errors.ShardError, match="got True"):
        indexed(tmp_path, {"x.tar": tar({"a": {"json": b"[true]"}})}, labels="json")


def test_ids_with_gaps_are_kept_and_boxes_are_counted_once(tmp_path: Path) -> None:
    """A57."""
    spec = "json:annotations[].category_id"
    source = indexed(tmp_path, {"x.tar": tar({"a": LABELS["json_coco"]})}, labels=spec)
    assert labels_of(source) == {"a": [17, 90]}
    sidecar = read_sidecar(sidecar_path(str(tmp_path / "x.tar")), fix="")
    assert sidecar.presence is not None
    assert sidecar.presence.counts.tolist() == [2, 1]
