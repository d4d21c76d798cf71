"""Every spelling of a label ends as ids or names, or as an error that says where and what to do."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from equitar.errors import LabelError
from equitar.labels.extractors import Labels, labels_from_spec, parse_json
from helpers.odd_tars import LABELS

WHERE = "key 'a' of x.tar"
THIS = "labels_of_user"  # the module of the functions below, as a user's would be


def npy(values: Any, dtype: Any = None) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, dtype))
    return file.getvalue()


def read(spec: str, raw: bytes | None, *, member: str | None = None) -> Labels:
    field = member or spec.partition(":")[0]
    return labels_from_spec(spec)({"__key__": "a"} | ({} if raw is None else {field: raw}), where=WHERE)


@pytest.fixture
def user_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Any]], str]]:
    """Give the spec of a function as if a user's module held it."""
    from equitar.labels.extractors import _imported

    module = type(sys)(THIS)
    monkeypatch.setitem(sys.modules, THIS, module)

    def spec_of(function: Callable[..., Any]) -> str:
        module.__dict__["function"] = function
        _imported.cache_clear()
        return f"{THIS}:function"

    yield spec_of
    _imported.cache_clear()


@pytest.mark.parametrize(
    ("case", "spec", "labels"),
    [
        ("cls_newline", "cls", [3]),
        ("cls_name", "cls", ["cat"]),
        ("cls_negative", "cls", [-1]),
        ("json_list", "json", [3, 7, 7]),
        ("json_list", "json:@", [3, 7, 7]),
        ("json_empty", "json:[]", []),
        ("json_names", "json:labels", ["cat", "dog"]),
        ("json_coco", "json:annotations[].category_id", [17, 17, 90]),
        ("json_coco", "json:image_id", [9]),
        ("npy_onehot", "npy", [1, 4]),
        ("npy_scalar", "npy", [7]),
    ],
)
def test_a_right_spelling_gives_its_labels(case: str, spec: str, labels: Labels) -> None:
    assert labels_from_spec(spec)(dict(LABELS[case]), where=WHERE) == labels


@pytest.mark.parametrize(
    ("case", "spec", "message"),
    [
        ("cls_blank", "cls", "got ''"),
        ("cls_float", "cls", "got '3.0'"),
        ("cls_list", "cls", "got '3,7'"),
        ("txt_multi", "txt", "got 'cat, dog.*bird'"),
        ("json_mixed", "json:labels", r"got 3.0 \(float\)"),
        ("json_mixed", "json:labels[3]", r"got True \(bool\)"),
        ("json_mixed", "json:labels[:2]", "got 3 and '3'"),
        ("json_broken", "json:labels", "JSON is broken"),
    ],
)
def test_a_wrong_spelling_is_an_error_with_value_and_place(case: str, spec: str, message: str) -> None:
    with pytest.raises(LabelError, match=message) as caught:
        labels_from_spec(spec)(dict(LABELS[case]), where=WHERE)
    assert WHERE in str(caught.value)


@pytest.mark.parametrize("case", ["cls_blank", "cls_float", "cls_list"])
def test_a_number_that_is_no_integer_names_the_way_to_read_it(case: str) -> None:
    with pytest.raises(LabelError, match=r"package\.module:function"):
        read("cls", LABELS[case]["cls"])


@pytest.mark.parametrize(
    ("text", "label"),
    [(" +3 ", 3), ("007", 7), ("n01440764", "n01440764"), ("/m/01g317", "/m/01g317"), ("größe", "größe"), ("e", "e")],
)
def test_a_word_is_an_integer_or_a_name(text: str, label: int | str) -> None:
    assert read("txt", text.encode()) == [label]


@pytest.mark.parametrize(
    "text", ["1e5", "nan", "-inf", ".5", "1_000", "0x1F", "3;7", "teddy bear", "\uff13", "cat,dog"]
)
def test_text_that_looks_like_something_else_is_never_a_name(text: str) -> None:
    with pytest.raises(LabelError, match="one integer or one name"):
        read("cls", text.encode())


def test_an_image_is_no_text() -> None:
    with pytest.raises(LabelError, match="'jpg' is not UTF-8 text"):
        read("jpg", b"\xff\xd8\xff\xe0")


@pytest.mark.parametrize("raw", [str(2**63).encode(), b"-99999999999999999999"])
def test_an_id_beyond_64_bits_is_an_error(raw: bytes) -> None:
    with pytest.raises(LabelError, match="64 bits"):
        read("cls", raw)


@pytest.mark.parametrize("spec", ["cls", "json:labels", "npy"])
def test_a_missing_member_is_an_error_unless_it_may_be_empty(spec: str) -> None:
    with pytest.raises(LabelError, match=f"no member .*{WHERE}.*--missing empty"):
        labels_from_spec(spec)({"jpg": b"image"}, where=WHERE)
    assert labels_from_spec(spec, missing="empty")({"jpg": b"image"}, where=WHERE) == []


def test_null_is_a_missing_label_and_an_empty_list_is_not() -> None:
    assert read("json:labels", b'{"labels": []}') == []
    with pytest.raises(LabelError, match="null at `json:labels`"):
        read("json:labels", b"{}")
    assert labels_from_spec("json:labels", missing="empty")({"json": b"{}"}, where=WHERE) == []


