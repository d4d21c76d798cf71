"""open_clip's own training on debiased batches, with the webdataset it pins: `make test-open-clip` installs both.

Skipped where open_clip is not installed.
"""

from __future__ import annotations

import io
import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from PIL import Image

import equitar

open_clip = pytest.importorskip("open_clip")
pytestmark = [pytest.mark.filterwarnings("default")]  # other libraries' business

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
SIZES = {"dark": [14, 6], "light": [12]}  # samples of each shard; images of a source have one brightness


@pytest.fixture(scope="module")
def train_data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    for name, sizes in SIZES.items():
        for shard, size in enumerate(sizes):
            with wds.TarWriter(str(folder / f"{name}-{shard}.tar"), mtime=0) as writer:
                for number in range(size):
                    jpg = io.BytesIO()
                    grey = np.full((40, 40, 3), 30 if name == "dark" else 220, np.uint8)
                    Image.fromarray(grey).save(jpg, format="JPEG")
                    key, txt = f"{shard}{number:03d}", f"{name} {shard} {number}"
                    sample = {"__key__": key, "jpg": jpg.getvalue(), "txt": txt}
                    if (name, shard, number) == ("dark", 0, 3):
                        del sample["txt"]  # no caption: to be dropped
                    writer.write(sample)
        equitar.index(equitar.Source(name, f"{folder}/{name}-*.tar"), jobs=1, progress=False)
    return "::".join(f"{name}={folder}/{name}-{{0..{len(sizes) - 1}}}.tar" for name, sizes in SIZES.items())


@pytest.fixture(scope="module", autouse=True)
def _tiny_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("configs") / "tiny.json"
    path.write_text(json.dumps(TINY))
    open_clip.add_model_config(path)


def data_of(train_data: str, **given: Any) -> tuple[Any, Any]:
    """Return training data of the example, and the tokenizer."""
    from open_clip_data import get_equitar_data

    arguments = {
        "train_data": train_data,
        "val_data": train_data,
        "batch_size": 4,
        "seed": 0,
        "workers": 0,
        "train_num_samples": None,
        "train_data_upsampling_factors": None,
        "accum_freq": 1,
        "rank": 0,
        "world_size": 1,
        **given,
    }
    _, preprocess, _ = open_clip.create_model_and_transforms("tiny")
    tokenizer = open_clip.get_tokenizer("tiny")
    is_train = arguments.pop("is_train", True)
    return get_equitar_data(Namespace(**arguments), preprocess, is_train, tokenizer=tokenizer), tokenizer


def source_of(images: Any) -> str:
    means = images.mean(dim=(1, 2, 3))
    assert (means > 0).all() or (means < 0).all(), "images of one source have one brightness"
    return "light" if means[0] > 0 else "dark"


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_what_open_clip_expects_and_of_one_source_each(workers: int, train_data: str) -> None:
    data, tokenizer = data_of(train_data, workers=workers)
    loader = data.dataloader
    assert (loader.num_batches, loader.num_samples) == (8, 32)  # 20 // 4 + 12 // 4
    drawn, texts = [], set()
    for images, tokens in loader:
        assert images.shape == (4, 3, 32, 32)
        assert tokens.shape == (4, 12)
        texts |= {tokenizer.decode(row.numpy()) for row in tokens}
        assert {source_of(images)} == {loader.last.source}
        drawn.append(loader.last.source)
    assert sorted(drawn) == ["dark"] * 5 + ["light"] * 3
    assert len(texts) == 31  # of 32: another of its source took the place of the sample without caption
    data.set_epoch(5)
    assert [loader.last.epoch for _ in loader] == [5] * 8


def test_upsampling_factors_are_passes_and_num_samples_are_steps(train_data: str) -> None:
    data, _ = data_of(train_data, train_data_upsampling_factors="1::2")
    assert sorted(data.dataloader.last.source for _ in data.dataloader) == ["dark"] * 5 + ["light"] * 6
    data, _ = data_of(train_data, train_num_samples=24, accum_freq=2)
    drawn = [data.dataloader.last.source for _ in data.dataloader]
    assert len(drawn) == data.dataloader.num_batches == 6
    assert drawn[::2] == drawn[1::2]  # batches whose gradients are accumulated are of one source


def test_validation_gives_every_sample_that_has_a_caption_once(train_data: str) -> None:
    data, tokenizer = data_of(train_data, is_train=False)
    texts = [tokenizer.decode(row.numpy()) for _, tokens in data.dataloader for row in tokens]
    assert len(texts) == len(set(texts)) == 31


# Two by two, 4 + 2 batches of the 5 + 3 are left.
@pytest.mark.parametrize(("accumulated", "samples"), [(1, 32), (2, 24)])
def test_the_training_of_open_clip_runs_and_resumes(
    accumulated: int, samples: int, train_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from open_clip_train import data
    from open_clip_train.main import main

    from open_clip_data import get_equitar_data

    monkeypatch.setattr(data, "get_wds_dataset", get_equitar_data)
    run = ["--train-data", train_data, "--dataset-type", "webdataset", "--batch-size", "4", "--workers", "0"]
    run += ["--model", "tiny", "--precision", "fp32", "--logs", str(tmp_path), "--name", "run", "--warmup", "1"]
    run += ["--log-every-n-steps", "1", "--accum-freq", str(accumulated)]
    main([*run, "--epochs", "1"])
    main([*run, "--epochs", "2", "--resume", "latest"])
    log = (tmp_path / "run" / "out.log").read_text()
    # A set: the second `main` of a process logs every line twice.
    steps = set(re.findall(rf"Train Epoch: (\d) \[ *(\d+)/{samples} .*Contrastive_loss: ([\d.]+)", log))
    each = 4 * accumulated
    assert sorted((int(epoch), int(done)) for epoch, done, _ in steps) == [
        (epoch, done) for epoch in (0, 1) for done in range(each, samples + 1, each)
    ]
    assert all(0 < float(loss) < 10 for *_, loss in steps)
