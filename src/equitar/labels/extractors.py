"""Label extractors: the ids or names of a sample, read from its members.

A *spec* says where the labels are:

    cls                          any text field: one integer, or one name without blanks
    json:PATH                    what the JMESPath PATH finds in the parsed `json` member; `json` is all of it
    npy                          any array field: ids (signed integers), or one-hot and multi-hot (bool, uint8, float)
    package.module:function      called with the members of a sample as bytes and its `__key__`; gives ids or names

Ids and names are never mixed, and never converted: true is not 1, "3" is not 3, and 3.0 is neither. An empty list means no
labels; a missing label is an error unless the caller passes `missing="empty"`.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import jmespath
import numpy as np
from jmespath.exceptions import JMESPathError

from equitar.errors import LabelError
from equitar.sources import Sample
from equitar.text import did_you_mean

Labels: TypeAlias = list[int] | list[str]
Missing: TypeAlias = Literal["error", "empty"]
FUNCTION_FIX = "read such labels with `package.module:function`"
_SPECS = "a field (`cls`, `txt`), `json:PATH`, `npy` or `package.module:function`"
_INTEGER = re.compile(r"[+-]?[0-9]{1,99}")  # Python refuses integers of thousands of digits
_LONG_INTEGER = re.compile(rb"[0-9]{19}")
_HEXADECIMAL = re.compile(r"[+-]?0[xob][0-9a-f]+", re.IGNORECASE)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_FIELD = re.compile(r"[^\s:/.][^\s:/]*")
_INTEGERS = (int, np.integer)  # `int | np.integer` would be built again for each label


class Extractor(Protocol):
    """Reads the labels of one sample; small and picklable, because it is sent to the processes that index."""

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The members it needs, or None for all of them."""

    def __call__(self, sample: Sample, *, where: str) -> Labels:
        """Return the labels; `where` names shard and key in errors."""


