"""The command line of `stats` and `plan`: sources or a training's own pipeline in, tables or JSON out, errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import equitar
from equitar.cli.app import main
from equitar.loading.builders import debiased
from equitar.loading.loader import Loader
from equitar.reporting.preview import emissions
from equitar.sources import Source
from helpers.odd_tars import END, member
from helpers.shards import write_source

TRAINING = """
import equitar
SOURCES = [equitar.Source(name, f"{FOLDER}/{name}-*.tar") for name in ("cat", "dog")]
batches = equitar.debiased(SOURCES, batch_size=5, seed=3, repeat=0.5)
def build():
    return equitar.mixed(SOURCES, batch_size=4, steps=7)
def loader():
    return equitar.Loader(batches)
def broken(folder):
    return batches
class Runs:
    val = equitar.exact(SOURCES, batch_size=8)
number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, of 30 and of 50 samples; one class is in two samples of `cat`."""
    folder = tmp_path_factory.mktemp("shards")
    for name, sizes in (("cat", (10, 20)), ("dog", (25, 25))):
        for shard, size in enumerate(sizes):
            rows = (member(f"{row:02d}.cls", b"1" if row == 0 and name == "cat" else b"0") for row in range(size))
            (folder / f"{name}-{shard}.tar").write_bytes(b"".join(rows) + END)
    equitar.index(sources_in(folder), labels="cls", jobs=1, progress=False)
    return folder


def sources_in(folder: Path) -> list[Source]:
    return [Source(name, f"{folder}/{name}-*.tar") for name in ("cat", "dog")]


def words_for(folder: Path) -> list[str]:
    return [f"{name}={folder}/{name}-*.tar" for name in ("cat", "dog")]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


@pytest.fixture
def training(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_training.py").write_text(f"FOLDER = {str(folder)!r}\n{TRAINING}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield "my_training"
    sys.modules.pop("my_training", None)


def test_stats_shows_sources_and_the_classes_before_and_after(folder: Path, tmp_path: Path) -> None:
    result = run("stats", *words_for(folder), "--repeat", "0.5", "--plot", f"{tmp_path}/stats.png")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[1][:6] == ["cat", "2", "30", "0.0", "30", "2"]
    assert lines[2][:6] == ["dog", "2", "50", "0.1", "50", "1"]
    assert "80 samples; 83 with repeats (threshold 0.5)" in result.output
    assert ["cat/1", "2", "0.0667", "2.74", "5.5", "2.74"] in lines
    assert (tmp_path / "stats.png").stat().st_size > 10_000


def test_stats_are_json_on_request(folder: Path) -> None:
    printed = json.loads(run("stats", *words_for(folder), "--repeat", "0.5", "--cap", "2", "--json").output)
    assert printed["repeat"] == "threshold 0.5, cap 2"
    assert [(source["name"], source["samples"], source["copies"]) for source in printed["sources"]] == [
        ("cat", 30, 32),
        ("dog", 50, 50),
    ]
    rarest = printed["classes"][0]
    assert (rarest["name"], rarest["samples"], rarest["factor"], rarest["copies"]) == ("cat/1", 2, 2, 4)


def test_plan_shows_the_schedule_and_what_every_worker_reads(folder: Path) -> None:
    result = run("plan", *words_for(folder), "--batch-size", "5", "--world-size", "2", "--num-workers", "2")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(
        "epoch 0: 8 steps of 5 x 2 samples, 2 ranks x 2 workers, 2 plan workers, seed 0, digest "
    )
    assert lines[3].split() == ["cat", "3", "30", "37.5%", "1.000", "0", "1"]
    assert lines[4].split() == ["dog", "5", "50", "62.5%", "1.000", "0", "1"]
    assert "the same on all ranks: c = cat, d = dog" in lines[6]
    assert Counter(lines[7].strip()) == {"c": 3, "d": 5}
    assert lines[9].startswith("a batch holds samples of ")
    readers = [line.split() for line in lines[12:]]
    assert [row[:3] for row in readers] == [["0", "0", "4"], ["0", "1", "4"], ["1", "0", "4"], ["1", "1", "4"]]
    assert sum(int(row[4]) for row in readers) == 80


def batch_lines(*words: str) -> list[str]:
    result = run("plan", *words)
    assert result.exit_code == 0, result.output
    return [line for line in result.output.splitlines() if line.startswith("a batch holds")]


def test_plan_says_in_a_line_what_a_batch_holds(folder: Path) -> None:
    cat, dog = words_for(folder)
    of_cat = "a batch holds samples of 2.0 shards, 2.0 classes; a random draw of 2.0 shards, 1.9 classes"
    assert batch_lines(cat, "--batch-size", "30") == [of_cat]  # all of it
    both = "a batch holds samples of 2.0 shards, 1.0 to 2.0 classes; a random draw of 2.0 shards, 1.0 to 1.9 classes"
    assert batch_lines(cat, dog, "--batch-size", "30") == [both]
    repeated = "a batch holds samples of 2.0 shards, 2.0 classes; a random draw of 2.0 shards"
    assert batch_lines(cat, "--batch-size", "30", "--repeat", "0.01") == [repeated]
    kept = "a batch holds samples of 2.0 shards; a random draw of 2.0 shards"
    assert batch_lines(dog, "--batch-size", "30", "--keep", "dog=0.9") == [kept]
    assert batch_lines(cat, "--batch-size", "1") == []


def test_stats_says_in_a_line_whether_ids_are_pooled(folder: Path) -> None:
    def lines(*words: str) -> list[str]:
        return [line for line in run("stats", *words).output.splitlines() if line.startswith("ids ")]

    both = words_for(folder)
    assert lines(*both) == ["ids      separate: without class names, an id is a class of its own source alone"]
    assert lines(*both, "--shared-ids") == ["ids      pooled: an id is the same class in all sources (labels_shared)"]
    assert lines(both[0]) == []


def test_samples_of_the_plan_are_a_line_each_and_what_the_package_tells(folder: Path) -> None:
    options = ["--batch-size", "5", "--world-size", "2", "--num-workers", "2", "--seed", "7", "--epoch", "1"]
    result = run("plan", *words_for(folder), *options, "--repeat", "0.5", "--json", "--samples")
    plan, *rows = [json.loads(line) for line in result.output.splitlines()]
    batches = debiased(sources_in(folder), batch_size=5, seed=7, repeat=0.5, rank=0, world_size=2)
    assert rows == [emission._asdict() for emission in emissions(batches, epoch=1, num_workers=2)]
    assert plan["schedule"] == batches.sources(1)
    assert plan["steps"] == len(plan["schedule"]) == len({row["step"] for row in rows})


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        (["--weights", "cat=0.7,dog=0.3", "--steps", "10"], {"cat": 7, "dog": 3}),
        (["--weights", "cat=1,dog=1", "--steps", "6"], {"cat": 3, "dog": 3}),
        (["--temperature", "1", "--steps", "8"], {"cat": 3, "dog": 5}),
        (["--temperature", "1000000", "--steps", "8"], {"cat": 4, "dog": 4}),
        (["--mixed"], {"cat": None, "dog": None}),
    ],
)
def test_shares_are_what_the_options_say(folder: Path, options: list[str], batches: dict[str, int | None]) -> None:
    printed = json.loads(run("plan", *words_for(folder), "--batch-size", "10", *options, "--json").output)
    assert {source["name"]: source["batches"] for source in printed["sources"]} == batches


@pytest.mark.parametrize("command", ["stats", "plan"])
def test_a_training_is_taken_by_its_name(training: str, command: str) -> None:
    for name in ("batches", "build", "Runs.val"):
        result = run(command, f"{training}:{name}")
        assert result.exit_code == 0, result.output
        assert "cat" in result.output


def test_a_training_is_planned_for_the_ranks_and_numbers_of_the_line(training: str, folder: Path) -> None:
    words = [
        f"{training}:batches",
        "--world-size",
        "2",
        "--num-workers",
        "2",
        "--batch-size",
        "2",
        "--json",
        "--samples",
    ]
    plan, *rows = [json.loads(line) for line in run("plan", *words).output.splitlines()]
    assert (plan["world_size"], plan["batch_size"], plan["seed"]) == (2, 2, 3)
    real = debiased(sources_in(folder), batch_size=2, seed=3, repeat=0.5, rank=1, world_size=2)
    keys = [key for batch in Loader(real, num_workers=2) for key in batch["__key__"]]
    assert [row["key"] for row in rows if row["rank"] == 1] == keys


def test_stats_of_a_training_are_those_of_its_plan(training: str) -> None:
    once = json.loads(run("stats", f"{training}:build", "--json").output)
    twice = json.loads(run("stats", f"{training}:build", "--world-size", "2", "--json").output)
    assert (once["samples"], once["copies"], twice["copies"]) == (80, 28, 56)
    assert json.loads(run("stats", f"{training}:batches", "--json").output)["repeat"] == "threshold 0.5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_module:batches"], "module 'no_such_module' of 'no_such_module:batches' cannot be imported"),
        (["my_training:batch"], "module 'my_training' must have 'batch' but has "),
        (
            ["my_training:number"],
            "'number' of module 'my_training' must be what `debiased`, `mixed` or `exact` returned",
        ),
        (["my_training:number"], "got int"),
        (["my_training:loader"], "got Loader from the call"),
        (["my_training:broken"], "'broken' of module 'my_training' must be callable without arguments"),
        (["my_training:Runs.val", "--steps", "3"], "`exact` goes through every sample once and takes no `steps`"),
        (["my_training:batches", "--mixed"], "defines its own batches"),
        (["my_training:batches", "cat=x.tar"], "give no other SOURCEs"),
        (["cat=x.tar"], "SOURCEs need `--batch-size`"),
        (["cat=x.tar", "--batch-size", "4", "--samples"], "`--samples` needs `--json`"),
        (["cat=x.tar", "--batch-size", "4", "--cap", "4"], "`--cap` needs `--repeat`"),
        (["cat=x.tar", "--batch-size", "4", "--repeat", "often"], "must be a number in [0, 1] or median; got 'often'"),
        (["cat=x.tar", "--batch-size", "4", "--repeat", "2"], "must be a number in [0, 1] or median; got '2'"),
        (["cat=x.tar", "--batch-size", "4", "--repeat", "0.1", "--cap", "0"], "`--cap` must be a finite number >= 1"),
        (["cat=x.tar", "--batch-size", "4", "--temperature", "0"], "`--temperature` must be a finite number >= 1"),
        (["cat=x.tar", "--batch-size", "4", "--weights", "cat=a"], "must be name=number for each source"),
        (["cat=x.tar", "--batch-size", "4", "--weights", "cat=1", "--temperature", "2"], "cannot be combined"),
        (["my_training"], "SOURCE must be name=urls or package.module:name; got 'my_training'"),
    ],
)
def test_what_a_user_gets_wrong_is_told(training: str, words: list[str], message: str) -> None:
    result = run("plan", *words)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit), result.exception
    assert message in " ".join(result.output.split())


def test_an_impossible_plan_is_one_line_that_says_what_to_change(folder: Path) -> None:
    result = run("plan", *words_for(folder), "--batch-size", "20", "--world-size", "2")
    assert result.exit_code == 1
    assert "lower `batch_size` to at most 15" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("command", ["stats", "plan"])
def test_help_shows_sources_and_a_training(command: str) -> None:
    result = run(command, "--help")
    assert f"  equitar {command} my_training:batches --world-size 8" in result.output
    assert f"equitar {command} " in run("--help").output


def test_a_process_of_its_own_finds_a_training_in_the_folder_it_is_in(training: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "equitar.cli", "plan", f"{training}:batches"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(equitar.__file__).parents[1])},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("epoch 0: ")


# ---- rows that count ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "samples"),
    [("a=!bad.txt", 58), ("a=bad.txt", 2), ("a=0.5", 30), ("a=split:0/1", 60)],
)
def test_rows_that_count_are_chosen_by_a_word(
    keep: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path, "a", [30, 30])
    (tmp_path / "bad.txt").write_text("a-0003\na-0044\n")
    monkeypatch.chdir(tmp_path)
    words = [f"a={source.urls}", "--root", str(source.root), "--keep", keep]
    printed = json.loads(CliRunner().invoke(main, ["stats", *words, "--json"]).output)
    assert round(printed["sources"][0]["copies"]) == samples
    plan = CliRunner().invoke(main, ["plan", *words, "--batch-size", "2", "--json"])
    assert json.loads(plan.output)["steps"] == samples // 2


@pytest.mark.parametrize("keep", ["b=0.5", "a", "a=", "a=!", "a=split:1"])
def test_a_selection_that_is_none_is_told(keep: str, tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [4])
    result = CliRunner().invoke(main, ["stats", f"a={source.urls}", "--keep", keep])
    assert result.exit_code == 2
    assert "`--keep` must be name=FILE" in result.output


def test_a_part_that_there_is_not_is_told_with_its_option(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["stats", f"a={write_source(tmp_path, 'a', [4]).urls}", "--keep", "a=split:5/5"])
    assert (result.exit_code, "`--keep a=split:5/5`: `part` must be in [0, 5); got 5" in result.output) == (2, True)


def test_stats_says_how_well_captions_tell_the_source(tmp_path: Path) -> None:
    for name, words in (("cat", "stock photo of"), ("dog", "my own dog at")):
        rows = (member(f"{row:02d}.txt", f"{words} {row}".encode()) for row in range(20))
        (tmp_path / f"{name}-0.tar").write_bytes(b"".join(rows) + END)
    equitar.index(sources_in(tmp_path), jobs=1, progress=False)
    ran = CliRunner().invoke(main, ["stats", *words_for(tmp_path), "--captions", "txt"])
    assert ran.exit_code == 0, ran.output
    assert "probe    100.0% of 40 samples get the right source (chance 50.0%)" in ran.output
    assert "clearly given away: batches of one source can help, if image and caption both do" in ran.output
    as_json = CliRunner().invoke(main, ["stats", *words_for(tmp_path), "--captions", "txt", "--json"])
    captions = json.loads(as_json.output)["captions"]
    assert (captions["gives_away"], captions["samples"]) == ("clearly", 40)
    assert "dog" in captions["sources"][1]["words"]
    assert "captions" not in json.loads(CliRunner().invoke(main, ["stats", *words_for(tmp_path), "--json"]).output)


def test_a_field_without_captions_is_one_line(folder: Path) -> None:
    ran = CliRunner().invoke(main, ["stats", *words_for(folder), "--captions", "txt"])
    assert ran.exit_code == 1
    assert "must name a field of each shard; got ['txt']" in ran.output


# ---- all classes, endings, names and options --------------------------------------------------------------------------------


def test_all_classes_are_listed_on_request(tmp_path: Path) -> None:
    rows = (member(f"{row:02d}.cls", str(row).encode()) for row in range(40))
    (tmp_path / "cat-0.tar").write_bytes(b"".join(rows) + END)
    source = Source("cat", f"{tmp_path}/cat-*.tar")
    equitar.index(source, labels="cls", jobs=1, progress=False)
    short, full = (run("stats", f"cat={source.urls}", *options).output for options in ([], ["--all"]))
    assert [line.count("cat/20 ") for line in (short, full)] == [0, 1]
    assert "..." not in full
    assert sum(line.startswith("cat/") for line in full.splitlines()) == 40


def test_a_summary_alone_has_its_own_name(folder: Path) -> None:
    printed = json.loads(run("stats", f"{folder}/cat.summary.json", f"{folder}/dog.summary.json", "--json").output)
    assert [source["name"] for source in printed["sources"]] == ["cat", "dog"]
    planned = run("plan", f"{folder}/cat.summary.json", "--batch-size", "4", "--json")
    assert [source["name"] for source in json.loads(planned.output)["sources"]] == ["cat"]


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        (["plam"], "no such command: 'plam' (did you mean 'plan'?)"),
        (["plan", "cat=x.tar", "--bach-size", "4"], "--batch-size"),
        (["stats", "cat=x.tar", "--keep", "cta=0.5"], "got 'cta=0.5' (did you mean 'cat'?)"),
        (["index", "cat=x.tar", "--labels", "jsn:objects"], "got 'jsn:objects' (did you mean 'json:objects'?)"),
        (["index", "cat=x.tar", "--labels", "jsno:a[*].b"], "got 'jsno:a[*].b' (did you mean 'json:a[*].b'?)"),
        (
            ["export", "cat=x.tar", "-o", "x.parqet"],
            "must end in .csv or .parquet; got 'x.parqet' (did you mean '.parquet'?)",
        ),
    ],
)
def test_a_word_that_is_nearly_right_is_guessed(words: list[str], guess: str) -> None:
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert guess in " ".join(result.output.split())


def test_a_source_that_is_nearly_right_in_weights_is_guessed(folder: Path) -> None:
    result = run("plan", *words_for(folder), "--batch-size", "4", "--weights", "cta=0.5,dog=0.5")
    assert "'cta' (did you mean 'cat'?) is not a source" in result.output


def test_a_word_that_is_like_nothing_is_not_guessed() -> None:
    assert "did you mean" not in run("xyzzy").output
    assert "did you mean" not in run("index", "cat=x.tar", "--labels", "my_labels:of").output


def test_small_sources_are_left_out_or_mixed_as_the_error_advises(folder: Path) -> None:
    words = ["plan", *words_for(folder), "--batch-size", "40"]
    refused = run(*words).output
    assert '`small_sources="leave_out"` (`--small-sources leave_out`) or `mixed` (`--mixed`), or lower' in refused
    for options, names in ((["--small-sources", "leave_out"], ["dog"]), (["--mixed"], ["cat", "dog"])):
        planned = json.loads(run(*words, *options, "--json").output)
        assert [source["name"] for source in planned["sources"]] == names


def test_the_composition_of_mixed_batches_is_an_option(folder: Path, training: str) -> None:
    words = ["plan", *words_for(folder), "--batch-size", "8", "--mixed", "--json"]
    digests = [
        json.loads(run(*words, *options).output)["digest"]
        for options in ([], ["--composition", "stratified"], ["--composition", "independent"])
    ]
    assert digests[0] == digests[1] != digests[2]
    assert run("plan", f"{training}:build", "--composition", "independent").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cat=x.tar", "--batch-size", "4", "--composition", "independent"], "`--composition` needs `--mixed`"),
        (
            ["cat=x.tar", "--batch-size", "4", "--mixed", "--small-sources", "error"],
            "`--small-sources` is for batches of one",
        ),
        (["my_training:batches", "--composition", "independent"], "`debiased` takes no `composition`; leave it out"),
        (["my_training:build", "--small-sources", "leave_out"], "`mixed` takes no `small_sources`; leave it out"),
    ],
)
def test_an_option_of_another_kind_of_batches_is_refused(training: str, words: list[str], message: str) -> None:
    result = run("plan", *words)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())
