"""Label files: every format, joined by the right rule, and errors that name the line."""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equitar.errors import LabelError
from equitar.labels.tables import LabelTable, Vocabulary, read_classes, read_labels

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

COCO: dict[str, Any] = {
    "images": [
        {"id": 139, "file_name": "000000000139.jpg"},
        {"id": 285, "file_name": "000000000285.jpg"},
        {"id": 632, "coco_url": "http://images.cocodataset.org/train2017/000000000632.jpg"},
    ],
    "annotations": [
        {"image_id": 139, "category_id": 17, "iscrowd": 0},
        {"image_id": 139, "category_id": 17, "iscrowd": 1},
        {"image_id": 139, "category_id": 90},
        {"image_id": 632, "category_id": 3, "iscrowd": 1},
    ],
    "categories": [{"id": 3, "name": "car"}, {"id": 17, "name": "cat"}, {"id": 90, "name": "toothbrush"}],
}


def write(folder: Path, name: str, text: str | dict[str, Any]) -> str:
    raw = (text if isinstance(text, str) else json.dumps(text)).encode("utf-8", "surrogateescape")
    path = folder / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def looked_up(table: LabelTable, *keys: str) -> list[list[int] | None]:
    rows, _ = table.match(keys, where="x.tar")
    return [None if row < 0 else table.presence.labels(row).tolist() for row in rows]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.tsv", "a/1\t3 7 7\nb\t\n"),
        ("labels.tsv", "a/1\t3  7 7 \r\nb\t\r\n"),
        ("labels.tsv", "\ufeffkey\tlabels\na/1\t3 7 7\nb\t"),
        ("labels.tsv.gz", "a/1\t3 7 7\nb\t\n"),
        ("labels.csv", "key,labels\na/1,3 7 7\nb,\n"),
        ("labels.CSV.gz", '"a/1","3 7 7"\n"b",""\n'),
        ("labels.jsonl", '{"key": "a/1", "labels": [3, 7, 7]}\n{"__key__": "b", "labels": []}\n'),
    ],
)
def test_each_format_gives_the_same_rows_with_instance_counts(tmp_path: Path, name: str, text: str) -> None:
    table = read_labels(write(tmp_path, name, text))
    assert looked_up(table, "a/1", "b", "c") == [[3, 7], [], None]
    assert table.presence.counts.tolist() == [1, 2]
    assert table.vocabulary is None


def test_names_become_ids_in_sorted_order(tmp_path: Path) -> None:
    table = read_labels(write(tmp_path, "labels.tsv", "a\tdog cat\nb\tbird\n"))
    assert table.vocabulary == Vocabulary(ids=(0, 1, 2), names=("bird", "cat", "dog"))
    assert looked_up(table, "a", "b") == [[1, 2], [0]]


def test_names_with_blanks_come_from_json_lines(tmp_path: Path) -> None:
    table = read_labels(write(tmp_path, "labels.jsonl", '{"key": "a", "labels": ["teddy bear"]}'))
    assert table.vocabulary is not None
    assert table.vocabulary.names == ("teddy bear",)


def test_a_csv_key_may_hold_commas_and_a_tsv_key_any_bytes(tmp_path: Path) -> None:
    assert looked_up(read_labels(write(tmp_path, "labels.csv", '"a,b",3\n')), "a,b") == [[3]]
    key = b"gr\xf6\xdfe\xe2\x80\xa8".decode("utf-8", "surrogateescape")
    assert looked_up(read_labels(write(tmp_path, "labels.tsv", f"{key}\t3\n")), key) == [[3]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("labels.tsv", "a\t3\nb\n", r"line 2 of .*labels.tsv must be a key and labels .* got \['b'\]"),
        ("labels.tsv", "a\t3\t7\n", "line 1"),
        ("labels.tsv", "", "line 1"),
        ("labels.csv", "a,3,7\n", "line 1"),
        ("labels.csv", '"a,3\n', "is not a CSV file"),
        ("labels.tsv", "name\tlabels\n a\t3.0\n", "got '3.0' for key ' a' in line 2"),
        ("labels.tsv", "a\t3,7\n", "got '3,7' for key 'a' in line 1"),
        ("labels.tsv", "a\t3 cat\n", "got 3 and 'cat' for key 'a' in line 1"),
        ("labels.tsv", "a\t3\nb\tcat\n", "got 'cat' for key 'b' and 3 for key 'a'"),
        ("labels.tsv", "a\t3\nb\t4\na\t5\n", "key 'a' occurs 2 times"),
        ("labels.tsv", "a\t3\n./a\t4\n", "key 'a' occurs 2 times"),
        ("labels.jsonl", '{"key": "a"}\n', "line 1 .* must be"),
        ("labels.jsonl", '{"key": "a", "labels": [true]}\n', r"got True \(bool\) for key 'a' in line 1"),
        ("labels.jsonl", '{"key": "a", "labels": [1]}\n{"key"\n', "broken .* line 2"),
        ("labels.json", "[1]", "must hold `images`"),
        ("labels.json", "{", "broken"),
        ("labels.parquet", "PAR1", "labels.parquet is damaged or not a Parquet file"),
        ("labels.xml", "<a/>", "ends in 'xml'"),
    ],
)
def test_what_breaks_the_format_is_an_error_with_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        read_labels(write(tmp_path, name, text))


