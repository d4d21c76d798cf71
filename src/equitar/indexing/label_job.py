"""How are labels made, for all shards alike? What the caller said, read once, and how it travels to whoever reads shards.

A table of labels may be larger than all that tasks else say, so a recipe is written once, into a file that every reader
can open: a temporary one for processes here, one beside the sidecars for those on other machines, which must reach that place
anyway. A task names the file and the digest of its bytes; nothing else is unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from equitar.errors import StorageError
from equitar.labels.extractors import Extractor, Missing, labels_from_spec
from equitar.labels.tables import LabelTable, Vocabulary, read_classes, read_labels
from equitar.sources import StorageOptions
from equitar.storage.files import read_bytes, write_bytes_atomically
from equitar.urls import join, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelJob:
    """How labels are made, for all shards alike.

    Attributes:
        spec: What sidecars say of it: the spec or file of the labels, then lines of what else decides them.
        extract: Reads labels in the shard, if they are there.
        table: Labels by key, if they are elsewhere.
        vocabulary: The classes there are, if that is known beforehand.
        missing: Whether a sample without its label is an error.
        force: Whether to make sidecars that are there already.
        regroup: Whether members of one sample may lie apart in a shard.
    """

    spec: str
    extract: Extractor | None
    table: LabelTable | None
    vocabulary: Vocabulary | None
    missing: Missing
    force: bool
    regroup: bool


def recipe_of(
    labels: str | None,
    labels_from: str | LabelTable | None,
    classes: str | Sequence[str] | Vocabulary | None,
    *,
    options: StorageOptions,
    missing: Missing,
    force: bool,
    regroup: bool,
) -> LabelJob:
    """Return the recipe that the arguments of `equitar.index` stand for, with their files read."""
    if labels is not None and labels_from is not None:
        raise ValueError(f"`labels` or `labels_from` must be given; got both, {labels!r} and {labels_from!r:.80}")
    if classes is not None and isinstance(labels_from, LabelTable):
        raise ValueError(f"`classes` must be given to `read_labels`; got {classes!r:.80} with a table read before")
    vocabulary = read_classes(classes, storage_options=options) if isinstance(classes, str) else classes
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary(ids=tuple(range(len(vocabulary))), names=tuple(vocabulary))
    table = labels_from if not isinstance(labels_from, str) else None
    if isinstance(labels_from, str):
        table = read_labels(labels_from, classes=vocabulary, storage_options=options)
    extract = labels_from_spec(labels, missing=missing) if labels is not None else None
    lines = [labels] if labels is not None else []
    if table is not None:
        lines = [table.path.rpartition("/")[2], f"from={table.digest}"]
    if lines:
        lines += ["missing=empty"] if missing == "empty" else []
        lines += [f"classes={vocabulary.digest}"] if vocabulary else []
    return LabelJob(
        spec="\n".join(lines),
        extract=extract,
        table=table,
        vocabulary=vocabulary,
        missing=missing,
        force=force,
        regroup=regroup,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """Where a recipe is written.

    Attributes:
        url: The file.
        digest: Of its bytes, in hex digits.
        options: For fsspec.
    """

    url: str
    digest: str
    options: Mapping[str, Any] | None = field(repr=False, compare=False)


def spool(recipe: LabelJob, folder: str, options: StorageOptions) -> Spooled:
    """Write a recipe into a folder, or below a URL, for those who read shards."""
    raw = pickle.dumps(recipe)
    digest = _digest(raw)
    url = join(folder, f".equitar-{digest}.recipe")
    write_bytes_atomically(url, raw, options)
    return Spooled(url=url, digest=digest, options=options)


@lru_cache(maxsize=1)
def spooled(where: Spooled) -> LabelJob:
    """Return a recipe that was written, read once in each process.

    Raises:
        StorageError: If it is not there, or is another.
    """
    try:
        raw = read_bytes(where.url, where.options)
    except FileNotFoundError as error:
        raise StorageError(
            f"{shown(where.url)} is not to be found where shards are read; other machines must reach the folder of the "
            "sidecars by the same path: give `sidecars` one that they share"
        ) from error
    if _digest(raw) != where.digest:
        raise StorageError(f"{shown(where.url)} is not the recipe that this run wrote; let no other run remove it")
    recipe: LabelJob = pickle.loads(raw)  # noqa: S301 - the very bytes that the caller wrote
    return recipe


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
