"""Label rows from files: from sidecars, and from label files beside a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equitar.errors import LabelError, SidecarError
from equitar.labels.tables import Vocabulary, read_labels
from equitar.samplers.label_rows import ROWS_PER_BLOCK, LabelRows, collected
from equitar.sidecars.catalog import catalog_of
from equitar.sources import Source


def labels_from_sidecars(source: Source) -> LabelRows:
    """Return the labels of all samples of a source, shard after shard in the order of their paths; `keep` does not count.

    Raises:
        SidecarError: If the source was indexed without labels.
    """
    catalog = catalog_of([source])
    (sidecars,), (summary,) = catalog.sidecars, catalog.summaries
    if summary.label_counts is None:
        command = source.index_command(label_spec="cls")
        raise SidecarError(f"source {source.name!r} must have labels but was indexed without; {command}")
    names = None if summary.class_names is None else dict(zip(*summary.class_names, strict=True))
    return collected((sidecar.presence for sidecar in sidecars.all() if sidecar.presence is not None), names)


def labels_from_file(
    path: str, *, keys: Sequence[str] | None = None, classes: Sequence[str] | None = None, crowd: bool = True
) -> LabelRows:
    """Return the labels that a file gives: COCO or LVIS annotations, or a table of key and labels.

    Args:
        path: COCO or LVIS annotations, TSV, CSV, JSON lines or Parquet; local, or whatever fsspec opens.
        keys: The samples of the dataset in their order, as keys, base names or image ids; None is the order of the file.
        classes: Names of all classes by id; None is what the file says.
        crowd: Whether crowd annotations of COCO count as labels.

    Raises:
        LabelError: If the file is not as it must be, or a key has no row in it.
    """
    vocabulary = None if classes is None else Vocabulary(ids=tuple(range(len(classes))), names=tuple(classes))
    table = read_labels(path, classes=vocabulary, crowd=crowd)
    presence, known = table.presence, table.vocabulary
    rows = np.arange(presence.num_rows)
    if keys is not None:
        rows, rule = table.match(keys, where="`keys`")
        if (rows < 0).any():
            missing = keys[int(np.flatnonzero(rows < 0)[0])]
            raise LabelError(f"each of `keys` must have a row in {path}; key {missing!r} has none by its {rule}")

    parts = (presence.picked(rows[first : first + ROWS_PER_BLOCK]) for first in range(0, len(rows), ROWS_PER_BLOCK))
    return collected(parts, None if known is None else dict(zip(known.ids, known.names, strict=True)))
