"""Does the code in the README and in the API reference run? On small shards, with small numbers in place of real ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

import equitar
from helpers.shards import third, write_tars

CLASSES = ("person", "cat", "dog")
ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/api/stages.md",
    "docs/api/samplers.md",
)  # in this order: later blocks use names of earlier ones
SMALL = {"10_000": "4", "256": "4", "batch_size=64": "batch_size=4", "num_workers=4": "num_workers=2", "[...]": "[]"}


def test_every_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad_keys.txt").write_text("sbu-0003\n", encoding="utf-8")
    for name in ("cc3m", "sbu", "lvis", "coco"):
        write_tars(tmp_path, name, [30, 20], label=third)
        equitar.index(equitar.Source(name, f"{name}/*.tar"), labels="cls", classes=CLASSES, jobs=1, progress=False)
    namespace: dict[str, Any] = {
        "wds": wds,
        **{name: equitar.Source(name, f"{name}/*.tar") for name in ("lvis", "coco")},
        "coco_val": equitar.Source("coco", "coco/*.tar"),
        "urls": ["lvis/000.tar", "lvis/001.tar"],
        "label_sets": [[number % 3] for number in range(50)],
    }
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        code = re.sub(r"/data/(\w+)-\{0+\.\.\d+\}\.tar", r"\1/*.tar", block)
        for number, small in SMALL.items():
            code = code.replace(number, small)
        if "Sampler" in code:  # there the same names are datasets with indices
            namespace.update({name: range(50) for name in ("cc3m", "sbu", "lvis")})
            namespace["any_sampler"] = namespace["any_sampler"] if "any_sampler" in namespace else _sampler()
        exec(compile(code, "a block", "exec"), namespace)
    for name in ("samples", "batched", "both", "val"):
        assert next(iter(namespace[name]))["__key__"]


def _sampler() -> object:
    from torch.utils.data import RandomSampler

    return RandomSampler(range(50))
