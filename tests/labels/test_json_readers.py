"""JSON and text of labels: the same with and without the extra `fast`, byte-order marks and NaN included."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equitar.errors import LabelError
from equitar.labels import extractors
from equitar.labels.extractors import labels_from_spec, parse_json
from equitar.labels.tables import read_classes, read_labels

BOM = codecs.BOM_UTF8
WHERE = "key 'a' of x.tar"
COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"image_id": 1, "category_id": 3, "area": float("nan")}],
    "categories": [{"id": 3, "name": "cat"}],
}


def strict(raw: bytes) -> Any:
    """Refuse what orjson refuses, where that is not installed."""

    def refused(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    if raw.startswith(BOM):
        raise ValueError("byte order mark")
    return json.loads(raw.decode(), parse_constant=refused)


def without_extra() -> None:
    return None


def with_extra() -> Callable[[bytes], Any]:
    orjson = pytest.importorskip("orjson")
    return orjson.loads  # type: ignore[no-any-return]


@pytest.fixture(params=["without", "with", "like"])
def extra(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read by the standard library, by orjson, and by a reader that is as strict."""
    readers: dict[str, Callable[[], Any]] = {"without": without_extra, "with": with_extra, "like": lambda: strict}
    reader = readers[request.param]
    reader()
    monkeypatch.setattr(extractors, "_fast_loads", reader)
    if request.param == "without":
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return str(request.param)


def test_a_byte_order_mark_is_no_part_of_a_text_label() -> None:
    assert labels_from_spec("cls")({"cls": BOM + b"3\n"}, where=WHERE) == [3]
    assert labels_from_spec("txt")({"txt": BOM + b"cat"}, where=WHERE) == ["cat"]


@pytest.mark.parametrize(
    ("raw", "labels"),
    [
        (BOM + b'{"id": [3, 7]}', [3, 7]),
        (b'{"score": NaN, "id": 3}', [3]),
        (b'{"score": [-Infinity, Infinity, 1e999], "id": ["cat"]}', ["cat"]),
        (BOM + b'{"score": NaN, "id": 3}', [3]),
    ],
)
def test_byte_order_marks_and_nan_beside_a_label_do_not_matter(extra: str, raw: bytes, labels: list[Any]) -> None:
    assert labels_from_spec("json:id")({"json": raw}, where=WHERE) == labels


@pytest.mark.parametrize("raw", [b'{"id": NaN}', b'{"id": [3, NaN]}', BOM + b'{"id": Infinity}'])
def test_a_label_that_is_not_a_number_is_an_error_with_its_key(extra: str, raw: bytes) -> None:
    with pytest.raises(
        LabelError, match=r"must be an integer or a name; got (nan|inf) \(float\) for key 'a' of x\.tar"
    ):
        labels_from_spec("json:id")({"json": raw}, where=WHERE)


@pytest.mark.parametrize("raw", [b'{"id": 1', b"", BOM, "[1]".encode("utf-16"), b'["\xff"]', b"[1,]", b"{'id': 1}"])
def test_what_is_broken_is_broken_for_all_readers(extra: str, raw: bytes) -> None:
    with pytest.raises(LabelError, match=r"^JSON is broken \(.*\) for key 'a' of x\.tar; write it again$"):
        parse_json(raw, where=WHERE)


def test_integers_of_any_length_stay_integers(extra: str) -> None:
    assert parse_json(b'{"id": 18446744073709551617}', where=WHERE) == {"id": 18446744073709551617}


def test_label_files_may_begin_with_a_mark_and_hold_nan(extra: str, tmp_path: Path) -> None:
    files = {
        "a.jsonl": b'{"key": "a", "labels": [3], "score": NaN}',
        "a.json": json.dumps(COCO).encode(),
        "a.tsv": b"a\t3",
    }
    for name, raw in files.items():
        (tmp_path / name).write_bytes(BOM + raw)
        table = read_labels(str(tmp_path / name))
        assert (table.keys, table.presence.ids.tolist()) == (("a",), [3])
    (tmp_path / "classes.txt").write_bytes(BOM + b"cat\ndog\n")
    assert read_classes(str(tmp_path / "classes.txt")).names == ("cat", "dog")
