"""Real workers: whatever their number and however they are started, the same steps come, and a run goes on where it stood."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import equitar
from equitar.errors import PlanError
from equitar.loading.batches import Batches, own_copy
from equitar.sources import Source
from helpers.both_webdatasets import core
from helpers.shards import (
    Drops,
    FailsAt,
    as_rank,
    flat,
    global_batches,
    indexed,
    keys_of,
    keys_of_batches,
    let_webdataset_close,
    source_of,
    sources_of,
    write_sources,
    write_tars,
)

TESTS = Path(__file__).parents[1]
WORKERS = (0, 1, 2, 3)

# The number of workers is what is tested, not how fast they are.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("sources"), {"a": [30, 50, 20], "b": [40]})


@pytest.fixture(scope="module")
def batches(sources: list[Source]) -> Batches:
    """17 steps of batches of 8; always with the two lanes, so that orders can be compared."""
    return equitar.debiased(sources, batch_size=8, plan_workers=2)


def plain(batches: Batches, num_workers: int, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None, num_workers=num_workers, **arguments)


def expected(batches: Batches, *epochs: int) -> list[list[list[str]]]:
    """Return the keys of every batch of epochs, read in this process and without any loader."""
    alone = own_copy(batches)
    result = []
    for epoch in epochs:
        alone.set_epoch(epoch)
        result.append(keys_of_batches(alone))
    return result


def take(batches: Iterator[Any] | Any, count: int) -> list[Any]:
    return list(islice(iter(batches), count))


# ---- any number of workers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [equitar.Loader, plain], ids=["Loader", "DataLoader"])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_any_number_of_workers_gives_the_same_steps_and_sources(
    make: Callable[..., Any], num_workers: int, sources: list[Source]
) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    given = list(make(batches, num_workers=num_workers))
    assert [batch["__step__"] for batch in given] == list(range(17))
    assert sources_of(given) == batches.sources(0)


@pytest.mark.parametrize("make", [equitar.Loader, plain], ids=["Loader", "DataLoader"])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_the_same_lanes_give_the_same_batches(make: Callable[..., Any], num_workers: int, batches: Batches) -> None:
    assert [keys_of_batches(make(own_copy(batches), num_workers=num_workers))] == expected(batches, 0)


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed, equitar.exact])
def test_len_is_what_comes(builder: Callable[..., Batches], num_workers: int, sources: list[Source]) -> None:
    loader = equitar.Loader(builder(sources, batch_size=9), num_workers=num_workers)
    assert len(loader) == len(list(loader))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_no_sample_comes_twice(num_workers: int, sources: list[Source]) -> None:
    given = flat(equitar.Loader(equitar.debiased(sources, batch_size=8), num_workers=num_workers))
    assert len(set(given)) == len(given) == 17 * 8


@pytest.mark.parametrize("num_workers", WORKERS)
def test_the_limit_on_steps_is_for_all_workers_together(num_workers: int, sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8, steps=7), num_workers=num_workers)
    assert len(list(loader)) == 7


def test_more_workers_than_steps_are_no_error(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8, steps=2), num_workers=3)
    assert [len(list(loader)) for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_validation_comes_in_order(num_workers: int, sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.exact(sources, batch_size=8), num_workers=num_workers)
    assert flat(loader) == keys_of("a", 100) + keys_of("b", 40)


@pytest.mark.filterwarnings("ignore:each worker of this DataLoader makes batches:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_single_samples_are_batched_by_a_data_loader(num_workers: int, sources: list[Source]) -> None:
    loader: DataLoader[Any] = DataLoader(equitar.mixed(sources), batch_size=7, num_workers=num_workers, collate_fn=list)
    given = [sample["__key__"] for batch in loader for sample in batch]
    assert sorted(given) == sorted(keys_of("a", 100) + keys_of("b", 40))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_composed_batches_are_loaded(num_workers: int, batches: Batches) -> None:
    composed = batches.to_tuple("__step__", "__key__")
    given = list(equitar.Loader(composed, num_workers=num_workers))
    assert given == list(enumerate(expected(batches, 0)[0]))


# ---- epochs -------------------------------------------------------------------------------------------------------------

SET_UPS: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork, persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "spawn, persistent": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "forkserver, persistent": {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
}
QUICK = ["no workers", "fork", "fork, persistent"]  # those whose workers need not import torch


@pytest.fixture(scope="module", autouse=True)
def _forkserver_has_torch() -> None:
    """Save each forked worker the import: it is no part of the claim."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "webdataset"])


