"""`LabelSpec`: how the labels of a shard were made, as its sidecar records it.

As text it is a line with a spec (``cls``, ``json:PATH``, ...) or the name of a file of labels, followed by these lines, each
only where it applies: ``from=DIGEST`` of that file, ``missing=empty``, ``classes=DIGEST`` of the vocabulary. Without labels it
is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSpec:
    r"""How labels were made.

    >>> spec = LabelSpec.parse("labels.tsv\nfrom=0123\nmissing=empty")
    >>> spec.table_digest, spec.missing, str(spec)
    ('0123', 'empty', 'labels.tsv\nfrom=0123\nmissing=empty')
    >>> spec.options
    ['--labels-from', 'labels.tsv', '--missing', 'empty']
    """

    labels: str = ""  # where labels are in the shard, or the name of their file; empty without labels
    table_digest: str = ""  # of the file, if labels come from one
    missing: Literal["error", "empty"] = "error"
    classes_digest: str = ""  # of the vocabulary, if one was given

    @staticmethod
    def parse(text: str) -> LabelSpec:
        """Return the spec that a sidecar records."""
        labels, *lines = text.split("\n")
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        return LabelSpec(
            labels=labels,
            table_digest=values.get("from", ""),
            missing="empty" if values.get("missing") == "empty" else "error",
            classes_digest=values.get("classes", ""),
        )

    def __str__(self) -> str:
        values = {
            "from": self.table_digest,
            "missing": "" if self.missing == "error" else self.missing,
            "classes": self.classes_digest,
        }
        lines = [self.labels, *(f"{name}={value}" for name, value in values.items() if value)]
        return "\n".join(lines) if self.labels else ""

    @property
    def options(self) -> list[str]:
        """The options of ``equitar index`` that make such labels."""
        if not self.labels:
            return []
        options = ["--labels-from" if self.table_digest else "--labels", self.labels]
        options += ["--missing", "empty"] if self.missing == "empty" else []
        return options + (["--classes", "FILE"] if self.classes_digest else [])
