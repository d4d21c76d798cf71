"""Does an image, or a caption, give away which source it comes from? A cross-validated linear probe that tries to name it.

Batches of one source can only help where both do: then a model can rule out most of a mixed batch by source alone, without
looking at what is in the picture. Run the probe before you decide; it takes seconds. scikit-learn is the extra ``probe``.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equitar.errors import SourceError
from equitar.reading.reader import Reader, open_shards
from equitar.sidecars.catalog import Catalog, catalog_of
from equitar.sidecars.selection import selection_of
from equitar.sidecars.store import Sidecars
from equitar.sources import Source, listed_sources
from equitar.text import table
from equitar.urls import shown

if TYPE_CHECKING:
    from equitar.loading.batches import Batches

_CLEARLY, _HARDLY = 0.8, 0.2  # of the way from chance to always right
_REPEATED = 0.5  # share of distinct captions below which they are said to repeat
_SHARDS = 64  # of a source that captions are read from: each costs a sidecar
_WORDS = 5  # shown for each source
_VOCABULARY = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProbe:
    """How well a linear probe names the source of samples that it was not fitted on.

    Attributes:
        samples: Samples that it named.
        sources: The sources, by name.
        recall: Share of the samples of each source for which it named that source, (sources,).
        words: The words of each source that are most frequent there compared with the others, (sources,); empty unless these
            are captions.
        distinct: Share of the captions that differ from all others; None unless these are captions.
    """

    samples: int
    sources: tuple[str, ...]
    recall: tuple[float, ...]
    words: tuple[tuple[str, ...], ...] = ()
    distinct: float | None = None

    @property
    def accuracy(self) -> float:
        """Mean recall of the sources: a large source counts no more than a small one (balanced accuracy)."""
        return sum(self.recall) / len(self.recall)

    @property
    def chance(self) -> float:
        """Accuracy of guessing."""
        return 1 / len(self.sources)

    @property
    def gives_away(self) -> str:
        """How far the source is given away: "clearly", "partly" or "hardly"."""
        gain = (self.accuracy - self.chance) / (1 - self.chance)
        return "clearly" if gain >= _CLEARLY else "partly" if gain > _HARDLY else "hardly"

    def __str__(self) -> str:
        """Return a table of the sources, and a sentence."""
        words = [", ".join(of_source) for of_source in self.words]
        width = max(map(len, words), default=0)
        rows = [("source", "recall", *(["words".ljust(width)] if words else []))]
        for place, (name, recall) in enumerate(zip(self.sources, self.recall, strict=True)):
            rows.append((name, f"{recall:.1%}", *([words[place].ljust(width)] if words else [])))
        lines = [line.rstrip() for line in table(rows).splitlines()]
        expected = {
            "clearly": ": batches of one source can help, if image and caption both do",
            "partly": ": batches of one source help little, if at all",
            "hardly": ": expect nothing from batches of one source",
        }
        sentence = (
            f"probe    {self.accuracy:.1%} of {self.samples:,} samples get the right source (chance {self.chance:.1%})\n"
            f"source   {self.gives_away} given away{expected[self.gives_away]}"
        )
        lines.append(sentence)
        if self.distinct is not None and self.distinct < _REPEATED:
            distinct = f"{self.distinct:.1%} of the captions are distinct"
            lines.append(f"note     {distinct}: equal ones in a batch count as wrong answers")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        words = self.words or (None,) * len(self.sources)
        sources = zip(self.sources, self.recall, words, strict=True)
        return {
            "samples": self.samples,
            "accuracy": self.accuracy,
            "chance": self.chance,
            "gives_away": self.gives_away,
            "distinct": self.distinct,
            "sources": [
                {"name": name, "recall": recall, "words": each and list(each)} for name, recall, each in sources
            ],
        }

    def with_captions(self, captions: SourceProbe) -> str:
        """Return what to expect of batches of one source, in words, where this is the probe of the images.

        Args:
            captions: The probe of the captions of the same sources.

        Raises:
            ValueError: If it is of other sources.
        """
        if captions.sources != self.sources:
            raise ValueError(
                f"`captions` must be a probe of the same sources; got {', '.join(captions.sources)} "
                f"for images of {', '.join(self.sources)}"
            )
        level = {"images": self.gives_away, "captions": captions.gives_away}
        weaker = [name for name in level if level[name] != "clearly"]
        hardly = [name for name in level if level[name] == "hardly"]
        if not weaker:
            return (
                "Images and captions both give the source away: `equitar.debiased` can help, "
                "if a batch is small against the number of pairs."
            )
        if hardly:
            subject = "Neither images nor captions give" if len(hardly) == 2 else f"The {hardly[0]} do not give"
            return f"{subject} the source away: expect nothing from `equitar.debiased`; `equitar.mixed` is the usual choice."
        return (
            f"The {' and the '.join(weaker)} give the source away only in part: `equitar.debiased` helps little, if at all; "
            "train with both for a few seeds before you decide."
        )


def source_probe(embeddings: Any, sources: Iterable[object], *, folds: int = 5, seed: int = 0) -> SourceProbe:
    """Return how well a linear probe tells the source of samples from their embeddings.

    A logistic regression is fitted on all folds but one, and names the sources of that one. A thousand samples of each source
    are enough. The embeddings may come from any encoder; pixels of small pictures, flattened, will do too.

    Args:
        embeddings: A row for each sample, (samples, dimensions): an array, a tensor on the CPU, or a sparse matrix.
        sources: Name of the source of each sample.
        folds: Parts of the cross-validation, at least 2; every source must have as many samples.
        seed: Draws the folds.

    Raises:
        ValueError: If there are not at least two sources, or the rows are not finite numbers, one for each sample.
        RuntimeError: If scikit-learn is not installed.

    >>> pixels = np.array([[0.0], [0.1], [0.2], [0.9], [1.0], [1.1]])
    >>> probe = source_probe(pixels, ["dark"] * 3 + ["light"] * 3, folds=3)
    >>> probe.accuracy, probe.chance, probe.gives_away
    (1.0, 0.5, 'clearly')
    """
    require_sklearn()
    from scipy.sparse import issparse  # noqa: PLC0415  (an extra, and slow)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (as above)
    from sklearn.model_selection import StratifiedKFold, cross_val_predict  # noqa: PLC0415  (as above)
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415  (as above)
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler  # noqa: PLC0415  (as above)

    rows = embeddings.tocsr() if issparse(embeddings) else np.asarray(embeddings, np.float64)
    names = [str(name) for name in sources]
    _check(rows, names, folds)
    # A sparse matrix would be dense once its mean is subtracted.
    scaler = MaxAbsScaler() if issparse(rows) else StandardScaler()
    probe = make_pipeline(scaler, LogisticRegression(max_iter=2000, class_weight="balanced"))
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    labels = np.array(names)
    is_right = cross_val_predict(probe, rows, labels, cv=split) == labels
    ordered = sorted(set(names))
    recall = tuple(float(is_right[labels == name].mean()) for name in ordered)
    return SourceProbe(samples=len(names), sources=tuple(ordered), recall=recall)


def _check(rows: Any, names: Sequence[str], folds: int) -> None:
    if rows.ndim != 2 or rows.shape[0] != len(names) or not rows.shape[1]:
        raise ValueError(f"`embeddings` must have a row for each of {len(names)} `sources`; got shape {rows.shape}")
    finite = np.isfinite(rows.data if hasattr(rows, "tocsr") else rows)
    if not finite.all():
        raise ValueError(f"`embeddings` must be finite numbers; got {int((~finite).sum())} that are not")
    if folds < 2:
        raise ValueError(f"`folds` must be >= 2; got {folds}")
    sizes = Counter(names)
    if len(sizes) < 2:
        raise ValueError(f"`sources` must name at least two sources; got {', '.join(sizes) or 'none'}")
    smallest = min(sizes, key=lambda name: sizes[name])
    if sizes[smallest] < folds:
        raise ValueError(
            f"`sources` must have at least {folds} samples of each, one for each fold; "
            f"got {sizes[smallest]} for {smallest!r}; give more, or leave it out"
        )


def caption_probe(
    sources: Source | Sequence[Source] | Batches, *, field: str = "txt", samples: int = 1000, seed: int = 0
) -> SourceProbe:
    """Return how well the words of captions alone tell the source: a linear probe on a bag of words.

    A random sample of each source is read through its index; of a source of many shards, from 64 of them.

    Args:
        sources: Indexed sources, or what `debiased` or `mixed` returned.
        field: Member of the samples that is the caption, UTF-8 text.
        samples: Captions that are read of each source, at most.
        seed: Draws these, and the folds.

    Raises:
        SourceError: If a sample has no such member, or it is not text.
        ValueError: If there are not at least two sources with some samples each.
        RuntimeError: If scikit-learn is not installed.
    """
    require_sklearn()
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415  (an extra, and slow)

    if samples < 1:
        raise ValueError(f"`samples` must be >= 1; got {samples}")
    if isinstance(sources, Source | Sequence):
        catalog = catalog_of(listed_sources(sources))
    else:
        from equitar.loading.batches import execution_of  # noqa: PLC0415  (torch, which sources alone do not need)

        catalog = execution_of(sources).request.resolved.catalog
    captions, names = _captions(catalog, field.lower(), samples, np.random.default_rng(seed))
    # Captions as they are: no list of stop words, since "of" may be what gives a source away.
    bag = CountVectorizer(binary=True, token_pattern=r"(?u)\b\w+\b", max_features=_VOCABULARY)  # noqa: S106  (not a password)
    try:
        counts = bag.fit_transform(captions).astype(np.float64)
    except ValueError as error:  # scikit-learn: empty vocabulary
        raise SourceError(f"captions must have words; got {len(captions)} without any in field {field!r}") from error
    probe = source_probe(counts, names, seed=seed)
    distinct = sum(times == 1 for times in Counter(captions).values()) / len(captions)
    words = _telling_words(counts, np.array(names), probe.sources, bag.get_feature_names_out().tolist())
    return replace(probe, words=words, distinct=distinct)


def _captions(catalog: Catalog, field: str, samples: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Return captions, and the source of each."""
    captions: list[str] = []
    names: list[str] = []
    for source, sidecars in zip(catalog.sources, catalog.sidecars, strict=True):
        reader = Reader(sidecars, open_shards(), fields=(field,), copy=True)
        try:
            for shard, row in _drawn(sidecars, samples, rng):
                sample = reader.read(shard, row)
                captions.append(_text(sample, field, shown(sidecars.shards.urls[shard])))
                names.append(source.name)
        finally:
            reader.close()
    return captions, names