@pytest.mark.parametrize("set_up", SET_UPS)
def test_epochs_advance_by_themselves_in_a_loader(set_up: str, batches: Batches) -> None:
    loader = equitar.Loader(batches, **SET_UPS[set_up])
    num_epochs = 2 if set_up == "spawn" else 3  # each of which waits for the import of torch
    assert [keys_of_batches(loader) for _ in range(num_epochs)] == expected(batches, *range(num_epochs))


@pytest.mark.parametrize("set_up", ["fork", "fork, persistent", "forkserver, persistent"])
def test_set_epoch_reaches_the_workers_of_a_data_loader(set_up: str, batches: Batches) -> None:
    own = own_copy(batches)
    loader = plain(own, **SET_UPS[set_up])
    passes = []
    for epoch in (0, 1, 5):
        own.set_epoch(epoch)
        passes.append(keys_of_batches(loader))
    assert passes == expected(batches, 0, 1, 5)


def test_epochs_differ(batches: Batches) -> None:
    assert len({str(batch) for batch in expected(batches, 0, 1, 2, 3)}) == 4


@pytest.mark.parametrize("set_up", QUICK)
def test_a_pass_that_is_broken_off_begins_again(set_up: str, batches: Batches) -> None:
    loader = equitar.Loader(batches, **SET_UPS[set_up])
    take(loader, 5)
    assert [keys_of_batches(loader)] == expected(batches, 0)


@pytest.mark.parametrize("set_up", QUICK)
def test_a_pass_is_complete_with_its_last_batch(set_up: str, batches: Batches) -> None:
    loader = equitar.Loader(batches, **SET_UPS[set_up])
    take(loader, len(loader))  # and never asks whether there is more
    assert [keys_of_batches(loader)] == expected(batches, 1)


@pytest.mark.parametrize("set_up", QUICK)
def test_set_epoch_counts_from_the_next_iterator(set_up: str, batches: Batches) -> None:
    loader = equitar.Loader(batches, **SET_UPS[set_up])
    under_way = iter(loader)
    loader.set_epoch(7)  # before a worker of that iterator may have looked at the clock
    assert [keys_of_batches(under_way), keys_of_batches(loader)] == expected(batches, 0, 7)


def test_a_negative_epoch_is_named(batches: Batches) -> None:
    with pytest.raises(ValueError, match="`epoch` must be >= 0; got -1"):
        equitar.Loader(batches).set_epoch(-1)


@pytest.mark.parametrize("set_up", ["no workers", "fork"])
def test_an_error_in_the_loop_begins_the_epoch_again(set_up: str, batches: Batches) -> None:
    loader = equitar.Loader(batches, **SET_UPS[set_up])

    def train() -> None:
        for batch in loader:
            if batch["__step__"] == 4:
                raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="loss is nan"):
        train()
    assert [keys_of_batches(loader)] == expected(batches, 0)


def test_passes_broken_off_alike_are_noticed_once(batches: Batches) -> None:
    loader = equitar.Loader(batches)
    for count in (3, 5, 5):
        take(loader, count)
    take(loader, 5)
    with pytest.warns(UserWarning, match=r"broken off at step 5 of 17.*give the builder `steps=`, or call `set_epoch`"):
        take(loader, 5)
    for _ in range(4):
        take(loader, 5)  # a second warning would be an error


def test_passes_with_set_epoch_may_be_broken_off(batches: Batches) -> None:
    loader = equitar.Loader(batches)
    for epoch in range(5):
        loader.set_epoch(epoch)
        take(loader, 5)


