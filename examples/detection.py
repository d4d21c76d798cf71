"""Train a tiny detector on images with rare classes, repeated by their LVIS repeat factors: ``python examples/detection.py``.

The shards hold images (``png``) and their boxes (``json``); `instances.json` beside them is what COCO and LVIS give. Pictures
are drawn: bright shapes, one class for each, and the last class is rare.
"""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss

import demo_shards
import equitar

CLASSES = {1: "wide", 2: "tall", 7: "small"}  # ids as in the annotations: they need not be consecutive
SHAPES = {1: (14, 6), 2: (6, 14), 7: (6, 6)}  # width and height of the box of each
EVERY = {2: 3, 7: 25}  # which images have a class; all have class 1
SIZE, STRIDE = 32, 8  # pixels of an image, and of the cells in which the head predicts


def write(folder: Path, num_images: int) -> None:
    """Write `objects-*.tar`, and `instances.json` as of COCO."""
    rng = np.random.default_rng(0)
    images, annotations, samples = [], list[dict[str, Any]](), []
    for number in range(num_images):
        class_ids = [1] + [class_id for class_id, every in EVERY.items() if number % every == 0]
        picture, boxes = np.zeros((SIZE, SIZE, 3), np.uint8), []
        for class_id in class_ids:
            width, height = SHAPES[class_id]
            x, y = (int(coordinate) for coordinate in rng.integers(0, (SIZE - width + 1, SIZE - height + 1)))
            picture[y : y + height, x : x + width] = rng.integers(100, 256, 3)
            boxes.append([x, y, width, height])
        images.append({"id": number, "file_name": f"{number:06d}.png", "width": SIZE, "height": SIZE})
        for box, class_id in zip(boxes, class_ids, strict=True):
            ids = {"id": len(annotations), "image_id": number, "category_id": class_id}
            annotations.append({**ids, "bbox": box, "iscrowd": 0})
        png = io.BytesIO()
        Image.fromarray(picture).save(png, format="PNG")
        target = json.dumps({"boxes": boxes, "labels": class_ids}).encode()
        samples.append({"__key__": f"{number:06d}", "png": png.getvalue(), "json": target})
    demo_shards.write_shards(folder, "objects", iter(samples), 100)
    categories = [{"id": class_id, "name": name} for class_id, name in CLASSES.items()]
    text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    (folder / "instances.json").write_text(text, encoding="utf-8")


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    boxes = torch.tensor(sample["json"]["boxes"], dtype=torch.float32)  # objects x 4: x, y, width, height
    boxes[:, 2:] += boxes[:, :2]  # x1, y1, x2, y2
    target = {"boxes": boxes, "labels": torch.tensor(sample["json"]["labels"])}
    return {"__key__": sample["__key__"], "image": sample["png"], "target": target}


class Detector(nn.Module):
    """Predicts for each cell a class (0: nothing) and a box, for objects whose centre lies in the cell."""

    def __init__(self) -> None:
        super().__init__()
        body = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1)]
        self.body = nn.Sequential(*body, nn.ReLU())
        self.head = nn.Conv2d(32, 1 + max(CLASSES) + 4, 1)

    def forward(self, images: Sequence[Tensor], targets: Sequence[dict[str, Tensor]]) -> Tensor:
        """Return the loss of images, each 3 x H x W, and their targets."""
        cells = self.head(self.body(torch.stack(list(images)))).permute(0, 2, 3, 1)  # images x rows x columns x numbers
        classes, boxes = cells[..., :-4], cells[..., -4:]
        wanted = torch.zeros(classes.shape[:3], dtype=torch.long)
        loss = torch.zeros(())
        for image, target in enumerate(targets):
            column, row = ((target["boxes"][:, :2] + target["boxes"][:, 2:]) / 2 // STRIDE).long().T
            wanted[image, row, column] = target["labels"]
            loss = loss + l1_loss(boxes[image, row, column], target["boxes"] / SIZE) / len(targets)
        weight = torch.tensor([0.1, *[1.0] * max(CLASSES)])  # most cells hold nothing
        return loss + cross_entropy(classes.flatten(0, 2), wanted.flatten(), weight=weight)


def train(source: equitar.Source, repeat: float | None, epochs: int) -> tuple[Counter[int], list[float]]:
    """Train, and return in how many images each class appeared, and the loss of every step."""
    batches = equitar.mixed(
        [source],
        batch_size=16,
        repeat=repeat,
        stages=[wds.decode("torchrgb"), wds.map(prepare)],
        collate_fn=list,  # samples stay apart: their targets have different lengths
    )
    loader = equitar.Loader(batches)
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    came: Counter[int] = Counter()
    losses = []
    for _ in range(loader.epoch, epochs):
        for samples in loader:
            targets = [sample["target"] for sample in samples]
            loss = model([sample["image"] for sample in samples], targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            came.update(label for target in targets for label in set(target["labels"].tolist()))
            losses.append(loss.item())
    return came, losses


def main(folder: Path, threshold: float, epochs: int) -> None:
    if not any(folder.glob("objects-*.tar")):
        write(folder, 400)
    source = equitar.Source("objects", f"{folder}/objects-*.tar")
    equitar.index(source, labels_from=f"{folder}/instances.json", jobs=1, progress=False)
    classes = equitar.stats([source], repeat=threshold).classes
    assert classes is not None, "it was indexed with labels"
    assert classes.factors is not None, "it is repeated by a threshold"
    plain, _ = train(source, None, epochs)
    repeated, losses = train(source, threshold, epochs)
    print("class          images  factor  came plain  with repeats")
    id_of = {name: class_id for class_id, name in CLASSES.items()}
    rows = zip(classes.names, classes.samples.tolist(), classes.factors.tolist(), strict=True)
    for name, images, factor in rows:
        print(f"{name:14s} {images:6d} {factor:7.2f} {plain[id_of[name]]:11d} {repeated[id_of[name]]:13d}")
    print(f"loss {losses[0]:.2f} -> {sum(losses[-10:]) / 10:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/detection"))
    parser.add_argument("--threshold", type=float, default=0.5, help="share of images below which a class is repeated")
    parser.add_argument("--epochs", type=int, default=3)
    main(**vars(parser.parse_args()))
