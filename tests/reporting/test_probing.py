"""What does the probe for sources say of embeddings and of captions, and what does it refuse?"""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from scipy.sparse import csr_matrix

import equitar
from equitar.errors import SourceError
from equitar.loading.builders import debiased
from equitar.reporting.probing import SourceProbe, caption_probe, source_probe
from equitar.sources import Source

NAMES = ["a"] * 200 + ["b"] * 100 + ["c"] * 100


def embeddings(spread: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a cloud for each source, so far from each other."""
    places = np.array([{"a": (0, 0), "b": (1, 0), "c": (0, 1)}[name] for name in NAMES])
    return spread * places + np.random.default_rng(0).normal(size=(len(NAMES), 2))


def write_captions(
    folder: Path, name: str, captions: Sequence[bytes], *, field: str = "txt", shards: int = 2
) -> Source:
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"{name}-{shard}.tar"), mtime=0) as writer:
            for number in range(shard, len(captions), shards):
                writer.write({"__key__": f"{number:04d}", field: captions[number], "png": b"no picture"})
    source = Source(name, f"{folder}/{name}-*.tar")
    equitar.index(source, jobs=1, progress=False)
    return source


def numbered(pattern: str, size: int = 60) -> list[bytes]:
    return [pattern.format(number).encode() for number in range(size)]


def probe_of(*recall: float, distinct: float | None = None) -> SourceProbe:
    names = tuple("abcdefgh"[: len(recall)])
    return SourceProbe(samples=100, sources=names, recall=recall, distinct=distinct)


def test_sources_far_apart_are_told_and_equal_ones_are_not() -> None:
    far, near = source_probe(embeddings(20), NAMES), source_probe(embeddings(0), NAMES)
    assert (far.sources, far.samples) == (("a", "b", "c"), 400)
    assert far.chance == pytest.approx(1 / 3)
    assert far.accuracy > 0.99
    assert far.gives_away == "clearly"
    assert abs(near.accuracy - near.chance) < 0.1
    assert near.gives_away == "hardly"
    assert str(far).startswith("source  recall\na")
    assert str(near).endswith("hardly given away: expect nothing from batches of one source")


def test_a_large_source_counts_no_more_than_a_small_one() -> None:
    rows, names = np.zeros((1000, 1)), ["large"] * 900 + ["small"] * 100
    assert source_probe(rows, names).accuracy == pytest.approx(0.5)  # naming the largest would give 0.9


def test_the_probe_is_scored_on_samples_it_was_not_fitted_on() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 500))  # more dimensions than samples: fitted ones are all told
    assert source_probe(rows, ["a", "b"] * 30).gives_away == "hardly"


@pytest.mark.parametrize("convert", [np.float32, torch.tensor, csr_matrix, np.ndarray.tolist])
def test_arrays_tensors_sparse_matrices_and_lists_are_taken(convert: Callable[[Any], Any]) -> None:
    assert source_probe(convert(embeddings(20)), NAMES).accuracy > 0.95


def test_the_same_seed_gives_the_same_probe_and_it_travels() -> None:
    probe = source_probe(embeddings(1), NAMES, seed=1)
    assert probe == source_probe(embeddings(1), NAMES, seed=1) == pickle.loads(pickle.dumps(probe))
    assert probe != source_probe(embeddings(1), NAMES, seed=2)


@pytest.mark.parametrize(
    ("rows", "names", "folds", "message"),
    [
        (np.zeros((3, 2)), ["a", "b"], 2, r"a row for each of 2 `sources`; got shape \(3, 2\)"),
        (np.zeros(2), ["a", "b"], 2, r"got shape \(2,\)"),
        (np.zeros((4, 0)), ["a", "b"] * 2, 2, r"got shape \(4, 0\)"),
        (np.array([[np.nan], [0], [np.inf], [1]]), ["a", "b"] * 2, 2, "finite numbers; got 2 that are not"),
        (csr_matrix([[np.nan], [0], [1], [1]]), ["a", "b"] * 2, 2, "finite numbers; got 1 that are not"),
        (np.zeros((4, 1)), ["a"] * 4, 2, "at least two sources; got a"),
        (np.zeros((4, 1)), ["a", "b"] * 2, 1, "`folds` must be >= 2; got 1"),
        (np.zeros((12, 1)), ["a"] * 8 + ["b"] * 4, 5, "at least 5 samples of each, one for each fold; got 4 for 'b'"),
    ],
)
def test_what_cannot_be_probed_is_refused(rows: Any, names: list[str], folds: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source_probe(rows, names, folds=folds)


@pytest.mark.parametrize(
    ("images", "captions", "begins"),
    [
        ((1.0, 1.0), (0.95, 0.98), "Images and captions both give the source away: `equitar.debiased` can help"),
        ((1.0, 1.0), (0.5, 0.5), "The captions do not give the source away: expect nothing"),
        ((0.5, 0.4), (1.0, 1.0), "The images do not give the source away: expect nothing"),
        ((0.5, 0.4), (0.5, 0.5), "Neither images nor captions give the source away: expect nothing"),
        ((1.0, 1.0), (0.8, 0.7), "The captions give the source away only in part"),
        ((0.8, 0.7), (0.8, 0.7), "The images and the captions give the source away only in part"),
        ((0.8, 0.7), (0.5, 0.5), "The captions do not give the source away"),
    ],
)
def test_images_and_captions_together_say_which_case_it_is(
    images: tuple[float, ...], captions: tuple[float, ...], begins: str
) -> None:
    assert probe_of(*images).with_captions(probe_of(*captions)).startswith(begins)


def test_probes_of_other_sources_are_not_compared() -> None:
    with pytest.raises(ValueError, match="probe of the same sources; got a, b, c for images of a, b"):
        probe_of(1, 1).with_captions(probe_of(1, 1, 1))


def test_chance_is_taken_into_account_with_two_sources_as_with_eight() -> None:
    assert probe_of(*[0.6] * 2).gives_away == "hardly"
    assert probe_of(*[0.6] * 8).gives_away == "partly"


def test_captions_with_words_of_their_own_give_the_source_away_and_the_words_are_named(tmp_path: Path) -> None:
    alt = write_captions(tmp_path, "alt", numbered("stock photo of {}"))
    user = write_captions(tmp_path, "user", numbered("My holiday {} with friends"))
    probe = caption_probe([user, alt])
    assert probe.sources == ("alt", "user")
    assert (probe.accuracy, probe.samples, probe.distinct) == (1, 120, 1)
    assert set(probe.words[0]) == {"stock", "photo", "of"}
    assert set(probe.words[1]) == {"my", "holiday", "with", "friends"}
    assert "clearly given away" in str(probe)
    assert "stock" in str(probe)
    assert caption_probe(debiased([user, alt], batch_size=8)) == probe


def test_captions_of_one_kind_do_not(tmp_path: Path) -> None:
    sources = [write_captions(tmp_path, name, numbered("a photo of {}")) for name in ("one", "two")]
    assert caption_probe(sources).gives_away == "hardly"


def test_repeated_captions_are_noted(tmp_path: Path) -> None:
    names = ("cat", "dog")
    sources = [write_captions(tmp_path, name, [f"a photo of a {name}".encode()] * 20) for name in names]
    probe = caption_probe(sources)
    assert probe.distinct == 0
    assert "0.0% of the captions are distinct" in str(probe)
    assert probe.as_json()["sources"][0] == {"name": "cat", "recall": 1, "words": ["cat"]}
    assert "distinct" not in str(replace(probe, distinct=0.9))


def test_a_bounded_sample_is_read_of_what_is_kept(tmp_path: Path) -> None:
    captions = numbered("left {}", 50) + numbered("right {}", 50)
    (tmp_path / "keys.txt").write_text("".join(f"{number:04d}\n" for number in range(50)))
    first = replace(write_captions(tmp_path, "first", captions, shards=5), keep=f"{tmp_path}/keys.txt")
    second = write_captions(tmp_path, "second", captions, shards=5)
    probe = caption_probe([first, second], samples=40)
    assert probe.samples == 80
    assert "left" in probe.words[0]
    assert "right" not in probe.words[0]
    assert caption_probe([first, second], samples=1000).samples == 150


@pytest.mark.parametrize(
    ("captions", "field", "message"),
    [
        ([b"\xff\xfe"] * 20, "txt", r"must be UTF-8 text; got other bytes in 'txt' for key '0000' of .*/b-0\.tar"),
        ([b"..."] * 20, "txt", "must have words"),
        (numbered("photo {}"), "caption", "has png, txt"),
    ],
)
def test_what_is_not_a_caption_is_refused(captions: list[bytes], field: str, message: str, tmp_path: Path) -> None:
    sources = [write_captions(tmp_path, name, captions) for name in "bc"]
    with pytest.raises(SourceError, match=message):
        caption_probe(sources, field=field)


def test_a_sample_without_a_caption_is_named(tmp_path: Path) -> None:
    with wds.TarWriter(str(tmp_path / "a-0.tar"), mtime=0) as writer:
        writer.write({"__key__": "good", "txt": b"a photo", "png": b"no picture"})
        writer.write({"__key__": "bare", "png": b"no picture"})
    source = Source("a", f"{tmp_path}/a-*.tar")
    equitar.index(source, jobs=1, progress=False)
    with pytest.raises(SourceError, match=r"field 'txt', which is missing for key 'bare' of .*a-0\.tar"):
        caption_probe([source])


def test_no_samples_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`samples` must be >= 1; got 0"):
        caption_probe(write_captions(tmp_path, "a", numbered("{}")), samples=0)


def test_without_scikit_learn_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install 'equitar\[probe\]'"):
        source_probe(embeddings(1), NAMES)
