"""Train a small classifier on long-tailed digits, with and without repeats: ``python examples/classifier.py [FOLDER]``.

The shards hold 178 zeros and only two nines. Both runs take as many steps; with LVIS repeat factors rare digits appear more often.
Accuracy is measured on the digits that are in no shard, all classes about equally frequent there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from sklearn.datasets import load_digits
from torch import Tensor, nn

import demo_shards
import equitar

RARE = (6, 7, 8, 9)  # 8, 5, 3 and 2 samples


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "pixels": sample["png"][:1], "cls": sample["cls"]}


def held_out() -> tuple[Tensor, Tensor]:  # the digits that are in no shard
    images, labels = load_digits(return_X_y=True)
    is_out = torch.ones(len(labels), dtype=torch.bool)
    is_out[demo_shards.long_tail(labels, seed=0)] = False
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return pixels[is_out], torch.tensor(labels)[is_out]


def train(source: equitar.Source, repeat: float | None, steps: int) -> tuple[nn.Module, Counter[int]]:
    stages = [wds.decode("torchrgb"), wds.map(prepare)]
    batches = equitar.mixed([source], batch_size=32, steps=steps, repeat=repeat, stages=stages)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    came: Counter[int] = Counter()
    for batch in equitar.Loader(batches):
        loss = nn.functional.cross_entropy(model(torch.stack(batch["pixels"])), torch.tensor(batch["cls"]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        came.update(batch["cls"])
    return model, came


def main(folder: Path, steps: int) -> dict[str, float]:
    if not any(folder.glob("digits-*.tar")):
        demo_shards.write_digits(folder)
    source = equitar.Source("digits", f"{folder}/digits-*.tar")
    equitar.index(source, labels="cls", jobs=1, progress=False)
    pixels, labels = held_out()
    is_rare = torch.isin(labels, torch.tensor(RARE))
    came, accuracy = {}, {}
    print("repeat   rare classes came   accuracy: rare  others")
    for name, repeat in (("none", None), ("t = 1", 1.0)):  # t = 1: every class by the square root of its frequency
        model, came[name] = train(source, repeat, steps)
        with torch.no_grad():
            is_right = (model(pixels).argmax(1) == labels).float()
        accuracy[name] = is_right[is_rare].mean().item()
        share = sum(came[name][digit] for digit in RARE) / came[name].total()
        print(f"{name:7s}  {share:17.1%}   {accuracy[name]:14.1%}  {is_right[~is_rare].mean().item():6.1%}")
    for digit in RARE:
        assert came["t = 1"][digit] > came["none"][digit], f"{digit} is rare and must come more often with repeats"
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=150)
    accuracy = main(**vars(parser.parse_args()))
    assert accuracy["t = 1"] > accuracy["none"], "repeats must help the rare classes here"
