"""Members of one sample that lie apart: an error, or one sample if that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from helpers import odd_tars
from helpers.odd_tars import END, folder, member, pax, two_samples

APART = member("a.jpg", b"A" * 700) + member("b.jpg", b"B") + member("a.cls", b"3") + member("b.cls", b"4")
BOTH = {"a": {"jpg": b"A" * 700, "cls": b"3"}, "b": {"jpg": b"B", "cls": b"4"}}


def indexed(path: Path, raw: bytes, *, regroup: bool = True) -> equitar.Source:
    path.write_bytes(raw)
    source = equitar.Source("s", str(path))
    equitar.index(source, labels="cls", jobs=1, progress=False, regroup=regroup, force=True)
    return source


def samples_of(source: equitar.Source, *, copy: bool = True) -> dict[str, dict[str, bytes]]:
    batches = equitar.exact([source], batch_size=1, collate_fn=list, copy=copy, rank=0, world_size=1)
    samples = [sample for batch in batches for sample in batch]
    return {
        sample["__key__"]: {name: bytes(value) for name, value in sample.items() if not name.startswith("__")}
        for sample in samples
    }


@pytest.mark.parametrize(
    "raw",
    [
        APART + END,
        folder("d/") + APART + END,
        pax({"path": "a.jpg"}) + member("long", b"A" * 700) + APART[3 * 512 :] + END,
    ],
)
@pytest.mark.parametrize("copy", [True, False])
def test_scattered_members_become_one_sample_where_the_first_is(raw: bytes, copy: bool, tmp_path: Path) -> None:
    source = indexed(tmp_path / "x.tar", raw)
    assert list(samples_of(source, copy=copy).items()) == list(BOTH.items())
    assert equitar.check(source, jobs=1, progress=False) == []


def test_without_the_option_they_are_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(equitar.errors.ShardError, match=r"key 'a' again at byte 3072 .*after byte 512.*--regroup"):
        indexed(tmp_path / "x.tar", APART + END, regroup=False)
    assert not list(tmp_path.glob("*.npz"))


def test_shards_that_need_no_regrouping_are_indexed_as_without_it(tmp_path: Path) -> None:
    made = []
    for regroup in (True, False):
        indexed(tmp_path / "x.tar", two_samples() + END, regroup=regroup)
        made.append((tmp_path / "x.presence.npz").read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (APART + member("a.jpg", b"new") + END, "field 'jpg' of key 'a' twice"),
        (APART + member("./a.txt", b"new") + END, "keys './a' and 'a'"),
        (APART, "ends without an end mark, so members of any sample may be missing"),
        (APART[:-100], "is damaged at byte"),
        (odd_tars.CASES["dot_slash_mixed"].make()["dot_slash_mixed.tar"], "keys './a' and 'a'"),
    ],
)
def test_all_else_stays_an_error(raw: bytes, error: str, tmp_path: Path) -> None:
    with pytest.raises(equitar.errors.ShardError, match=error):
        indexed(tmp_path / "x.tar", raw)


def test_the_command_line_has_it(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(APART + END)
    words = ["index", f"s={tmp_path}/x.tar", "--labels", "cls", "--jobs", "1", "--quiet"]
    assert "--regroup" in CliRunner().invoke(main, words).output
    ran = CliRunner().invoke(main, [*words, "--regroup"])
    assert ran.exit_code == 0, ran.output
    assert samples_of(equitar.Source("s", f"{tmp_path}/x.tar")) == BOTH