def test_a_cut_gzip_file_is_an_error(tmp_path: Path) -> None:
    path = Path(write(tmp_path, "labels.tsv.gz", "a\t3\n" * 100))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LabelError, match="is damaged"):
        read_labels(str(path))


def test_coco_ids_keep_their_gaps_and_bring_their_names(tmp_path: Path) -> None:
    table = read_labels(write(tmp_path, "instances.json", COCO))
    assert looked_up(table, "000000000139", "000000000285") == [[17, 90], []]
    assert table.presence.counts.tolist() == [2, 1, 1]
    assert table.vocabulary == Vocabulary(ids=(3, 17, 90), names=("car", "cat", "toothbrush"))


def test_crowd_annotations_are_left_out_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, "instances.json", COCO)
    every, without = read_labels(path), read_labels(path, crowd=False)
    assert looked_up(without, "000000000139", "train2017/000000000632") == [[17, 90], []]
    assert without.presence.counts.tolist() == [1, 1]
    assert every.digest != without.digest


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        (("000000000139", "000000000285"), "key"),
        (("./000000000139", "train2017/000000000632"), "key"),
        (("val2017/000000000139", "./x/000000000632"), "base name"),
        (("139", "632"), "image id"),
        (("img/00139", "00632"), "image id"),
    ],
)
def test_images_are_found_by_file_name_base_name_or_id(tmp_path: Path, keys: tuple[str, ...], rule: str) -> None:
    rows, by = read_labels(write(tmp_path, "instances.json", COCO)).match(keys, where="x.tar")
    assert by == rule
    assert (rows >= 0).all()


def test_one_rule_serves_a_whole_shard(tmp_path: Path) -> None:
    images = [{"id": 3, "file_name": "1.jpg"}, {"id": 1, "file_name": "2.jpg"}]
    path = write(tmp_path, "instances.json", {**COCO, "images": images, "annotations": []})
    rows, rule = read_labels(path).match(["1", "2", "3"], where="x.tar")
    assert (rows.tolist(), rule) == ([0, 1, -1], "key")  # not image 3 for the third key


def test_a_name_that_several_images_share_is_an_error_when_it_is_asked_for(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a/x.jpg"}, {"id": 2, "file_name": "b/x.jpg"}, {"id": 3, "file_name": "b/y.jpg"}]
    table = read_labels(write(tmp_path, "instances.json", {**COCO, "images": images, "annotations": []}))
    assert looked_up(table, "a/x", "b/x") == [[], []]
    assert looked_up(table, "y") == [[]]
    with pytest.raises(LabelError, match=r"key 'x' of x\.tar has several rows in .* by its base name"):
        table.match(["x", "y"], where="x.tar")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": [{"id": 1}]}, "got KeyError"),
        ({"images": COCO["images"] + COCO["images"][:1]}, "image id '139' occurs 2 times"),
        ({"annotations": [{"image_id": 4, "category_id": 3}]}, r"got KeyError\(4\)"),
        (
            {"annotations": [{"image_id": 139, "category_id": 4}]},
            "label 4 is not one of 3 classes for key '000000000139'",
        ),
        ({"annotations": [{"image_id": 139, "category_id": 3.0}]}, r"got 3.0 \(float\)"),
        ({"annotations": None}, "got TypeError"),
        ({"categories": [{"id": 3, "name": "car"}, {"id": 3, "name": "cat"}]}, "class id 3 occurs 2 times"),
    ],
)
def test_annotations_that_do_not_fit_together_are_an_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        read_labels(write(tmp_path, "instances.json", {**COCO, **change}))


def test_a_given_vocabulary_renames_categories_by_name(tmp_path: Path) -> None:
    classes = Vocabulary(ids=(0, 1, 2, 3), names=("toothbrush", "cat", "car", "dog"))
    table = read_labels(write(tmp_path, "instances.json", COCO), classes=classes)
    assert looked_up(table, "000000000139") == [[0, 1]]
    assert table.vocabulary == classes
    with pytest.raises(LabelError, match="label 'cat' is not one of 1 classes"):
        read_labels(table.path, classes=Vocabulary(ids=(0,), names=("car",)))


