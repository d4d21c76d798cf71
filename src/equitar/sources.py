"""`Source`: a named set of tar shards and its options; with `Split`, `Retries`, `Cache`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from equitar.display import clipped
from equitar.errors import SourceError
from equitar.label_spec import LabelSpec
from equitar.rng import Purpose, draws, fold, text_id
from equitar.urls import shown

if TYPE_CHECKING:
    from equitar.arrays import UInt64

Sample: TypeAlias = dict[str, Any]
Stage: TypeAlias = Callable[[Iterable[Any]], Iterable[Any]]
StorageOptions: TypeAlias = Mapping[str, Any] | None
_SHOWN_URLS = 2
_SHOWN_CHARACTERS = 100  # of each
_SUMMARY = re.compile(r"(?P<stem>.*)\.summary\.(?P<kind>json|npz)(?:\?.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Split:
    """Keeps the `part`-th of `parts` disjoint parts of a source, by a hash of the key.

    A key stays in its part whatever is added to the source, moved or shuffled, and whatever the name of the source: the parts of
    one set of shards under two names, such as "train" and "val", do not overlap.
    """

    part: int
    parts: int

    def __post_init__(self) -> None:
        for name, value in (("part", self.part), ("parts", self.parts)):  # a fraction of a part would keep no row
            if type(value) is not int:
                raise ValueError(f"`{name}` must be an integer; got {value!r}")
        if not 0 <= self.part < self.parts:
            raise ValueError(f"`part` must be in [0, {self.parts}); got {self.part}")

    def __call__(self, keys: Sequence[str]) -> Iterator[bool]:
        """Yield for each key whether it is in this part."""
        hashes: UInt64 = draws(fold(Purpose.SPLIT), [text_id(key) for key in keys])
        return (int(value) % self.parts == self.part for value in hashes)


def split(part: int, parts: int) -> Split:
    """Return the selection of the `part`-th of `parts` disjoint parts of a source.

    Args:
        part: Which part, in [0, parts).
        parts: How many parts there are, >= 1.

    >>> train, val = split(0, 2), split(1, 2)
    >>> keys = ["a", "b", "c", "d"]
    >>> [in_train != in_val for in_train, in_val in zip(train(keys), val(keys))]
    [True, True, True, True]
    """
    return Split(part, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How requests to a store, and ``pipe:`` commands, are retried when they fail.

    Attributes:
        patience: Seconds from the first failure of a request on, in which it is retried.
        first_wait: Seconds before the second request; doubled before each further one, up to `longest_wait`.
        longest_wait: Maximum seconds between two requests, unless a server asks for more by ``Retry-After``.
        stall: Seconds without a byte after which a request is given up.
        recheck: Seconds between checks whether a shard is unchanged, for stores whose responses do not tell.
    """

    patience: float = 300.0
    first_wait: float = 0.25
    longest_wait: float = 8.0
    stall: float = 30.0
    recheck: float = 1.0

    def __post_init__(self) -> None:
        for name in ("patience", "first_wait", "longest_wait", "recheck"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"`{name}` must be >= 0 seconds; got {getattr(self, name)}")
        if not self.stall > 0:
            raise ValueError(f"`stall` must be > 0 seconds; got {self.stall}")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder that keeps copies of shards: one download of each for all processes of a node.

    Attributes:
        directory: The folder; created if needed, and shared by any number of processes and sources.
        max_bytes: Maximum size in bytes; the least recently used copies are removed first.
    """

    directory: str
    max_bytes: int = 100 * 10**9

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"`max_bytes` must be >= 1; got {self.max_bytes} for the cache {self.directory!r}")


_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("name", str, "a text"),
    ("urls", str | Sequence, "a text or a list of texts, such as str(path)"),
    ("root", str | None, "a text, such as str(path)"),
    ("sidecars", str | None, "a text, such as str(path)"),
    (
        "keep",
        str | float | int | Split | Callable | None,
        "'FILE' of keys, '!FILE', a share, split(i, k) or a function",
    ),
    ("storage_options", Mapping | None, "a dict"),
    ("cache", str | Cache | None, "equitar.Cache(...) or the name of a folder"),
    ("retries", Retries, "equitar.Retries(...)"),
)


@dataclass(frozen=True, slots=True, repr=False)
class Source:
    """A named set of shards from which samples are drawn.

    Attributes:
        name: Identifies the source in plans, weights, states and batches.
        urls: A brace pattern, a glob, ``@FILE`` with one URL per line or a list of another tool (wids, open_clip, open_lm,
            Energon), or a sequence of these. Or a summary that `index` wrote, for the shards that were indexed:
            ``NAME.summary.json`` is the newest, ``NAME.DIGEST.summary.npz`` always the same.
        root: Folder to which the paths of its shards are relative (default: their deepest common folder, or the folder of the
            summary). These paths identify the shards, so a source copied elsewhere gives the same plan.
        sidecars: Folder of the sidecars, mirroring the paths below `root` (default: beside each shard, or where the summary is).
        keep: Selects rows: the name of a file of keys (``!FILE`` excludes them), `split(i, k)`, a share in (0, 1], or a
            function of a shard's sidecar that returns a number >= 0 for each row; 0 excludes the row.
        stages: Per-sample stages of this source, run before those of the builder.
        storage_options: Options for fsspec. They are never shown or stored.
        cache: Keeps copies of remote, compressed and piped shards: a `Cache`, or its folder.
        retries: How requests to a remote store are retried.
    """

    name: str
    urls: str | Sequence[str]
    root: str | None = None
    sidecars: str | None = None
    keep: str | float | Split | Callable[[Any], Any] | None = None
    stages: Sequence[Stage] = ()
    storage_options: Mapping[str, Any] | None = None
    cache: Cache | str | None = None
    retries: Retries = Retries()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"`name` of a source must not be empty; got {self.name!r} for {self.urls!r}")
        if not self.urls:
            raise ValueError(f"`urls` must name at least one shard; got {self.urls!r} for source {self.name!r}")
        for name, kinds, wanted in _KINDS:
            self._check_kind(name, getattr(self, name), kinds, wanted)
        for url in self._patterns:
            self._check_kind("urls", url, str, "texts, such as str(path)")
        if isinstance(self.keep, float | int) and not 0 < self.keep <= 1:
            raise ValueError(f"`keep` must be a share in (0, 1]; got {self.keep!r} for source {self.name!r}")
        if self.summary is None and (named := next((url for url in self._patterns if _SUMMARY.fullmatch(url)), None)):
            raise SourceError(
                f"a summary covers all shards of its source; got {shown(named)} together with {len(self._patterns) - 1} more `urls` of "
                f"{self.name!r}; pass it alone, and make another source of the others"
            )

    def _check_kind(self, argument: str, value: object, kinds: Any, wanted: str) -> None:
        if not isinstance(value, kinds):  # the value itself may be secret
            raise TypeError(f"`{argument}` must be {wanted}; got a {type(value).__name__} for source {self.name!r}")

    @property
    def summary(self) -> str | None:
        """The URL of the summary that `urls` is; None if `urls` lists shards."""
        only = self._patterns[0] if len(self._patterns) == 1 else ""
        return only if _SUMMARY.fullmatch(only) else None

    @property
    def _patterns(self) -> Sequence[str]:
        return [self.urls] if isinstance(self.urls, str) else self.urls

    def __repr__(self) -> str:
        """Show where the shards are, without what may be secret."""
        patterns = [repr(clipped(shown(url), _SHOWN_CHARACTERS)) for url in self._patterns[:_SHOWN_URLS]]
        rest = len(self._patterns) - _SHOWN_URLS
        urls = ", ".join(patterns) + (f" and {rest:,} more" if rest > 0 else "")
        words = [repr(self.name), urls if isinstance(self.urls, str) else f"[{urls}]"]
        words += [
            f"{name}={clipped(shown(value), _SHOWN_CHARACTERS)!r}"
            for name in ("root", "sidecars")
            if (value := getattr(self, name))
        ]
        words += [clipped(f"keep={self.keep!r}", _SHOWN_CHARACTERS)] if self.keep is not None else []
        return f"Source({', '.join(words)})"

    def index_command(self, *, label_spec: str = "") -> str:
        r"""Return the advice to index this source, for errors.

        Args:
            label_spec: How its labels were made, as its sidecars record it.

        >>> Source("cc3m", "/data/cc3m-{000000..000331}.tar").index_command()
        "run `equitar index 'cc3m=/data/cc3m-{000000..000331}.tar'`"
        >>> Source("a", "a.tar").index_command(label_spec="labels.tsv\nfrom=0123\nmissing=empty")
        'run `equitar index a=a.tar --labels-from labels.tsv --missing empty`'
        """
        urls = list(self._patterns)
        words = ["equitar", "index", *(f"{self.name}={shown(url)}" for url in urls[:3])]
        words += ["--root", shown(self.root)] if self.root else []
        words += ["--sidecars", shown(self.sidecars)] if self.sidecars else []
        words += LabelSpec.parse(label_spec).options
        more = f" (and {len(urls) - 3} more patterns)" if len(urls) > 3 else ""
        return f"run `{shlex.join(words)}`{more}"


def name_in_summary(url: str) -> str:
    """Return the name of the source whose summary a URL is; nothing if it is none.

    >>> name_in_summary("s3://bucket/cc3m.summary.json"), name_in_summary("my%20set.0123456789abcdef.summary.npz")
    ('cc3m', 'my set')
    >>> name_in_summary("cc3m.tar")
    ''
    """
    named = _SUMMARY.fullmatch(url)
    if named is None:
        return ""
    stem = named["stem"].rpartition("/")[2]
    return unquote(stem.rpartition(".")[0] if named["kind"] == "npz" else stem)


def listed_sources(sources: Source | Iterable[Source]) -> tuple[Source, ...]:
    """Return the sources of an argument that takes one or several, in order.

    Raises:
        SourceError: If it holds anything else, or two of one name.
    """
    if isinstance(sources, str | Mapping) or not isinstance(sources, Source | Iterable):
        raise SourceError(f"`sources` must be a list of equitar.Source; got {sources!r:.80}")
    listed = (sources,) if isinstance(sources, Source) else tuple(sources)
    for source in listed:
        if not isinstance(source, Source):
            raise SourceError(f"`sources` must be a list of equitar.Source; got {source!r:.80} in it")
    names = [source.name for source in listed]
    duplicate = next((name for name in sorted(names) if names.count(name) > 1), None)
    if duplicate is not None:
        raise SourceError(
            f"names of sources must be unique; two are called {duplicate!r}; list all URLs of a source in one"
        )
    return listed