def labels_from_spec(spec: str, *, missing: Missing = "error") -> Extractor:
    """Return the extractor of a spec.

    ValueError if the spec is malformed, its JMESPath does not parse, or its function cannot be imported.

    Args:
        spec: ``cls``, ``json:PATH``, ``npy`` or ``package.module:function``; see the module.
        missing: Whether a sample without a label is an error or has no labels.

    >>> labels_from_spec("cls")({"cls": b" 3 "}, where="key 'a' of x.tar")
    [3]
    >>> labels_from_spec("json:boxes[].id")({"json": b'{"boxes": [{"id": 17}, {"id": 17}]}'}, where="key 'a' of x.tar")
    [17, 17]
    """
    if missing not in ("error", "empty"):
        raise ValueError(f"`missing` must be 'error' or 'empty'; got {missing!r}")
    if spec == "json" or spec.startswith("json:"):
        return JsonLabels(path=spec[len("json:") :] or "@", missing=missing)
    if _FUNCTION.fullmatch(spec):
        return FunctionLabels(function=spec, missing=missing)
    if not _FIELD.fullmatch(spec):
        raise ValueError(f"`labels` must be {_SPECS}; got {_with_guess(spec)}")
    field = spec.lower()  # as the fields of samples are
    if field.rsplit(".", 1)[-1] == "npy":
        return NpyLabels(field=field, missing=missing)
    return TextLabels(field=field, missing=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FieldLabels:
    """Labels from one member."""

    field: str
    missing: Missing = "error"

    @property
    def fields(self) -> tuple[str, ...]:
        """The members it needs."""
        return (self.field,)

    def __call__(self, sample: Sample, *, where: str) -> Labels:
        """Return the labels; `where` names shard and key in errors."""
        raw = _member(sample, self.field, self.missing, where)
        return [] if raw is None else self._labels(raw, where)

    def _labels(self, raw: bytes, where: str) -> Labels:
        raise NotImplementedError


class TextLabels(_FieldLabels):
    """One label from a text member: an integer, or a name of one word."""

    __slots__ = ()

    def _labels(self, raw: bytes, where: str) -> Labels:
        try:
            text = raw.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise LabelError(f"member {self.field!r} is not UTF-8 text for {where}; {FUNCTION_FIX}") from error
        return as_labels([parse_label(text, where=where)], where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLabels:
    """Labels at a JMESPath in the `json` member: a label, a list of them, or null for a missing label."""

    path: str
    missing: Missing = "error"
    fields: ClassVar[tuple[str, ...]] = ("json",)

    def __post_init__(self) -> None:
        search(self.path)

    def __call__(self, sample: Sample, *, where: str) -> Labels:
        """Return the labels; `where` names shard and key in errors."""
        raw = _member(sample, "json", self.missing, where)
        if raw is None:
            return []
        parsed = parse_json(raw, where=f"member 'json' of {where}")
        try:
            value = search(self.path)(parsed)
        except JMESPathError as error:  # a function in the path got an argument of a wrong type
            raise LabelError(f"`json:{self.path}` failed with {str(error)!r} for {where}; change the path") from error
        if value is None:
            return no_label(self.missing, f"null at `json:{self.path}`", where)
        return as_labels(value if isinstance(value, list) else [value], where=where)


class NpyLabels(_FieldLabels):
    """Labels from an array: signed integers are ids; bool, uint8 and float vectors have a 1 for each label present.

    In these, values below 1 (0, -1) mean absent. A vector that could be either is an error.
    """

    __slots__ = ()

    def _labels(self, raw: bytes, where: str) -> Labels:
        try:
            array = np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
        except ValueError as error:
            raise LabelError(f"member {self.field!r} is not an array ({error}) for {where}; {FUNCTION_FIX}") from error
        if array.ndim == 0 and array.dtype.kind in "iu":
            return as_labels([array.item()], where=where)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            actual = f"{array.dtype} of shape {array.shape}"
            raise LabelError(f"labels must be one id or a vector; got {actual} for {where}; {FUNCTION_FIX}")
        if array.dtype.kind in "bf" or array.dtype == np.uint8:
            return _present(array, where)
        return _ids(array, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionLabels:
    """Labels that a user's function returns for all members of a sample; None is a missing label."""

    function: str
    missing: Missing = "error"
    fields: ClassVar[None] = None  # only the function knows

    def __post_init__(self) -> None:
        _imported(self.function)

    def __call__(self, sample: Sample, *, where: str) -> Labels:
        """Return the labels; `where` names shard and key in errors."""
        try:
            result = _imported(self.function)(sample)
            values = [result] if isinstance(result, str | bytes) or not isinstance(result, Iterable) else list(result)
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            raise LabelError(f"`{self.function}` raised {error!r} for {where}; fix the function") from error
        if result is None:
            return no_label(self.missing, f"None from `{self.function}`", where)
        return as_labels(values, where=where)


def no_label(missing: Missing, what: str, where: str) -> Labels:
    """Return no labels, or raise a LabelError that says what was there instead."""
    if missing == "empty":
        return []
    fix = 'add it, or pass `missing="empty"` (`--missing empty`) if such samples have no labels'
    raise LabelError(f"the label is missing ({what}) for {where}; {fix}")


def _member(sample: Sample, field: str, missing: Missing, where: str) -> bytes | None:
    """Return the bytes of a member, None if it may be missing."""
    raw: bytes | None = sample.get(field)
    if raw is None:
        no_label(missing, f"no member {field!r}", where)
    return raw


def parse_label(text: str, *, where: str) -> int | str:
    """Return a word as an id or a name; one that looks like another kind of number is an error.

    >>> parse_label("-1", where="x.tar"), parse_label("cat", where="x.tar")
    (-1, 'cat')
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    if not text or re.search(r"[\s,;]", text) or _is_number(text):
        raise LabelError(f"a label must be one integer or one name; got {text!r} for {where}; {FUNCTION_FIX}")
    return text


def as_labels(values: Iterable[object], *, where: str) -> Labels:
    """Return values as labels if all are ids or all are names; otherwise raise a LabelError that names the value.

    >>> as_labels([3, 7, 7], where="x.tar")
    [3, 7, 7]
    """
    ids: list[int] = []
    names: list[str] = []
    for value in values:
        if isinstance(value, str) and value.strip():
            names.append(value)
        elif isinstance(value, _INTEGERS) and not isinstance(value, bool):
            if not -(1 << 63) <= value < 1 << 63:
                raise LabelError(f"a label id must fit into 64 bits; got {value} for {where}; {FUNCTION_FIX}")
            ids.append(int(value))
        else:
            actual = f"{value!r:.80} ({type(value).__name__}) for {where}"
            fix = "give the path to it as `json:PATH`" if isinstance(value, dict) else FUNCTION_FIX
            raise LabelError(f"a label must be an integer or a name; got {actual}; {fix}")
    if ids and names:
        raise LabelError(
            f"labels must be all ids or all names; got {ids[0]!r} and {names[0]!r} for {where}; use one kind"
        )
    return ids or names


def parse_json(raw: bytes, *, where: str) -> Any:
    """Return the value of JSON bytes in UTF-8; broken JSON is a LabelError.

    A byte-order mark is ignored, and NaN is a float, as in Python, whether or not orjson is installed.
    """
    fast = _fast_loads()
    if fast is not None and not _LONG_INTEGER.search(raw):  # which it reads as a float
        with suppress(ValueError):  # it is stricter: what it refuses is judged below
            return fast(raw)
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise LabelError(f"JSON is broken ({error}) for {where}; write it again") from error


def _present(array: np.ndarray[Any, Any], where: str) -> list[int]:
    # If everything but 1 meant absent, 0.9 of a smoothed label or the id 7 stored as uint8 would be lost.
    odd = array[(array > 1) | (array != np.floor(array))] if array.dtype.kind != "b" else array[:0]
    if len(odd):
        fix = f"save ids as int64; {FUNCTION_FIX}"
        raise LabelError(f"a multi-hot {array.dtype} vector must hold 0 and 1 only; got {odd[0]} for {where}; {fix}")
    return [int(index) for index in np.flatnonzero(array == 1)]


def _ids(array: np.ndarray[Any, Any], where: str) -> Labels:
    if len(array) and array.min() < 0:
        raise LabelError(f"ids in a vector must not be negative; got {array.min()} for {where}; {FUNCTION_FIX}")
    # One-hot vectors from `np.eye(5, dtype=int)` look like this; as ids, all of them would be {0, 1}.
    if len(array) > 1 and array.max() <= 1:
        fix = f"save multi-hot vectors as bool; {FUNCTION_FIX}"
        raise LabelError(f"{array.dtype} vector of 0 and 1 only may be ids or multi-hot for {where}; {fix}")
    ids: list[int] | list[str] = array.tolist()
    return ids


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return _HEXADECIMAL.fullmatch(text) is not None
    return True


@cache
def _fast_loads() -> Callable[[bytes], Any] | None:
    return importlib.import_module("orjson").loads if importlib.util.find_spec("orjson") else None


# Looked up by text instead of held by the extractors, so that parsed paths and functions need not be picklable.
@cache
def search(path: str) -> Callable[[Any], Any]:
    """Return the lookup of a JMESPath; a ValueError if it does not parse."""
    try:
        return jmespath.compile(path).search
    except JMESPathError as error:
        raise ValueError(f"`labels` must hold a JMESPath after 'json:'; got {path!r} ({error})") from error


def _with_guess(spec: str) -> str:
    """Return a spec that is wrong, and whether `json` was meant."""
    kind, _, path = spec.partition(":")
    return repr(spec) + did_you_mean(kind, ["json"], spelled={"json": f"json:{path}"})


@cache
def _imported(name: str) -> Callable[[Sample], Any]:
    module, _, attribute = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"`labels` must be {_SPECS} that can be imported; got {_with_guess(name)} ({error})"
        ) from error
    function: Callable[[Sample], Any] = target
    return function
