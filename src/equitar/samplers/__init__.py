"""The same plans for datasets with indices, as samplers; and the labels of such datasets, which are imported from here."""

from equitar.samplers.label_files import labels_from_file, labels_from_sidecars
from equitar.samplers.label_rows import LabelPresence, LabelRows

__all__ = ["LabelPresence", "LabelRows", "labels_from_file", "labels_from_sidecars"]