@pytest.mark.parametrize(("text", "label"), [("a\t4\n", "4"), ("a\tmouse\n", "'mouse'")])
def test_a_label_outside_the_vocabulary_names_key_and_label(tmp_path: Path, text: str, label: str) -> None:
    with pytest.raises(LabelError, match=f"label {label} is not one of 2 classes for key 'a'"):
        read_labels(write(tmp_path, "labels.tsv", text), classes=Vocabulary(ids=(0, 1), names=("cat", "dog")))


@pytest.mark.parametrize(
    ("text", "ids", "names"),
    [
        ("cat\ndog\n", (0, 1), ("cat", "dog")),
        ("teddy bear\r\ndog", (0, 1), ("teddy bear", "dog")),
        ("3\tcat\n-1\tteddy bear\n", (3, -1), ("cat", "teddy bear")),
    ],
)
def test_classes_are_lines_or_ids_with_names(
    tmp_path: Path, text: str, ids: tuple[int, ...], names: tuple[str, ...]
) -> None:
    assert read_classes(write(tmp_path, "classes.txt", text)) == Vocabulary(ids=ids, names=names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\n\ndog\n", "class name ''"),
        ("cat\ncat\n", "class name 'cat' occurs 2 times"),
        ("1\tcat\n1\tdog\n", "class id 1 occurs 2 times"),
        ("1\tcat\ndog\n", "line 2 of .*classes.txt"),
        ("cat\t1\n", "line 1 of .*classes.txt"),
    ],
)
def test_a_vocabulary_that_is_unclear_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        read_classes(write(tmp_path, "classes.txt", text))


def test_a_table_survives_pickling(tmp_path: Path) -> None:
    table = pickle.loads(pickle.dumps(read_labels(write(tmp_path, "instances.json", COCO))))
    assert looked_up(table, "139") == [[17, 90]]
    assert table.vocabulary.encode(["cat"], where="x.tar") == [17]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the real label files")
@pytest.mark.parametrize(
    ("name", "num_rows", "num_empty", "num_classes", "largest"),
    [("openimages_common214", 57_224, 157, 214, 15_487), ("imagenet_multi1000", 50_000, 3_163, 1_000, 300)],
)
def test_real_label_files_have_the_counts_they_are_known_for(
    name: str, num_rows: int, num_empty: int, num_classes: int, largest: int
) -> None:
    presence = read_labels(str(DATA / f"{name}.tsv.gz")).presence
    num_labels = np.diff(presence.indptr)
    images_of = Counter(presence.ids.tolist())
    assert (presence.num_rows, int((num_labels == 0).sum())) == (num_rows, num_empty)
    assert (len(images_of), max(images_of.values())) == (num_classes, largest)


@pytest.mark.parametrize("wrong", [0, b"cat", None])
def test_names_of_classes_that_are_no_texts_are_refused(wrong: Any) -> None:
    with pytest.raises(LabelError, match=r"a class name must be str; got (0|b'cat'|None); `classes` are names"):
        Vocabulary(ids=(0,), names=(wrong,))


@pytest.mark.parametrize(
    ("class_id", "message"), [([], r"a class id must be int; got \[\]"), (1 << 63, "a class id must fit into 64 bits")]
)
def test_ids_of_categories_that_are_no_ids_are_refused(tmp_path: Path, class_id: Any, message: str) -> None:
    text = {"images": [], "annotations": [], "categories": [{"id": class_id, "name": "car"}]}
    with pytest.raises(LabelError, match=message):
        read_labels(write(tmp_path, "instances.json", text))


def test_a_label_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="must be one integer or one name"):
        read_labels(write(tmp_path, "labels.tsv", f"a\t{'9' * 5_000}"))


def test_a_function_in_a_column_that_gets_another_type_says_where(tmp_path: Path) -> None:
    path = write(tmp_path, "labels.jsonl", '{"key": "a", "labels": [1]}\n{"key": "b", "labels": 1}')
    with pytest.raises(LabelError, match=r"the column 'max\(labels\)' failed with .* in line 2 of .*labels.jsonl"):
        read_labels(f"{path}:max(labels)")


def test_with_msgspec_only_what_is_read_of_annotations_becomes_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("msgspec")
    annotations = [{"image_id": 139, "category_id": 17, "bbox": [0.5 + number] * 40} for number in range(2000)]
    path = write(tmp_path, "instances.json", {**COCO, "annotations": annotations})

    def read() -> tuple[LabelTable, int]:
        tracemalloc.start()
        table = read_labels(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return table, peak

    table, peak = read()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    plain, plain_peak = read()
    assert pickle.dumps(table) == pickle.dumps(plain)
    assert 2 * peak < plain_peak
