"""Train a small two-tower model on debiased batches: ``python examples/contrastive.py [FOLDER] [--steps N]``.

With images of all sources in one batch, telling a digit from a photo is all it takes to rule out most captions. In batches of
one source the model must look at what is in the picture (ZeroVL, arXiv 2112.09331). Such images also have one size.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
import webdataset as wds
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

import demo_shards
import equitar


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    letters = torch.tensor([float(sample["txt"].count(letter)) for letter in ascii_lowercase])
    pixels = 2 * sample["png" if "png" in sample else "jpg"] - 1  # 3 x H x W
    return {"__key__": sample["__key__"], "pixels": pixels, "letters": letters, "caption": sample["txt"]}


class Towers(nn.Module):
    """Tells how well each image (row) and each bag of letters (column) of a batch fit."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()
        self.image = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 32))
        self.text = nn.Sequential(nn.Linear(26, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, pixels: Tensor, letters: Tensor) -> Tensor:  # noqa: D102
        return 10 * normalize(self.image(pixels)) @ normalize(self.text(letters)).T


def main(folder: Path, steps: int) -> float:
    """Train for some steps, and return how much better than chance the right caption is found at the end."""
    if not any(folder.glob("*.tar")):
        demo_shards.write_all(folder)
    names = sorted({path.name.partition("-")[0] for path in folder.glob("*.tar")})
    sources = [equitar.Source(name, f"{folder}/{name}-*.tar") for name in names]
    equitar.index(sources, jobs=1, progress=False)  # pairs need no labels
    stages = [wds.decode("torchrgb"), wds.map(prepare)]
    batches = equitar.debiased(sources, batch_size=64, steps=steps, weights=equitar.Temperature(3), stages=stages)
    torch.manual_seed(0)
    optimizer = torch.optim.Adam((towers := Towers()).parameters(), lr=2e-3)
    losses, gains, drawn = [], [], dict.fromkeys(names, 0)
    for batch in equitar.Loader(batches):
        captions = batch["caption"]
        # Equal captions fit too.
        fits = torch.tensor([[float(caption == other) for other in captions] for caption in captions])
        scores = towers(torch.stack(batch["pixels"]), torch.stack(batch["letters"]))
        targets = fits / fits.sum(1, keepdim=True)
        loss = -(targets * (log_softmax(scores, 1) + log_softmax(scores.T, 1))).sum(1).mean() / 2  # InfoNCE, both ways
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        gains.append((fits[range(len(fits)), scores.argmax(1)].mean() / fits.mean()).item())
        drawn[batch["__source__"]] += 1  # the one source of all 64
    last = max(1, steps // 5)
    gain = sum(gains[-last:]) / last
    print(f"batches by source: {drawn}")
    print(f"loss {losses[0]:.2f} -> {sum(losses[-last:]) / last:.2f}; captions found {gain:.1f} x as often as by luck")
    assert min(losses[-last:]) < losses[0], "training must lower the loss"
    return gain


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=150)
    assert main(**vars(parser.parse_args())) > 1.5, "captions must be found more often than by chance"
