"""Do the examples run, at a tiny size, and is what they claim so?"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import demo_shards
import equitar
from helpers.pages import write_digits

EXAMPLES = Path(demo_shards.__file__).parent


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "shards"
    write_digits(folder)
    return folder


def test_contrastive_training_finds_captions_more_often_than_chance(shards: Path) -> None:
    import contrastive

    assert contrastive.main(shards, 60) > 1.3


def test_the_classifier_sees_rare_classes_more_often_with_repeats(shards: Path) -> None:
    import classifier

    accuracy = classifier.main(shards, 20)
    assert set(accuracy) == {"none", "t = 1"}
    assert all(0 <= share <= 1 for share in accuracy.values())


def test_the_demo_tells_what_came(shards: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(equitar.__file__).parents[1]), str(EXAMPLES)])
    # Its own sources, but for those that take seconds to make.
    (tmp_path / "small_demo.py").write_text(
        "import demo, demo_shards\n"
        f"SHARDS = {str(shards)!r}\n"
        "demo_shards.write_all = lambda _: {one: f'{SHARDS}/{one}-*.tar' for one in ('digits', 'negatives')}\n"
        "if __name__ == '__main__':\n"
        "    demo.main()\n"
    )
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "small_demo.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert ran.returncode == 0, ran.stderr
    assert "22 batches of 32; 0 of them hold more than one source" in ran.stdout
    assert "704 different samples; no sample came twice: True" in ran.stdout
    assert re.search(r"digits/9 +2 +4\.72 +9\.4 +(9|10) ", ran.stdout)
    assert len(re.findall(r"[\d,]+ samples/s", ran.stdout)) == 2
    assert (tmp_path / "stats.png").stat().st_size > 10_000


@pytest.mark.parametrize(("name", "most"), [("demo", 119), ("contrastive", 79), ("classifier", 79)])
def test_examples_are_short_and_may_be_imported_by_spawned_workers(name: str, most: int) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= most
    *_, last = ast.parse(text).body
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
