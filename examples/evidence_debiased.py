"""Do batches of one source help where sources differ? ``python examples/evidence_debiased.py [FOLDER] [--seeds N] [--tiny]``.

A two-tower model learns pairs: three MNIST digits in a row, and a caption of three words. K sources have colours and filler
words of their own, so that image and caption both give the source away. `equitar.debiased` against `equitar.mixed`, with the
same pairs, weights and number of steps; the seed draws all of them. Measured: zero-shot top-1 over the 1,000 captions that
three digits can have, in the words of the image's source, on digits that are in no shard. Nulls: one source, and sources of
one style; `--more` adds sources that differ in one way only. The probe tells how well image embeddings give the source away.
"""

from __future__ import annotations

import colorsys
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import demo_shards
import equitar
import evidence

SIDE, TEST = 14, 1024  # pixels of a digit; pairs to test on, over all sources
Styles = list[tuple[int, int]]  # of each source: its colors, its words
CASES = {
    "1 source": [(0, 0)],
    "4 sources of one style": [(0, 0)] * 4,
    "4 sources": [(style, style) for style in range(4)],
    "8 sources": [(style, style) for style in range(8)],
}
MORE = {"only colors differ": [(i, 0) for i in range(4)], "only words differ": [(0, i) for i in range(4)]}
FILLERS = "photo of|scan shows|sketch with|poster saying|stamp reading|label bearing|print from|sign about".split("|")  # noqa: SIM905  (one line)
Digits = list[evidence.Images]  # by class
SLOTS = 5  # words of a caption
WORDS = {word: row for row, word in enumerate(sorted({*demo_shards.WORDS, *" ".join(FILLERS).split()}))}


class Towers(nn.Module):
    """A small CNN, and a table of what each word means in each slot of a caption."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(3, 16, 4, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()
        second = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU()
        self.image = nn.Sequential(*first, *second, nn.Flatten(), nn.LazyLinear(64))
        self.text = nn.Sequential(nn.EmbeddingBag(SLOTS * len(WORDS), 64, mode="sum"), nn.ReLU(), nn.Linear(64, 64))
        self.scale = nn.Parameter(torch.tensor(2.66))  # log(1 / 0.07), as CLIP begins

    def forward(self, pixels: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        return normalize(self.image(pixels)), normalize(self.text(words))


def draw_pairs(digits: Digits, style: tuple[int, int], num: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    hue, filler = style[0] / 8, FILLERS[style[1]]
    ink, paper = np.array(colorsys.hsv_to_rgb(hue, 0.8, 1)), np.array(colorsys.hsv_to_rgb((hue + 0.4) % 1, 0.8, 0.4))
    grey = np.linspace(0, 1, 256)[:, None]
    colors = (255 * (grey * ink + (1 - grey) * paper)).astype(np.uint8)  # of each shade of grey
    for row in range(num):
        labels = rng.integers(10, size=3)
        image = colors[np.hstack([digits[label][rng.integers(len(digits[label]))] for label in labels])]
        words = " ".join([filler, *(demo_shards.WORDS[label] for label in labels)])
        yield {"__key__": f"{row:05d}", "png": evidence.png(image), "txt": words.encode()}


def words_of(caption: str) -> list[int]:
    return [slot * len(WORDS) + WORDS[word] for slot, word in enumerate(caption.split())]


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    words = words_of(sample["txt"].decode())
    return {"__key__": sample["__key__"], "pixels": evidence.pixels_of(sample["png"]), "words": words}


def pixels_in(images: Sequence[evidence.Images]) -> Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def train(batches: equitar.Batches, seed: int) -> Towers:
    torch.manual_seed(seed)
    towers = Towers()
    towers(torch.zeros(1, 3, SIDE, 3 * SIDE), torch.zeros(1, SLOTS, dtype=torch.long))  # the lazy layer gets its size
    optimizer = torch.optim.Adam(towers.parameters(), lr=2e-3)
    for batch in equitar.Loader(batches):
        images, texts = towers(pixels_in(batch["pixels"]), torch.tensor(batch["words"]))
        scores = towers.scale.exp() * images @ texts.T
        target = torch.arange(len(scores))
        loss = (cross_entropy(scores, target) + cross_entropy(scores.T, target)) / 2  # InfoNCE, both ways
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return towers


@torch.no_grad()
def measure(towers: Towers, test: list[list[dict[str, Any]]], styles: Styles) -> dict[str, float]:
    """Return, in per cent, zero-shot top-1 and how often a probe names the source of an image's embedding."""
    is_right, embeddings, sources = [], [], []
    for source, (pairs, (_, words)) in enumerate(zip(test, styles, strict=True)):
        prompts = [" ".join([FILLERS[words], *three]) for three in itertools.product(demo_shards.WORDS, repeat=3)]
        pixels = pixels_in([evidence.pixels_of(pair["png"]) for pair in pairs])
        images, texts = towers(pixels, torch.tensor([words_of(prompt) for prompt in prompts]))
        best = (images @ texts.T).argmax(1).tolist()
        is_right += [prompts[place].encode() == pair["txt"] for place, pair in zip(best, pairs, strict=True)]
        embeddings.append(images.numpy())
        sources += [source] * len(pairs)
    result = {"top-1": 100 * float(np.mean(is_right))}
    if len(styles) > 1:
        result["source probe"] = 100 * equitar.source_probe(np.vstack(embeddings), sources).accuracy
    return result


