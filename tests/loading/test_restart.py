"""Runs that continue within an epoch with other weights, batch sizes, ranks or sources: nothing twice, nothing lost silently."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import equitar
from equitar.errors import PlanError
from equitar.loading import loader as loader_module
from equitar.loading.batches import Batches
from equitar.sources import Source
from helpers.shards import as_rank, flat, source_of, write_source

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SIZES = {"a": 240, "b": 120}
EVEN, MOSTLY_A = {"a": 1, "b": 1}, {"a": 3, "b": 1}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp("restart")
    return [write_source(folder, name, [size // 3] * 3) for name, size in SIZES.items()]


def debiased(sources: list[Source], **arguments: Any) -> Batches:
    return equitar.debiased(sources, **{"batch_size": 2, "shuffle": 12, "steps": 20, **arguments})


def taken(loaders: Sequence[equitar.Loader], steps: int) -> list[str]:
    """Return the keys of the next steps of an iterator of each rank."""
    return [key for loader in loaders for key in flat(islice(loader, steps))]


class Account:
    """What a run has emitted or given up of the pass of each source: a pass is over when that is all of it."""

    def __init__(self, slack: int) -> None:
        self.slack = slack  # samples that a pass may lack otherwise
        self.seen: dict[str, set[str]] = {name: set() for name in SIZES}
        self.counted = Counter[str]()

    def emit(self, keys: list[str]) -> None:
        for key in keys:
            name = source_of(key)
            seen, left = self.seen[name], SIZES[name] - self.counted[name]
            if left == 0 or (key in seen and left <= self.slack):
                seen.clear()
                self.counted[name] = 0
            assert key not in seen, f"{key} came again with {left} of its pass to come"
            seen.add(key)
            self.counted[name] += 1

    def give_up(self, numbers: Counter[str]) -> None:
        self.counted.update(numbers)
        assert all(self.counted[name] <= size for name, size in SIZES.items())


@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed])
@pytest.mark.parametrize(
    ("before", "after"),
    [((4, 3), (4, 3)), ((4, 3), (3, 3)), ((2, 4), (4, 4)), ((1, 6), (1, 4))],
    ids=["weights", "fewer ranks", "more ranks", "smaller batches"],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_restart_within_an_epoch_gives_nothing_of_the_pass_again(
    builder: Any, before: tuple[int, int], after: tuple[int, int], num_workers: int, sources: list[Source]
) -> None:
    def loaders(world_size: int, batch_size: int, weights: dict[str, int]) -> list[equitar.Loader]:
        batches = builder(sources, batch_size=batch_size, shuffle=12, steps=8, weights=weights, plan_workers=2)
        ranks = [as_rank(batches, rank, world_size) for rank in range(world_size)]
        return [equitar.Loader(each, num_workers=num_workers if each is ranks[0] else 0) for each in ranks]

    first = loaders(*before, MOSTLY_A)
    earlier = taken(first, 4)
    second = loaders(*after, EVEN)
    for loader in second:
        loader.load_state_dict(json.loads(json.dumps(first[0].state_dict())), restart=True)
    later = taken(second, 6)
    assert len({*earlier, *later}) == len(earlier) + len(later)
    lost = [loader.counters()["given_up"] for loader in second]
    assert lost == [lost[0]] * len(lost)
    assert sum(lost[0].values()) >= 4 * before[0] * before[1]


def test_what_a_restart_gives_up_is_logged(sources: list[Source], caplog: pytest.LogCaptureFixture) -> None:
    batches = debiased(sources, weights=EVEN)
    first = equitar.Loader(batches)
    counts = Counter(map(source_of, taken([first], 8)))
    loader = equitar.Loader(debiased(sources, weights=MOSTLY_A))
    loader.load_state_dict(first.state_dict(), restart=True)
    given_up = {name: 20 - counts[name] for name in SIZES}
    assert loader.counters()["given_up"] == given_up
    words = f"samples given up until the next pass: {given_up['a']} of 'a', {given_up['b']} of 'b'"
    assert f"epoch 1 begins after step 8 of epoch 0; {words}" in caplog.messages


def test_exact_gives_up_the_rest_of_its_epoch(sources: list[Source]) -> None:
    first = equitar.Loader(equitar.exact(sources, batch_size=50))
    list(islice(first, 3))
    loader = equitar.Loader(equitar.exact(sources, batch_size=40))
    loader.load_state_dict(first.state_dict(), restart=True)
    assert loader.counters()["given_up"] == {"a": 90, "b": 120}
    assert len(set(flat(loader))) == 360


# ---- reweight -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stops", [(7, 13, 1, 19, 11), (20, 20, 20, 20, 20), (3, 20, 16, 5, 20)])
def test_over_five_changes_no_sample_comes_twice_in_a_pass_and_all_that_is_lost_was_logged(
    stops: Sequence[int], num_workers: int, builder: Any, sources: list[Source], caplog: pytest.LogCaptureFixture
) -> None:
    weights = [EVEN, MOSTLY_A, {"a": 1, "b": 4}, EVEN, {"a": 4, "b": 1}, MOSTLY_A]
    loader = equitar.Loader(
        builder(sources, batch_size=2, shuffle=12, steps=20, weights=weights[0]), num_workers=num_workers
    )
    # Mixed sources go into their next pass at a step, of which they may have some samples left.
    account, before = Account(slack=8 if builder is equitar.mixed else 0), Counter[str]()
    for stop, changed in zip((*stops, *[20] * 14), (*weights[1:], *weights[-1:] * 14), strict=True):
        iterator = iter(loader)
        after = Counter(loader.counters()["given_up"])
        account.give_up(after - before)
        before = after
        account.emit(flat(islice(iterator, stop)))
        loader.reweight(changed)
    logged = [message for message in caplog.messages if "given up" in message]
    assert len(logged) == sum(stop < 20 for stop in stops)
    assert before.total() <= sum(2 * (20 - stop) for stop in stops)


def test_new_weights_count_from_the_next_iterator_on(sources: list[Source]) -> None:
    loader, same = (equitar.Loader(debiased(sources, weights=EVEN)) for _ in range(2))
    iterator = iter(loader)
    keys = [key for batch in islice(iterator, 5) for key in batch["__key__"]]
    loader.reweight(MOSTLY_A)
    assert loader.state_dict()["step"] == 5
    keys += [key for batch in iterator for key in batch["__key__"]]
    assert keys == flat(same)
    assert Counter(map(source_of, flat(loader))) == {"a": 30, "b": 10}
    assert not any(loader.counters()["given_up"].values())


def test_a_loader_that_has_not_begun_is_reweighted_as_if_it_were_built_so(sources: list[Source]) -> None:
    loader = equitar.Loader(debiased(sources, weights=EVEN))
    loader.reweight(MOSTLY_A)
    built = equitar.Loader(debiased(sources, weights=MOSTLY_A))
    assert loader.state_dict() == built.state_dict()
    assert flat(loader) == flat(built)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reweighted_run_is_resumed_from_its_state(num_workers: int, sources: list[Source]) -> None:
    even, mostly_a = (debiased(sources, weights=weights, plan_workers=2) for weights in (EVEN, MOSTLY_A))
    loader = equitar.Loader(even, num_workers=num_workers, persistent_workers=num_workers > 0)
    taken([loader], 9)
    loader.reweight(MOSTLY_A)
    taken([loader], 6)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["step"]) == (1, 6)
    built, changed = equitar.Loader(mostly_a), equitar.Loader(even)
    changed.reweight(MOSTLY_A)
    for other in (built, changed):
        other.load_state_dict(state)
    loader.load_state_dict(state)
    rest = flat(loader)
    assert len(rest) == 28
    assert flat(built) == flat(changed) == rest
    assert flat(built) == flat(changed) == flat(loader)
    with pytest.raises(PlanError, match=r"recipe was .*'a': 3.* and is .*'a': 1"):
        equitar.Loader(even).load_state_dict(state)


def test_plans_are_compared_over_ranks_again(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    monkeypatch.setattr(loader_module, "compare_over_ranks", lambda *arguments, **_: compared.append(arguments))
    loader = equitar.Loader(debiased(sources, weights=EVEN))
    taken([loader], 5)
    before = len(compared)
    taken([loader], 5)
    assert len(compared) == before
    loader.reweight(MOSTLY_A)
    taken([loader], 5)
    assert len(compared) == 2 * before
    assert compared[before:] != compared[:before]


def test_weights_that_are_not_right_are_refused_at_once_and_change_nothing(sources: list[Source]) -> None:
    loader, same = (equitar.Loader(debiased(sources, weights=EVEN)) for _ in range(2))
    for loaded in (loader, same):
        taken([loaded], 5)
    with pytest.raises(PlanError, match="'b' has none"):
        loader.reweight({"a": 1})
    with pytest.raises(PlanError, match="must be finite numbers >= 0"):
        loader.reweight({"a": 1, "b": -1})
    assert loader.state_dict() == same.state_dict()
    with pytest.raises(PlanError, match="`exact` goes through every sample once and takes no `weights`"):
        equitar.Loader(equitar.exact(sources, batch_size=4)).reweight(EVEN)


def test_the_same_weights_change_nothing(sources: list[Source]) -> None:
    loader = equitar.Loader(debiased(sources, weights=EVEN))
    taken([loader], 5)
    loader.reweight(MOSTLY_A)
    loader.reweight({"b": 1, "a": 1})
    assert flat(loader) == flat(equitar.Loader(debiased(sources, weights=EVEN)))  # begins the epoch again


def test_setting_the_next_epoch_after_new_weights_is_where_they_begin(sources: list[Source]) -> None:
    loader, same = (equitar.Loader(debiased(sources, weights=EVEN)) for _ in range(2))
    for loaded in (loader, same):
        taken([loaded], 5)
        loaded.reweight(MOSTLY_A)
    loader.set_epoch(1)
    assert flat(loader) == flat(same)
    assert loader.counters() == same.counters()


def test_an_epoch_before_new_weights_is_refused(sources: list[Source]) -> None:
    loader = equitar.Loader(debiased(sources, weights=EVEN))
    taken([loader], 5)
    loader.reweight(MOSTLY_A)
    loader.set_epoch(0)
    with pytest.raises(PlanError, match=r"the epoch must be at least 1.*; got 0; call `set_epoch` with 1 or more"):
        list(loader)


def test_shards_that_joined_wait_although_weights_change(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [60])
    loader = equitar.Loader(equitar.debiased([source], batch_size=2, steps=10, weights={"a": 1}))
    taken([loader], 5)
    write_source(tmp_path, "a", [60, 60])
    loader.reweight({"a": 2})
    taken([loader], 10)
    assert all(int(key[2:]) < 60 for key in flat(loader))