_FORGETS_SET_EPOCH = """
import sys
import equitar
from torch.utils.data import DataLoader

if __name__ == "__main__":
    sources = [equitar.Source("a", sys.argv[1])]
    for builder, persistent in ((equitar.debiased, False), (equitar.debiased, True), (equitar.exact, False)):
        loader = DataLoader(
            builder(sources, batch_size=8), batch_size=None, num_workers=2, persistent_workers=persistent
        )
        for _ in range(4):
            for _ in loader:
                pass
        print("----", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def stderr_parts(tmp_path_factory: pytest.TempPathFactory, sources: list[Source]) -> list[str]:
    """Return what stderr has where `set_epoch` is forgotten: fresh workers, persistent ones, and validation."""
    script = tmp_path_factory.mktemp("script") / "forgets.py"
    script.write_text(_FORGETS_SET_EPOCH, encoding="utf-8")
    command = [sys.executable, str(script), str(sources[0].urls)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stderr.split("----")


@pytest.mark.parametrize("which", [0, 1], ids=["fresh", "persistent"])
def test_a_data_loader_says_once_that_set_epoch_is_missing(which: int, stderr_parts: list[str]) -> None:
    text = "epoch 0 begins again; call `set_epoch` before each epoch, or use equitar.Loader"
    assert stderr_parts[which].count(text) == 1


def test_validation_needs_no_set_epoch(stderr_parts: list[str]) -> None:
    assert "begins again" not in stderr_parts[2]


# ---- several loaders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_loaders_over_one_pipeline_do_not_disturb_each_other(num_workers: int, batches: Batches) -> None:
    first, second = equitar.Loader(batches), equitar.Loader(batches, num_workers=num_workers)
    list(first)
    pairs = [(x["__key__"], y["__key__"]) for x, y in zip(first, second, strict=True)]
    assert [list(keys) for keys in zip(*pairs, strict=True)] == expected(batches, 1, 0)


def test_a_loader_does_not_move_the_pipeline_it_was_made_of(batches: Batches) -> None:
    own = own_copy(batches)
    list(equitar.Loader(own))
    assert [keys_of_batches(own)] == expected(batches, 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_of_one_loader_give_the_same_epoch(num_workers: int, batches: Batches) -> None:
    loader = equitar.Loader(batches, num_workers=num_workers)
    pairs = list(zip(loader, loader, strict=True))
    assert all(batch["__key__"] == other["__key__"] for batch, other in pairs)


def test_only_batches_are_loaded(sources: list[Source]) -> None:
    with pytest.raises(TypeError, match="`batches` must come from debiased, mixed or exact; got list"):
        equitar.Loader(sources)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_global_generator_is_read_or_touched(num_workers: int, batches: Batches) -> None:
    random.seed(1)
    before = random.getstate(), torch.get_rng_state().tolist()
    list(equitar.Loader(batches, num_workers=num_workers))
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


# ---- resume -------------------------------------------------------------------------------------------------------------


def resumed(batches: Batches, state: Any, num_workers: int = 0) -> equitar.Loader:
    loader = equitar.Loader(batches, num_workers=num_workers)
    loader.load_state_dict(json.loads(json.dumps(state)))  # as a checkpoint gives it back
    return loader


@pytest.fixture(scope="module")
def whole(sources: list[Source]) -> Callable[[int], list[Any]]:
    """Return two whole epochs with a number of workers."""
    batches = equitar.debiased(sources, batch_size=8)  # without fixed lanes: they are a part of the state

    @cache
    def two_epochs(num_workers: int) -> list[Any]:
        loader = equitar.Loader(batches, num_workers=num_workers)
        return [batch for _ in range(2) for batch in loader]

    return two_epochs


@pytest.mark.parametrize("num_done", [0, 1, 8, 16])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 2), (2, 0), (2, 3), (3, 1)])
def test_what_remains_is_equal_byte_for_byte(
    num_done: int, before: int, after: int, whole: Callable[[int], list[Any]], sources: list[Source]
) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    loader = equitar.Loader(batches, num_workers=before)
    take(loader, num_done)
    assert list(resumed(batches, loader.state_dict(), after)) == whole(before)[num_done:17]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_the_last_step_the_next_epoch_remains(
    num_workers: int, whole: Callable[[int], list[Any]], sources: list[Source]
) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    loader = equitar.Loader(batches, num_workers=num_workers)
    take(loader, 17)
    assert list(resumed(batches, loader.state_dict(), num_workers)) == whole(num_workers)[17:]


@pytest.mark.parametrize("num_done", [0, 1, 3, 7, 8])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 2)])
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed, equitar.exact])
def test_other_ranks_go_on_with_the_same_global_batches(
    builder: Callable[..., Batches], before: int, after: int, num_done: int, sources: list[Source]
) -> None:
    batches = builder(sources, batch_size=16 // before)
    loaders = [equitar.Loader(as_rank(batches, rank, before)) for rank in range(before)]
    whole = global_batches([list(equitar.Loader(as_rank(batches, rank, before))) for rank in range(before)])
    for loader in loaders:
        take(loader, num_done)
    states = [loader.state_dict() for loader in loaders]
    ranks = [
        list(islice(resumed(as_rank(batches, rank, after, batch_size=16 // after), states[0]), len(whole) - num_done))
        for rank in range(after)
    ]
    assert (states, [sorted(step) for step in global_batches(ranks)]) == (
        [states[0]] * before,
        [sorted(step) for step in whole[num_done:]],
    )


def test_a_run_goes_on_with_other_workers_and_other_ranks_at_once(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4, stages=[Drops(3)])
    whole = global_batches([list(equitar.Loader(as_rank(batches, rank, 2), num_workers=2)) for rank in range(2)])
    loader = equitar.Loader(as_rank(batches, 0, 2), num_workers=2)
    take(loader, 6)
    alone = resumed(as_rank(batches, 0, 1, batch_size=8), loader.state_dict(), 3)
    assert keys_of_batches(alone) == whole[6:]


def test_a_resumed_run_is_resumed_again(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    loader = equitar.Loader(batches, num_workers=2)
    take(loader, 4)
    second = resumed(batches, loader.state_dict(), 0)
    take(second, 5)
    third = resumed(batches, second.state_dict(), 1)
    assert keys_of_batches(third) == keys_of_batches(equitar.Loader(batches, num_workers=2))[9:]


def test_after_a_resumed_epoch_comes_the_next(batches: Batches) -> None:
    loader = equitar.Loader(batches)
    take(loader, 9)
    again = resumed(batches, loader.state_dict())
    list(again)
    assert [keys_of_batches(again)] == expected(batches, 1)


@pytest.mark.parametrize("set_up", ["fork", "fork, persistent"])
def test_a_running_loader_takes_a_state(set_up: str, batches: Batches) -> None:
    loader = equitar.Loader(batches, **SET_UPS[set_up])
    loader.set_epoch(3)
    take(loader, 2)
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    assert keys_of_batches(loader) == expected(batches, 3)[0][2:]


def test_a_state_is_small(batches: Batches) -> None:
    loader = equitar.Loader(batches, num_workers=2)
    take(loader, 3)
    assert len(json.dumps(loader.state_dict())) < 1000


def test_resuming_reads_nothing_that_was_passed(sources: list[Source]) -> None:
    gone, kept = expected(equitar.debiased(sources, batch_size=8), 0)[0][:16], 1
    batches = equitar.debiased(sources, batch_size=8, stages=[FailsAt(gone[0][0])])
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8))
    take(loader, 16)
    state = {**loader.state_dict()}
    assert len(list(resumed(batches, state))) == kept


@pytest.mark.parametrize(
    "arguments", [{"seed": 1}, {"shuffle": 16}, {"steps": 20}, {"weights": {"a": 1, "b": 1}}], ids=str
)
def test_a_state_of_another_run_is_refused(arguments: dict[str, Any], sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8))
    take(loader, 3)
    state = loader.state_dict()
    with pytest.raises(PlanError, match="a run resumes within an epoch only with the plan it had, but"):
        equitar.Loader(equitar.debiased(sources, batch_size=8, **arguments)).load_state_dict(state)


def test_a_state_of_another_global_batch_is_refused(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8))
    take(loader, 3)
    state = loader.state_dict()
    with pytest.raises(PlanError, match="global batch was 8 and is 16"):
        equitar.Loader(equitar.debiased(sources, batch_size=16)).load_state_dict(state)


def test_a_state_of_other_shards_is_refused(tmp_path: Path) -> None:
    source = indexed(Source("a", write_tars(tmp_path, "a", [20])[0], root=str(tmp_path)))
    loader = equitar.Loader(equitar.debiased([source], batch_size=8))
    take(loader, 1)
    state = loader.state_dict()
    write_tars(tmp_path, "a", [40])
    indexed(source)
    with pytest.raises(PlanError, match="a run resumes within an epoch only with the plan it had"):
        equitar.Loader(equitar.debiased([source], batch_size=8)).load_state_dict(state)


# ---- what is told, and what is left behind ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_last_tells_of_the_batch_in_hand(num_workers: int, batches: Batches) -> None:
    loader = equitar.Loader(batches, num_workers=num_workers)
    reported = [
        (loader.last.epoch, loader.last.step, loader.last.source, list(loader.last.keys))
        for _ in loader
        if loader.last is not None
    ]
    assert reported == [(0, step, source_of(keys[0]), keys) for step, keys in enumerate(expected(batches, 0)[0])]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_report_counts_steps_and_samples(num_workers: int, batches: Batches) -> None:
    loader = equitar.Loader(batches, num_workers=num_workers)
    given = Counter(source_of(key) for _ in range(2) for key in flat(loader))
    report = loader.counters()
    assert (report["steps"], report["samples"], report["dropped_samples"]) == (34, dict(given), [])


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (a Path would be one more object that may hold it open)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_early_stops_leave_no_file_and_no_child(num_workers: int, batches: Batches) -> None:
    loader = equitar.Loader(batches, num_workers=num_workers)
    loader.set_epoch(0)
    take(loader, 1)
    gc.collect()  # what failed in tests before this one
    before = _open_files(), len(multiprocessing.active_children())
    for _ in range(10):
        loader.set_epoch(0)
        take(loader, 1)
    after = (0, 0)
    for _ in range(50):  # torch closes the pipes of workers that have gone in threads of its own
        gc.collect()
        after = _open_files(), len(multiprocessing.active_children())
        if after == before:
            return
        time.sleep(0.1)
    pytest.fail(f"open files and children were {before} and are {after}")


# ---- the rank ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Loader", "batches"])
def test_the_rank_is_asked_for_when_an_epoch_begins_not_when_batches_are_composed_or_put_in_a_loader(
    kind: str, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = equitar.debiased(sources, batch_size=4).map(dict)
    loader = equitar.Loader(batches) if kind == "Loader" else batches
    monkeypatch.setenv("RANK", "1")  # launchers make the ranks later: Lightning in `fit`
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert keys_of_batches(loader) == keys_of_batches(equitar.debiased(sources, batch_size=4, rank=1, world_size=2))


@pytest.mark.parametrize("kind", ["Loader", "batches"])
def test_a_rank_that_was_asked_for_too_early_is_an_error(
    kind: str, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    len(batches)
    loader = equitar.Loader(batches) if kind == "Loader" else batches
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PlanError, match="is rank 1 of 2 but was rank 0 of 1 when these batches were first asked"):
        next(iter(loader))


# ---- webdataset 0.2.86 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def older_webdataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the webdataset that open_clip pins."""
    folder = tmp_path_factory.mktemp("webdataset-0.2.86")
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "webdataset==0.2.86"]
    try:
        run = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("webdataset 0.2.86 could not be installed within two minutes")
    if run.returncode:
        pytest.skip(f"webdataset 0.2.86 could not be installed: {(run.stderr or run.stdout).strip()[-200:]}")
    return folder


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_the_older_webdataset_gives_the_same(older_webdataset: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    below = [str(older_webdataset), *(path for path in sys.path if path)]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(TESTS / "helpers" / "both_webdatasets.py"), str(tmp_path / "old")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(below)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    newer = core(tmp_path / "new")
    let_webdataset_close()
    assert json.loads(run.stdout) == ["0.2.86", json.loads(json.dumps(newer))]