@pytest.mark.parametrize(
    "raw", [b'{"a": {"b": 1}}', b'{"a": [[1], [2]]}', b'{"a": [1, null]}', b'{"a": ""}', b'{"a": 1.0}']
)
def test_json_that_is_no_label_is_an_error(raw: bytes) -> None:
    with pytest.raises(LabelError, match=f"must be an integer or a name; got .*{WHERE}"):
        read("json:a", raw)


def test_a_path_that_fails_on_a_sample_names_the_sample() -> None:
    with pytest.raises(LabelError, match=f"`json:length.a.` failed .*{WHERE}"):
        read("json:length(a)", b'{"a": 3}')


@pytest.mark.parametrize(
    ("raw", "labels"),
    [
        (npy([3, 7, 7]), [3, 7, 7]),
        (npy([3, 7], np.uint16), [3, 7]),
        (npy([], np.int64), []),
        (npy([0], np.int64), [0]),
        (npy(-1), [-1]),
        (npy(7, np.uint8), [7]),
        (npy([False, True, True]), [1, 2]),
        (npy([0, 0], np.uint8), []),
        (npy([1.0, 0.0, -1.0, 1.0]), [0, 3]),
        (npy([0, 1], np.float16), [1]),
    ],
)
def test_arrays_are_ids_or_say_which_are_present(raw: bytes, labels: Labels) -> None:
    assert read("npy", raw) == labels


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (npy([3, -1]), "must not be negative; got -1"),
        (npy([0, 1, 0, 0]), "may be ids or multi-hot"),
        (npy([3, 7], np.uint8), "must hold 0 and 1 only; got 3"),
        (npy([0.0, 0.9]), "must hold 0 and 1 only; got 0.9"),
        (npy([np.nan, 1.0]), "got nan"),
        (npy([[1, 0], [0, 1]], bool), r"bool of shape \(2, 2\)"),
        (npy(3.0), "float64 of shape"),
        (npy(True), "bool of shape"),
        (npy(["cat"]), "<U3 of shape"),
        (npy([3, 7])[:-1], "is not an array"),
        (b"3", "is not an array"),
    ],
)
def test_an_array_that_could_be_misread_is_an_error(raw: bytes, message: str) -> None:
    with pytest.raises(LabelError, match=f"{message}.*{WHERE}"):
        read("npy", raw)


def test_an_array_is_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(LabelError, match="allow_pickle=False"):
        read("npy", file.getvalue())


def test_a_field_may_have_dots_and_any_case() -> None:
    assert read("Label.TXT", b"3", member="label.txt") == [3]
    assert read("label.npy", npy([3, 7]), member="label.npy") == [3, 7]


@pytest.mark.parametrize(
    ("function", "labels"),
    [
        (lambda sample: [int(word) for word in sample["txt"].split(b",")], [3, 7]),
        (lambda sample: {sample["__key__"]}, ["a"]),
        (lambda sample: (name for name in ("cat", "dog")), ["cat", "dog"]),
        (lambda sample: np.array([3, 7]), [3, 7]),
        (lambda sample: "cat", ["cat"]),
        (lambda sample: 3, [3]),
        (lambda sample: [], []),
    ],
)
def test_a_function_gets_bytes_and_key_and_gives_labels(
    user_function: Callable[..., str], function: Callable[..., Any], labels: Labels
) -> None:
    extract = labels_from_spec(user_function(function))
    assert extract.fields is None
    assert extract({"__key__": "a", "txt": b"3,7"}, where=WHERE) == labels


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda sample: sample["gone"], r"raised KeyError\('gone'\)"),
        (lambda sample: (int(word) for word in ["x"]), "raised ValueError"),
        (lambda sample: None, "None from `labels_of_user:function`"),
        (lambda sample: [b"cat"], r"got b'cat' \(bytes\)"),
        (lambda sample: [True], r"got True \(bool\)"),
        (lambda sample: [3.0], r"got 3.0 \(float\)"),
        (lambda sample: [3, "cat"], "got 3 and 'cat'"),
    ],
)
def test_what_a_function_does_wrong_is_told_with_the_sample(
    user_function: Callable[..., str], function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(LabelError, match=f"{message}.*{WHERE}"):
        labels_from_spec(user_function(function))({"__key__": "a"}, where=WHERE)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "must be a field"),
        (".cls", "must be a field"),
        ("a b", "must be a field"),
        ("cls:labels[]", "must be a field"),
        ("json:[", "JMESPath"),
        ("no_such_module:function", "got 'no_such_module:function'"),
        ("math:no_such_function", "no_such_function"),
    ],
)
def test_a_spec_that_stands_for_nothing_is_refused_at_once(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        labels_from_spec(spec)


def test_missing_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="got 'drop'"):
        labels_from_spec("cls", missing="drop")  # type: ignore[arg-type] # what is tested


@pytest.mark.parametrize("spec", ["cls", "json:a[].b", "npy", "math:sqrt"])
def test_extractors_survive_pickling_and_are_equal_by_value(spec: str) -> None:
    extract = labels_from_spec(spec, missing="empty")
    assert pickle.loads(pickle.dumps(extract)) == extract
    assert extract == labels_from_spec(spec, missing="empty")


def test_json_that_is_nested_without_end_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equitar.labels.extractors._fast_loads", lambda: None)
    with pytest.raises(LabelError, match=r"^JSON is broken \(.*recursion.*\) for key 'a'"):
        parse_json(b"[" * 100_000, where="key 'a'")
