"""Train two towers with a contrastive loss over all ranks, on debiased batches; resume from a checkpoint with any number of ranks.

torchrun --nproc-per-node 2 examples/ddp_contrastive.py [FOLDER] --save-at 20
torchrun --nproc-per-node 1 examples/ddp_contrastive.py [FOLDER] --resume    # the same global batches, the same losses

The negatives of an image are the texts of all ranks. So all ranks must draw the same source at the same step: otherwise the
texts of another rank tell their source, which is what batches of one source are there to prevent.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from torch import Tensor, distributed, nn
from torch.nn.functional import log_softmax, normalize
from torch.nn.parallel import DistributedDataParallel

import demo_shards
import equitar
from contrastive import prepare

GLOBAL_BATCH = 64
EPOCHS = 1


class Gathered(torch.autograd.Function):
    """The rows of all ranks; gradients are summed over all losses."""

    @staticmethod
    def forward(_: Any, rows: Tensor) -> Tensor:
        """Gather the rows."""
        parts = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        """Return this rank's part of the summed gradient."""
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]


def contrastive_loss(images: Tensor, texts: Tensor, letters: Tensor) -> Tensor:
    """InfoNCE of this rank's rows against all; equal texts match."""
    all_images, all_texts, all_letters = map(Gathered.apply, (images, texts, letters))
    fits = (letters[:, None] == all_letters).all(2).float()
    by_image = log_softmax(10 * images @ all_texts.T, 1)
    by_text = log_softmax(10 * texts @ all_images.T, 1)
    of_rows = (fits / fits.sum(1, keepdim=True) * (by_image + by_text)).sum(1)
    loss: Tensor = -of_rows.mean() / 2
    return loss


class Towers(nn.Module):
    """Embeds images and bags of letters in rows of length 1."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()
        self.image = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 32))
        self.text = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, pixels: Tensor, letters: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        return normalize(self.image(pixels)), normalize(self.text(letters))


def sources_in(folder: Path) -> list[equitar.Source]:
    names = sorted({path.name.partition("-")[0] for path in folder.glob("*.tar")})
    return [equitar.Source(name, f"{folder}/{name}-*.tar") for name in names]


def train(folder: Path, steps: int, save_at: int | None, *, resume: bool) -> list[tuple[str, float]]:
    """Train for an epoch, or the rest of it, and return source and loss of every step on this rank."""
    batches = equitar.debiased(
        sources_in(folder),
        batch_size=GLOBAL_BATCH // distributed.get_world_size(),  # of each rank
        steps=steps,
        stages=[wds.decode("torchrgb"), wds.map(prepare)],
    )
    loader = equitar.Loader(batches)
    torch.manual_seed(0)
    model = DistributedDataParallel(Towers())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    checkpoint = folder / "checkpoint.pt"
    if resume:
        for name, saved in torch.load(checkpoint).items():
            state[name].load_state_dict(saved)
    came = []
    for _ in range(loader.epoch, EPOCHS):  # none, if the checkpoint was saved after the last step
        for batch in loader:
            letters = torch.stack(batch["letters"])
            images, texts = model(torch.stack(batch["pixels"]), letters)
            loss = contrastive_loss(images, texts, letters)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # averages the gradients over the ranks
            optimizer.step()
            came.append((batch["__source__"], loss.item()))
            if batch["__step__"] + 1 == save_at and distributed.get_rank() == 0:
                torch.save({name: part.state_dict() for name, part in state.items()}, checkpoint)
    return came


def over_ranks(came: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return source and loss of every step over all ranks, after a check that they drew the same sources."""
    everywhere: list[list[tuple[str, float]]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everywhere, came)
    for step in zip(*everywhere, strict=True):
        assert len({source for source, _ in step}) == 1, f"all ranks must draw the same source; got {step}"
    return [(step[0][0], sum(loss for _, loss in step) / len(step)) for step in zip(*everywhere, strict=True)]


def main(folder: Path, steps: int, save_at: int | None, *, resume: bool) -> None:
    distributed.init_process_group("gloo")  # "nccl" on GPUs
    if distributed.get_rank() == 0:
        if not any(folder.glob("*.tar")):
            demo_shards.write_all(folder)
        equitar.index(sources_in(folder), jobs=1, progress=False)
    distributed.barrier()
    met = over_ranks(train(folder, steps, save_at, resume=resume))
    if distributed.get_rank() == 0:
        for number, (source, loss) in enumerate(met, steps - len(met)):
            print(f"step {number:3d} {source:10s} loss {loss:.6f}")
    gc.collect()  # DistributedDataParallel is in a circle and would hold the group until the process ends
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-at", type=int, help="save a checkpoint after so many steps")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    main(**vars(parser.parse_args()))
