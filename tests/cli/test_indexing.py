"""The command line of `index` and `check`: sources in words, tables out, errors in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import equitar as package
from equitar import cli as equitar_cli
from equitar.cli.app import main
from equitar.cli.options import debug_option, parse_sources
from equitar.errors import SourceError
from equitar.sidecars.sidecar import read_sidecar
from equitar.sidecars.summary import load_summary
from equitar.sources import Source
from helpers.odd_tars import END, member


def shard(path: Path, *labels: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(member(f"{row}.cls", label.encode()) for row, label in enumerate(labels)) + END)
    return str(path)


def equitar(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


@pytest.fixture
def five(tmp_path: Path) -> str:
    for number in range(5):
        shard(tmp_path / f"x-{number}.tar", str(number), str(number + 1))
    return f"{tmp_path}/x-{{0..4}}.tar"


@pytest.mark.parametrize(
    ("words", "sources"),
    [
        (["a=x-{0..9}.tar"], {"a": "x-{0..9}.tar"}),
        (["a=0.tar", "b=0.tar", "a=1.tar"], {"a": ("0.tar", "1.tar"), "b": "0.tar"}),
        (["cc3m.v1-b=s3://bucket/a=b?c.tar"], {"cc3m.v1-b": "s3://bucket/a=b?c.tar"}),
        (["a=pipe:curl -s 'http://host/x.tar?k=v'"], {"a": "pipe:curl -s 'http://host/x.tar?k=v'"}),
    ],
)
def test_equal_names_on_a_line_are_one_source(words: list[str], sources: dict[str, str | tuple[str, ...]]) -> None:
    assert {source.name: source.urls for source in parse_sources(words)} == sources


@pytest.mark.parametrize("word", ["x.tar", "=x.tar", "a=", "s3://bucket/a=b.tar", "", "a b=x.tar"])
def test_a_source_without_a_name_is_told_how_to_get_one(word: str) -> None:
    with pytest.raises(click.UsageError, match=r"must be name=urls; got .*; write, for example, train="):
        parse_sources(["good=x.tar", word])


def test_index_prints_a_table_of_what_it_did(five: str, tmp_path: Path) -> None:
    shard(tmp_path / "other/y.tar", "0")
    words = [f"big={five}", f"small={tmp_path}/other/y.tar", "--labels", "cls"]
    result = equitar("index", *words)
    assert result.exit_code == 0, result.output
    head, *rows = [line.split() for line in result.output.splitlines()]
    assert head == ["source", "written", "up", "to", "date", "samples", "MB"]
    assert [row[:4] for row in rows] == [["big", "5", "0", "10"], ["small", "1", "0", "1"]]
    again = [line.split()[:4] for line in equitar("index", *words).output.splitlines()[1:]]
    assert again == [["big", "0", "5", "10"], ["small", "0", "1", "1"]]


def test_what_a_shell_expands_is_what_a_pattern_stands_for(five: str, tmp_path: Path) -> None:
    expanded = [f"big={tmp_path}/x-{number}.tar" for number in range(5)]
    assert equitar("index", *expanded).exit_code == 0
    assert load_summary(Source("big", five)).num_samples.tolist() == [2] * 5


def test_sidecars_and_summary_go_where_they_are_told(five: str, tmp_path: Path) -> None:
    assert equitar("index", f"big={five}", "--sidecars", f"{tmp_path}/side", "--root", str(tmp_path)).exit_code == 0
    assert len(list((tmp_path / "side").glob("x-?.presence.npz"))) == 5
    assert not list(tmp_path.glob("*.npz"))


def test_labels_may_come_from_a_file_without_crowds(tmp_path: Path) -> None:
    shard(tmp_path / "x.tar", "?")
    (tmp_path / "coco.json").write_text(
        '{"images": [{"id": 0, "file_name": "0.jpg"}, {"id": 1, "file_name": "1.jpg"}],'
        ' "annotations": [{"image_id": 0, "category_id": 3, "iscrowd": 1}, {"image_id": 0, "category_id": 7}],'
        ' "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]}'
    )
    result = equitar("index", f"s={tmp_path}/x.tar", "--labels-from", f"{tmp_path}/coco.json", "--without-crowd")
    assert "s: 1 keys of" in result.output
    presence = read_sidecar(f"{tmp_path}/x.presence.npz", fix="").presence
    assert presence is not None
    assert presence.ids.tolist() == [7]


def test_classes_and_missing_are_read(tmp_path: Path) -> None:
    path = shard(tmp_path / "x.tar", "dog")
    Path(path).write_bytes(member("9.jpg", b"image") + Path(path).read_bytes())
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    words = ["index", f"s={path}", "--labels", "cls", "--classes", f"{tmp_path}/classes.txt"]
    assert "--missing empty" in equitar(*words).output
    assert equitar(*words, "--missing", "empty").exit_code == 0
    assert load_summary(Source("s", path)).class_names == ((0, 1), ("cat", "dog"))


def test_an_error_is_one_line_with_its_fix_and_exit_code_1(five: str, tmp_path: Path) -> None:
    shard(tmp_path / "x-3.tar", "3.0")
    result = equitar("index", f"big={five}", "--labels", "cls")
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("Error: 1 error in 5 shards: ")
    assert "'3.0' for key '0'" in line
    assert "x-3.tar" in line
    assert "package.module:function" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "s=/no/such/*.tar"], "matches no file; folder '/no/such' not found; check the path"),
        (["index", "s=/"], "source 's' names the folder '/' but must name shards, as in '/*.tar'"),
        (["index", "s=@/no/such.txt"], "source 's' lists '@/no/such.txt', but the file was not found"),
        (["index", "s=/no/such.tar"], "1 of 1 shards are missing: 'such.tar'"),
        (["index", "s=/no/such.tar", "--labels", "a b"], "must be a field"),
        (["index", "s=/no/such.tar", "--labels-from", "no-such.tsv"], "the file no-such.tsv was not found"),
        (
            ["index", "s=/no/such.tar", "--labels", "cls", "--classes", "no-such.txt"],
            "the file no-such.txt was not found",
        ),
        (["index", "s=/no/such.tar", "--labels", "jsn:a"], "must be a field (`cls`, `txt`), `json:PATH`, `npy` or"),
        (["check", "s=/no/such.tar", "--against", "no.json"], "file not found: 'no.json'; check the path"),
        (["check", "s=/no/such.tar"], "run `equitar index s=/no/such.tar`"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(words: list[str], message: str) -> None:
    result = equitar(*words)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) <= 2


@pytest.mark.parametrize("words", [["--debug", "index", "s=@no.txt"], ["index", "s=@no.txt", "--debug"]])
def test_debug_gives_the_error_itself(words: list[str]) -> None:
    assert isinstance(equitar(*words).exception, SourceError)


@pytest.mark.parametrize(
    ("word", "meant"), [("x.tar", "x.tar"), ("=x.tar", "x.tar"), ("a b=x.tar", "x.tar"), ("a=", "shard-*.tar")]
)
def test_a_wrong_source_is_wrong_usage_and_told_what_may_be_meant(word: str, meant: str) -> None:
    result = equitar("index", word)
    assert result.exit_code == 2
    assert f"got {word!r}; write, for example, train={meant}\n" in result.output


def test_a_reader_that_has_enough_is_no_error(five: str) -> None:
    """As in `equitar ... | head`: nothing is said, least of all in the middle of what was asked for."""
    equitar("index", f"s={five}")
    words = [sys.executable, "-m", "equitar.cli", "plan", f"s={five}", "--batch-size", "1", "--steps", "20000"]
    environment = {**os.environ, "PYTHONPATH": str(Path(equitar_cli.__file__).parents[2])}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*words, "--json", "--samples"], env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_field_that_no_sample_has_is_told_with_those_there_are(five: str) -> None:
    output = equitar("index", f"s={five}", "--labels", "class").output
    assert "labels are read from field 'class' (did you mean 'cls'?) but samples of " in output
    assert "x-0.tar have 'cls'; name one of these" in output


def test_the_version_is_told() -> None:
    assert equitar("--version").output == f"equitar {package.__version__}\n"


def test_wrong_options_are_told_as_click_tells_them(five: str) -> None:
    result = equitar("index", f"s={five}", "--jobs", "0")
    assert result.exit_code == 2
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--without-crowd", "--labels", "cls"], "`--without-crowd` needs `--labels-from`"),
        (["--classes", "x.txt"], "`--classes` needs `--labels` or `--labels-from`"),
        (["--missing", "empty"], "`--missing` needs `--labels` or `--labels-from`"),
        (["--dry-run", "--part", "0/2"], "`--dry-run` estimates the cost of all parts together"),
    ],
)
def test_an_option_that_would_do_nothing_is_told(words: list[str], message: str, five: str) -> None:
    result = equitar("index", f"s={five}", *words)
    assert (result.exit_code, message in result.output) == (2, True)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, in which no folder can be made")
def test_a_folder_that_cannot_be_made_is_not_a_missing_shard(five: str) -> None:
    output = equitar("index", f"s={five}", "--sidecars", "/proc/no").output
    assert "/proc/no/x-" in output
    assert "cannot be written" in output


def test_check_is_quiet_about_what_is_right_and_names_what_is_not(five: str, tmp_path: Path) -> None:
    equitar("index", f"big={five}", "--labels", "cls")
    right = equitar("check", f"big={five}")
    assert (right.exit_code, right.output) == (0, "OK: 5 sidecars match their shards\n")
    shard(tmp_path / "x-1.tar", "1", "7")
    wrong = equitar("check", f"big={five}")
    assert wrong.exit_code == 1
    assert "x-1.tar has other labels than its sidecar" in wrong.output
    assert "--force" in wrong.output


@pytest.mark.parametrize("command", [[], ["index"], ["check"]])
def test_help_teaches_by_an_example(command: list[str]) -> None:
    result = equitar(*command, "--help")
    assert result.exit_code == 0
    assert f"  equitar {' '.join(command) or 'index'} cc3m=/data/cc3m-{{000000..000331}}.tar" in result.output


def test_a_command_of_another_module_gets_the_same_errors_and_options() -> None:
    @click.command("break")
    @debug_option
    def broken() -> None:
        raise RuntimeError("one line; fix it")

    group = type(main)("equitar", commands=[broken])
    result = CliRunner().invoke(group, ["break"])
    assert (result.exit_code, result.output) == (1, "Error: one line; fix it\n")
    assert isinstance(CliRunner().invoke(group, ["break", "--debug"]).exception, RuntimeError)


@pytest.mark.parametrize("entry", ["module", "script"])
def test_a_process_of_its_own_finds_a_function_in_the_folder_it_is_in(five: str, tmp_path: Path, entry: str) -> None:
    (tmp_path / "my_labels.py").write_text("def twice(sample):\n    return [2 * int(sample['cls'])]\n")
    script = tmp_path / "bin" / "equitar"  # as an installed one, elsewhere
    script.parent.mkdir()
    script.write_text("from equitar.cli import main\nif __name__ == '__main__':\n    main()\n")
    words = ["index", f"big={five}", "--labels", "my_labels:twice", "--jobs", "2"]
    ran = subprocess.run(
        [sys.executable, *(["-m", "equitar.cli"] if entry == "module" else [str(script)]), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(equitar_cli.__file__).parents[2])},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[1].split()[:4] == ["big", "5", "0", "10"]
    assert ran.stderr == ""
    counts = load_summary(Source("big", five)).label_counts
    assert counts is not None
    assert sorted(set(counts.ids.tolist())) == [0, 2, 4, 6, 8, 10]


def test_the_command_line_loads_nothing_heavy() -> None:
    program = "import sys, equitar.cli.app; print(*{'torch', 'webdataset', 'matplotlib', 'fsspec'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_labels_come_from_a_column_of_many_parquet_files(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    shard(tmp_path / "00000.tar", "0", "0")
    shard(tmp_path / "00001.tar", "0")
    parquet.write_table(pa.table({"key": ["1", "0"], "class": ["dog", "cat"]}), tmp_path / "00000.parquet")
    parquet.write_table(pa.table({"key": ["2"], "class": ["dog"]}), tmp_path / "00001.parquet")
    (tmp_path / "00001.tar").write_bytes(member("2.cls", b"0") + END)
    ran = equitar(
        "index", f"a={tmp_path}/*.tar", "--labels-from", f"{tmp_path}/*.parquet:class", "--quiet", "--jobs", "1"
    )
    assert ran.exit_code == 0, ran.output
    summary = load_summary(Source("a", f"{tmp_path}/*.tar"))
    assert summary.class_names == ((0, 1), ("cat", "dog"))
    assert summary.label_counts is not None
    assert summary.label_counts.ids.tolist() == [0, 1, 1]
    checked = equitar("check", f"a={tmp_path}/*.tar", "--quiet", "--jobs", "1")
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("imported", ["click", "numpy", "equitar.cli.app", "equitar.indexing.index"])
def test_an_interrupt_while_the_command_line_is_imported_is_one_line(imported: str) -> None:
    program = f"""
import signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from equitar.cli import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "Interrupted. Nothing was begun.\n")
