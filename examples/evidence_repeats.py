"""Do repeat factors help where classes are rare? ``python examples/evidence_repeats.py [FOLDER] [--seeds N] [--tiny]``.

A small CNN learns MNIST digits, of which the commonest has 400 samples and the rarest 4; the seed draws which digit is how rare,
which samples there are, and the first weights. `equitar.mixed(repeat=t)` against no repeats, in as many steps. Measured: accuracy
on 100 other samples of each class, for LVIS's groups: rare (at most 10 samples to train on), common (at most 100) and frequent.
Null: as many samples of each class, where no class is below the threshold.
"""

from __future__ import annotations

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
from torch.nn.functional import cross_entropy

import demo_shards
import equitar
import evidence

SIDE = 14  # pixels of a digit
CASES = {  # samples of each class
    "long tail": tuple(
        round(400 * 0.01 ** (rank / 9)) for rank in range(10)
    ),  # 400, 240, 144, 86, 52, 31, 19, 11, 7, 4
    "balanced": (99,) * 10,
}
THRESHOLDS = {"long tail": (0.01, 0.1, 1.0), "balanced": (0.1,)}
GROUPS = {"rare": range(1, 11), "common": range(11, 101), "frequent": range(101, 401), "mean": range(401)}


def draw_digits(
    digits: list[evidence.Images], counts: Sequence[int], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Yield so many samples of each class, in a drawn order."""
    samples = [(label, row) for label, count in enumerate(counts) for row in range(count)]
    for number, (label, row) in enumerate(rng.permutation(samples).tolist()):
        yield {"__key__": f"{number:05d}", "png": evidence.png(digits[label][row]), "cls": str(label).encode()}


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "pixels": evidence.pixels_of(sample["png"]), "cls": int(sample["cls"])}


def pixels_in(images: evidence.Images) -> Tensor:
    return torch.from_numpy(images)[:, None].float() / 127.5 - 1


def train(batches: equitar.Batches, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch in equitar.Loader(batches):
        loss = cross_entropy(model(pixels_in(np.stack(batch["pixels"]))), torch.tensor(batch["cls"]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


@torch.no_grad()
def measure(model: nn.Module, digits: list[evidence.Images], counts: Sequence[int]) -> dict[str, float]:
    """Return the accuracy of each group that has classes, in per cent."""
    right = [(model(pixels_in(digits[label])).argmax(1) == label).float().mean().item() for label in range(10)]
    groups = {
        group: [100 * accuracy for accuracy, count in zip(right, counts, strict=True) if count in sizes]
        for group, sizes in GROUPS.items()
    }
    return {group: float(np.mean(values)) for group, values in groups.items() if values}


def main(folder: Path, *, seeds: int, batch_size: int, steps: int) -> list[evidence.Row]:
    runs, start = [], time.perf_counter()
    for (case, sizes), seed in itertools.product(CASES.items(), range(seeds)):
        train_digits, test_digits = evidence.split_digits(seed, SIDE)
        rng = np.random.default_rng((seed, 0))
        counts = rng.permutation(sizes).tolist()  # of each digit
        with tempfile.TemporaryDirectory() as shards:
            samples = draw_digits(train_digits, counts, rng)
            source = equitar.Source("digits", demo_shards.write_shards(Path(shards), "digits", samples, 300))
            equitar.index(source, labels="cls", jobs=1, progress=False)
            for repeat in (None, *THRESHOLDS[case]):
                stages = [wds.map(prepare)]
                batches = equitar.mixed(
                    [source], repeat=repeat, batch_size=batch_size, steps=steps, seed=seed, stages=stages
                )
                measured = measure(train(batches, seed), test_digits, counts)
                runs += [evidence.Run(case, seed, f"t = {repeat}", metric, value) for metric, value in measured.items()]
    rows = []
    for case, thresholds in THRESHOLDS.items():
        metrics = list(dict.fromkeys(run.metric for run in runs if run.case == case))
        for repeat, metric in itertools.product(thresholds, metrics):
            row = evidence.compare(runs, case, metric, "t = None", f"t = {repeat}")
            rows.append(row._replace(case=f"{case}, t = {repeat:g}"))
    evidence.write(runs, rows, folder, "repeats", f"repeats against none, batches of {batch_size}, {steps} steps")
    print(f"{seeds} seeds took {time.perf_counter() - start:.0f} s")
    return rows


if __name__ == "__main__":
    asked = evidence.parser("Compare repeat factors with none.", batch_size=32, steps=400).parse_args()
    seeds, steps = (2, 20) if asked.tiny else (asked.seeds, asked.steps)
    main(asked.folder, seeds=seeds, batch_size=asked.batch_size, steps=steps)
