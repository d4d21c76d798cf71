"""Small shards with labels, and what their sidecars say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equitar.sidecars.sidecar import Sidecar, read_sidecar
from equitar.storage.listing import sidecar_path
from helpers.odd_tars import END, member

Fields = Mapping[str, bytes]


def tar(samples: Mapping[str, Fields]) -> bytes:
    files = ((f"{key}.{field}", raw) for key, fields in samples.items() for field, raw in fields.items())
    return b"".join(member(name, raw) for name, raw in files) + END


def shard(path: Path, labels: Sequence[str | None], *, field: str = "cls") -> None:
    """Write a shard with a sample for each label; None is a sample without the member."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = {"jpg": b"image " * 100}
    samples = {
        f"{path.stem}-{row}": image if label is None else {**image, field: label.encode()}
        for row, label in enumerate(labels)
    }
    path.write_bytes(tar(samples))


def sidecar_of(path: Path) -> Sidecar:
    return read_sidecar(sidecar_path(str(path)), fix="")


def rows(sidecar: Sidecar) -> list[list[int]]:
    assert sidecar.presence is not None
    return [sidecar.presence.labels(row).tolist() for row in range(sidecar.num_rows)]


def named_rows(sidecar: Sidecar) -> list[list[str]]:
    assert sidecar.class_names is not None
    name_of = dict(zip(*sidecar.class_names, strict=True))
    return [[name_of[class_id] for class_id in row] for row in rows(sidecar)]
