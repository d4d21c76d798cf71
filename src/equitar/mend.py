"""What does a user do about it? The command that errors advise."""

from __future__ import annotations

import shlex

from equitar.redact import shown
from equitar.sources import Source


def index_command(source: Source, *, label_spec: str = "") -> str:
    r"""Return the command that indexes a source, as an advice.

    Args:
        source: The source.
        label_spec: How its labels were made, as its sidecars say it.

    >>> index_command(Source("cc3m", "/data/cc3m-{000000..000331}.tar"))
    "run `equitar index 'cc3m=/data/cc3m-{000000..000331}.tar'`"
    >>> index_command(Source("a", "a.tar"), label_spec="labels.tsv\nfrom=0123\nmissing=empty")
    'run `equitar index a=a.tar --labels-from labels.tsv --missing empty`'
    """
    urls = [source.urls] if isinstance(source.urls, str) else list(source.urls)
    words = ["equitar", "index", *(f"{source.name}={shown(url)}" for url in urls[:3])]
    words += ["--root", shown(source.root)] if source.root else []
    words += ["--sidecars", shown(source.sidecars)] if source.sidecars else []
    words += _label_words(label_spec)
    more = f" (and {len(urls) - 3} more patterns)" if len(urls) > 3 else ""
    return f"run `{shlex.join(words)}`{more}"


def _label_words(label_spec: str) -> list[str]:
    """Return the options that make labels as a sidecar says they were made."""
    spec, *more = label_spec.split("\n")
    if not spec:
        return []
    names = {line.partition("=")[0] for line in more}
    words = ["--labels-from" if "from" in names else "--labels", spec]
    words += ["--missing", "empty"] if "missing" in names else []
    return words + (["--classes", "FILE"] if "classes" in names else [])
