"""Which row is a sample that another reader made? Source, shard and row, by ``__url__`` and ``__key__``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equitar.catalog import Catalog, catalog_of
from equitar.errors import StageError
from equitar.redact import shown
from equitar.sources import Source
from equitar.storage import place_of


class Lookup:
    """Finds source, shard and row of samples by ``__url__`` and ``__key__``."""

    def __init__(self, sources: Sequence[Source], stage: str) -> None:
        self._sources, self._stage = sources, stage
        self._catalog: Catalog | None = None
        self._shards: dict[str, tuple[int, int]] = {}
        # Of the latest shard: a stream goes through one after another.
        self._rows: tuple[str, dict[str, int]] = ("", {})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": ("", {})}

    @property
    def catalog(self) -> Catalog:
        """The sources, looked at when first needed."""
        if self._catalog is None:
            self._catalog = catalog_of(self._sources)
            for source, sidecars in enumerate(self._catalog.sidecars):
                for shard, url in enumerate(sidecars.shards.urls):
                    self._shards[place_of(url)] = (source, shard)
        return self._catalog

    def shard(self, sample: Any) -> tuple[int, int]:
        """Return source and shard of a sample."""
        _ = self.catalog
        url = self.needed(sample, "__url__")
        if url in self._shards:
            return self._shards[url]
        place = place_of(url)
        if place not in self._shards:
            names = ", ".join(source.name for source in self._sources)
            raise StageError(
                f"`{self._stage}` knows the shards of {names}, but a sample comes from {shown(url)}; give its source too"
            )
        self._shards[url] = self._shards[place]
        return self._shards[url]

    def row(self, sample: Any, source: int, shard: int) -> int:
        """Return the row of a sample."""
        url, key = self.needed(sample, "__url__"), self.needed(sample, "__key__")
        if self._rows[0] != url:
            keys = self.catalog.sidecars[source](shard).keys
            self._rows = url, {one: row for row, one in enumerate(keys)}
        if key not in self._rows[1]:
            raise StageError(
                f"`{self._stage}` finds no key {key!r} in the sidecar of {shown(url)}; run `equitar index` again"
            )
        return self._rows[1][key]

    def needed(self, sample: Any, name: str) -> str:
        """Return what a sample must have."""
        if not isinstance(sample, dict) or name not in sample:
            raise StageError(
                f"`{self._stage}` needs {name!r} in every sample; webdataset's `map` and `to_tuple` drop it, so put "
                f"`{self._stage}` before them"
            )
        found: str = sample[name]
        return found
