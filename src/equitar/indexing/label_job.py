"""`LabelJob`: how labels are made for all shards, and how that travels to the processes that read them.

A table of labels may be larger than everything else in a task, so a job is written once, into a file that every reader can
open: a temporary one for processes here, one beside the sidecars for those on other machines, which must reach that folder
anyway. A task contains the name of the file and the digest of its bytes; nothing else is unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from equitar.errors import LabelError, StorageError
from equitar.label_spec import LabelSpec
from equitar.labels.extractors import Extractor, Missing, labels_from_spec
from equitar.labels.tables import LabelTable, Vocabulary, read_classes, read_labels
from equitar.sidecars.sidecar import ClassNames
from equitar.sources import StorageOptions
from equitar.storage.files import read_bytes, write_bytes_atomically
from equitar.urls import join, shown

Known: TypeAlias = tuple[LabelSpec, ClassNames | None]  # how labels were made before, and their class names


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelJob:
    """How labels are made, for all shards."""

    spec: LabelSpec = field(default_factory=LabelSpec)
    extract: Extractor | None = None  # reads labels in the shard
    table: LabelTable | None = None  # labels by key, if they are not in the shard
    vocabulary: Vocabulary | None = None  # the classes, if they are known in advance
    keeps: bool = False  # whether shards keep the labels they have: no others were asked for
    known: Mapping[str, Known] = field(default_factory=dict)  # by source, for shards that are new
    force: bool = False  # whether sidecars that are up to date are made again
    regroup: bool = False  # whether members of one sample may lie apart in a shard

    def repeating(self, spec: LabelSpec, class_names: ClassNames | None) -> LabelJob:
        """Return the job that makes labels as they were made before; those from a table can only be kept, key by key.

        Raises:
            LabelError: If they need a vocabulary that is not known any more.
        """
        if spec.table_digest or not spec.labels:
            return replace(self, spec=spec)
        vocabulary = Vocabulary(*class_names) if spec.classes_digest and class_names else None
        if spec.classes_digest != (vocabulary.digest if vocabulary else ""):
            raise LabelError(
                f"labels were made by {spec.labels!r} with a vocabulary that is not known any more; pass `--classes` again"
            )
        extract = labels_from_spec(spec.labels, missing=spec.missing)
        return replace(self, spec=spec, extract=extract, vocabulary=vocabulary)


def label_job_of(
    labels: str | Literal[False] | None,
    labels_from: str | LabelTable | None,
    classes: str | Sequence[str] | Vocabulary | None,
    *,
    options: StorageOptions,
    missing: Missing,
    crowd: bool,
    force: bool,
    regroup: bool,
) -> LabelJob:
    """Return the job for these arguments of `equitar.index`, with their files read."""
    if labels is not None and labels_from is not None:
        raise ValueError(f"give `labels` or `labels_from`, not both; got {labels!r} and {labels_from!r:.80}")
    if not crowd and not isinstance(labels_from, str):
        raise ValueError(
            "`crowd=False` (`--without-crowd`) needs `labels_from` (`--labels-from`), a file of annotations"
        )
    if classes is not None and isinstance(labels_from, LabelTable):
        raise ValueError(f"pass `classes` to `read_labels`; got {classes!r:.80} with a table that is already read")
    vocabulary = read_classes(classes, storage_options=options) if isinstance(classes, str) else classes
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary(ids=tuple(range(len(vocabulary))), names=tuple(vocabulary))
    table = labels_from if not isinstance(labels_from, str) else None
    if isinstance(labels_from, str):
        table = read_labels(labels_from, classes=vocabulary, crowd=crowd, storage_options=options)
    job = LabelJob(force=force, regroup=regroup, keeps=labels is None and table is None)
    if not labels and table is None:
        return job
    spec = LabelSpec(
        labels=labels or (table.path.rpartition("/")[2] if table else ""),
        table_digest=table.digest if table else "",
        missing=missing,
        classes_digest=vocabulary.digest if vocabulary else "",
    )
    extract = labels_from_spec(labels, missing=missing) if labels else None
    return replace(job, spec=spec, extract=extract, table=table, vocabulary=vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledJob:
    """Where a label job is written."""

    url: str
    digest: str  # of its bytes, in hex digits
    options: Mapping[str, Any] | None = field(repr=False, compare=False)  # for fsspec


def spool(job: LabelJob, folder: str, options: StorageOptions) -> SpooledJob:
    """Write a job into a folder, or below a URL, for those who read shards."""
    raw = pickle.dumps(job)
    digest = _digest(raw)
    url = join(folder, f".equitar-{digest}.recipe")
    write_bytes_atomically(url, raw, options)
    return SpooledJob(url=url, digest=digest, options=options)


@lru_cache(maxsize=1)
def read_spooled(where: SpooledJob) -> LabelJob:
    """Return a job that was written; each process reads it once.

    Raises:
        StorageError: If it is missing or changed.
    """
    try:
        raw = read_bytes(where.url, where.options)
    except FileNotFoundError as error:
        raise StorageError(
            f"{shown(where.url)} is missing where shards are read; other machines must reach the folder of the sidecars by the "
            "same path: set `sidecars` to a shared folder"
        ) from error
    if _digest(raw) != where.digest:
        raise StorageError(f"{shown(where.url)} is not the file that this run wrote; let no other run remove it")
    job: LabelJob = pickle.loads(raw)  # noqa: S301 - the very bytes that the caller wrote
    return job


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
