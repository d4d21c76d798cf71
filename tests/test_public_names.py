"""Is what users are told to write there, and is nothing public by accident?"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import equitar
from equitar.errors import EquitarError

# What the README and the docs teach. A name goes only with a major version.
PROMISED = (
    *("Source", "split", "RepeatFactor", "EquitarError"),
    *("debiased", "mixed", "exact", "Loader"),
    *("index", "check", "summarize", "stats", "plan", "report", "export", "bench"),
)


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names_are_public(name: str) -> None:
    assert name in equitar.__all__
    assert getattr(equitar, name) is not None


def test_public_names_are_sorted_distinct_and_shown_by_dir() -> None:
    names = list(equitar.__all__)
    assert names == sorted(set(names))
    assert set(names) <= set(dir(equitar))


def test_every_public_class_and_function_says_what_it_is() -> None:
    public = {name: getattr(equitar, name) for name in equitar.__all__}
    silent = [
        name
        for name, value in public.items()
        if (inspect.isclass(value) or callable(value)) and not inspect.getdoc(value)
    ]
    assert not silent, f"no docstring: {', '.join(silent)}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    misspelt = "debaised"
    with pytest.raises(AttributeError, match=misspelt):
        getattr(equitar, misspelt)


def test_a_star_import_in_a_fresh_process_brings_every_public_name() -> None:
    program = "from equitar import *; import equitar; print(*(set(equitar.__all__) - set(globals())))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr


def test_stages_show_the_names_that_their_stub_declares() -> None:
    stub = Path(equitar.__file__).with_name("stages.pyi").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^from \S+ import (\w+) as \1$", stub, re.MULTILINE)) == dir(equitar.stages)
    assert all(callable(getattr(equitar.stages, name)) for name in dir(equitar.stages))
    assert not set(dir(equitar.stages)) & set(dir(equitar))


def test_a_stage_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'slicez'"):
        equitar.stages.slicez  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_an_equitar_error_and_a_builtin_one() -> None:
    raised = [value for value in vars(equitar.errors).values() if inspect.isclass(value) and value is not EquitarError]
    assert len(raised) >= 12
    for error in raised:
        assert issubclass(error, EquitarError)
        assert issubclass(error, ValueError | RuntimeError)