def write_sources(folder: str, styles: Styles, digits: Digits, pairs: int, seed: int) -> list[equitar.Source]:
    rng, sources = np.random.default_rng((seed, 0)), []
    for place, style in enumerate(styles):
        samples = draw_pairs(digits, style, pairs // len(styles), rng)
        urls = demo_shards.write_shards(Path(folder), f"source{place}", samples, samples_per_shard=1000)
        sources.append(equitar.Source(f"source{place}", urls))
    equitar.index(sources, jobs=1, progress=False)
    return sources


def main(
    folder: Path, cases: dict[str, Styles], *, seeds: int, batch_size: int, steps: int, pairs: int
) -> list[evidence.Row]:
    runs, start = [], time.perf_counter()
    for (case, styles), seed in itertools.product(cases.items(), range(seeds)):
        train_digits, test_digits = evidence.split_digits(seed, SIDE)
        rng = np.random.default_rng((seed, 1))
        test = [list(draw_pairs(test_digits, style, TEST // len(styles), rng)) for style in styles]
        with tempfile.TemporaryDirectory() as shards:
            sources = write_sources(shards, styles, train_digits, pairs, seed)
            for build in (equitar.mixed, equitar.debiased):
                batches = build(sources, batch_size=batch_size, steps=steps, seed=seed, stages=[wds.map(prepare)])
                measured = measure(train(batches, seed), test, styles)
                runs += [evidence.Run(case, seed, build.__name__, metric, value) for metric, value in measured.items()]
    measured_of = dict.fromkeys((run.case, run.metric) for run in runs)
    rows = [evidence.compare(runs, case, metric, "mixed", "debiased") for case, metric in measured_of]
    evidence.write(runs, rows, folder, "debiased", f"debiased against mixed batches of {batch_size}, {steps} steps")
    print(f"{seeds} seeds took {time.perf_counter() - start:.0f} s")
    return rows


if __name__ == "__main__":
    parser = evidence.parser("Compare debiased with mixed batches.", batch_size=64, steps=300)
    parser.add_argument("--more", action="store_true", help="four sources that differ in images or in captions alone")
    asked = parser.parse_args()
    seeds, steps, pairs = (2, 8, 512) if asked.tiny else (asked.seeds, asked.steps, 6400)
    main(
        asked.folder, MORE if asked.more else CASES, seeds=seeds, batch_size=asked.batch_size, steps=steps, pairs=pairs
    )