def _drawn(sidecars: Sidecars, samples: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return shard and row of a random sample of those rows of a source that its `keep` keeps, in order."""
    selection = selection_of(sidecars.source)
    shards, rows = [], []
    for shard in rng.permutation(len(sidecars.shards))[:_SHARDS].tolist():
        sidecar = sidecars(shard)
        path = sidecars.shards.paths[shard]
        kept = np.flatnonzero(np.ones(sidecar.num_rows) if selection is None else selection(path, sidecar) > 0)
        shards.append(np.full(len(kept), shard))
        rows.append(kept)
    places = np.stack([np.concatenate(shards), np.concatenate(rows)], axis=1)
    drawn = rng.permutation(places)[:samples].tolist()
    return sorted((shard, row) for shard, row in drawn)


def _text(sample: dict[str, Any], field: str, url: str) -> str:
    where = f"key {sample['__key__']!r} of {url}"
    if field not in sample:
        raise SourceError(f"a caption must be in field {field!r}, which is missing for {where}; name another field")
    try:
        text: str = sample[field].decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"a caption must be UTF-8 text; got other bytes in {field!r} for {where}") from error
    return text.strip()


def _telling_words(
    counts: Any, names: np.ndarray[Any, Any], sources: Sequence[str], vocabulary: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the words of each source that most more of its captions have than of the captions of all others."""
    result = []
    for source in sources:
        is_own = names == source
        more = np.asarray(counts[is_own].mean(axis=0) - counts[~is_own].mean(axis=0)).ravel()
        best = np.argsort(-more, kind="stable")[:_WORDS]
        result.append(tuple(vocabulary[place] for place in best.tolist() if more[place] > 0))
    return tuple(result)


def require_sklearn() -> None:
    """Raise RuntimeError with what to install if scikit-learn is missing."""
    if importlib.util.find_spec("sklearn") is None:
        raise RuntimeError("a probe needs scikit-learn, which is not installed; run `pip install 'equitar[probe]'`")
