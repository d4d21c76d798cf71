r"""Train open_clip on debiased batches, without a change in open_clip: this script takes open_clip's own arguments.

python examples/open_clip_data.py --model ViT-B-32 --batch-size 256 --workers 4 --dataset-type webdataset \
    --train-data "cc3m=/data/cc3m-{000000..000331}.tar::sbu=/data/sbu-{00000..00086}.tar"

A source is `name=urls`, and sources are joined by `::`. Each was indexed: ``equitar index "cc3m=/data/cc3m-{000000..000331}.tar"``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import open_clip_train.data
import open_clip_train.main
import torch
import webdataset as wds
from open_clip_train.data import DataInfo, filter_no_caption_or_no_image, log_and_continue
from torch import Tensor

import equitar


class Epoch:
    """What open_clip tells the number of an epoch before it begins."""

    def __init__(self, loader: equitar.Loader) -> None:
        self.loader = loader

    def set_value(self, epoch: int) -> None:
        """Begin this epoch next."""
        self.loader.set_epoch(epoch)


def tokens(tokenizer: Callable[[str], Tensor], text: str) -> Tensor:
    return tokenizer(text)[0]


def pairs(samples: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    return torch.stack([sample["image"] for sample in samples]), torch.stack([sample["text"] for sample in samples])


def sources_of(text: str) -> list[equitar.Source]:
    parts = [source.partition("=") for source in text.split("::")]
    return [equitar.Source(name, urls) for name, _, urls in parts]


def get_equitar_data(
    args: Any,
    preprocess_img: Any,
    is_train: bool,  # noqa: FBT001  (open_clip's signature)
    epoch: int = 0,
    tokenizer: Any = None,
) -> DataInfo:
    """Return what `open_clip_train.data.get_wds_dataset` returns, with batches of one source each."""
    stages = [
        wds.select(filter_no_caption_or_no_image),  # a sample that is dropped is replaced by another of its source
        wds.decode("pilrgb", handler=log_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="txt"),
        wds.map_dict(image=preprocess_img, text=partial(tokens, tokenizer)),
    ]
    if is_train:
        sources, global_batch = sources_of(args.train_data), args.batch_size * args.world_size
        factors = args.train_data_upsampling_factors  # passes of each source in an epoch, as "1::2.5"
        names = [source.name for source in sources]
        batches = equitar.debiased(
            sources,
            batch_size=args.batch_size,
            seed=args.seed,
            weights=equitar.Passes(dict(zip(names, map(float, factors.split("::")), strict=True))) if factors else None,
            steps=args.train_num_samples // global_batch if args.train_num_samples else None,  # None: one pass
            accumulation_steps=args.accum_freq,  # accumulated batches share a source
            stages=stages,
            collate_fn=pairs,
            handler=log_and_continue,
            rank=args.rank,
            world_size=args.world_size,
        )
    else:  # open_clip evaluates on one rank
        batches = equitar.exact(
            sources_of(args.val_data), batch_size=args.batch_size, stages=stages, collate_fn=pairs, rank=0, world_size=1
        )
    loader: Any = equitar.Loader(batches, num_workers=args.workers, persistent_workers=args.workers > 0)
    loader.set_epoch(epoch)
    loader.num_batches = len(loader)
    loader.num_samples = batches.plan().num_steps * batches.plan().global_batch
    return DataInfo(dataloader=loader, shared_epoch=Epoch(loader))


if __name__ == "__main__":
    open_clip_train.data.get_wds_dataset = get_equitar_data
    open_clip_train.main.main(sys.argv[1:])
