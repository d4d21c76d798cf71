"""Does a reader written from the text of the format read what equitar writes, and does the page show that text?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import webdataset as wds

import equitar
from helpers.pages import DOCS
from read_sidecar import digest_of, read_sidecar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    boxes = {"boxes": [{"id": 17}, {"id": 18}, {"id": 18}]}
    with wds.TarWriter(str(tmp_path / "pets-0.tar"), mtime=0) as tar:
        tar.write({"__key__": "first", "txt": "a cat and two dogs", "json": boxes})
        tar.write({"__key__": "zweite-Ä", "txt": "nobody here", "json": {"boxes": []}})
    source = equitar.Source("pets", str(tmp_path / "pets-*.tar"))
    equitar.index(source, labels="json:boxes[].id", progress=False, jobs=1)
    return tmp_path


def test_the_reader_of_the_examples_reads_keys_members_and_labels(folder: Path) -> None:
    meta, samples = read_sidecar(str(folder / "pets-0.presence.npz"))
    assert meta == {
        "class_ids": None,
        "class_names": None,
        "digest": "fa4afa500f4213871104ae5d30a53752",
        "fields": ["json", "txt"],
        "format": "equitar sidecar",
        "label_spec": "json:boxes[].id",
        "shard_size": 10240,
        "sliceable": True,
        "version": 1,
    }
    assert samples == [
        {"key": b"first", "members": [("json", 512, 47), ("txt", 1536, 18)], "labels": {17: 1, 18: 2}},
        {"key": "zweite-Ä".encode(), "members": [("json", 3584, 13), ("txt", 5632, 11)], "labels": {}},
    ]


def test_the_name_of_a_summary_has_the_digest_of_its_arrays(folder: Path) -> None:
    (path,) = folder.glob("pets.*.summary.npz")
    arrays = np.load(path, allow_pickle=False)
    digest = digest_of([arrays[name].astype(np.int64) for name in arrays.files])
    assert path.name == f"pets.{digest[:16]}.summary.npz"


def test_the_page_shows_the_text_of_both_formats() -> None:
    lines = (DOCS / "sidecar-format.md").read_text(encoding="utf-8").splitlines()
    assert {"::: equitar.sidecars.sidecar", "::: equitar.sidecars.summary"} <= {*lines}
