"""Damaged shards: an error, or, if the user asks for it, samples that are lost and counted.

A shard that does not match its sidecar (truncated, of another size, a command that failed half way) may still hold samples. They
are read only if the headers before their members match the sidecar: name, size and checksum. So a sample is either returned as
it was indexed, or it is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from equitar.errors import PlanError, ShardMismatchError, SourceError, StaleSidecarError, StorageError
from equitar.reading.prefetch import Wanted
from equitar.reading.reader import Reader, SampleReader
from equitar.sources import Sample

Handler: TypeAlias = Literal["skip_sample", "skip_shard"] | Callable[[Exception], bool] | None
DAMAGE = (SourceError, StaleSidecarError, ShardMismatchError, StorageError)
_STORE_FAILURES = 2  # in a row, after which a shard is given up: each took as long as retries may take


class SampleLostError(Exception):
    """A sample cannot be read, and the user's policy is to continue without it."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def checked_handler(handler: Handler) -> Handler:
    """Return a policy for damage.

    Raises:
        PlanError: If it is not one.
    """
    if handler not in (None, "skip_sample", "skip_shard") and not callable(handler):
        raise PlanError(
            f"`handler` must be None, 'skip_sample', 'skip_shard' or a function of an error; got {handler!r}"
        )
    return handler


class TolerantReader(SampleReader):
    """Reads samples of one source, and continues where some cannot be read."""

    def __init__(self, reader: Reader, handler: Handler) -> None:
        """Read by a reader.

        Args:
            reader: Reads the samples.
            handler: ``skip_sample`` loses what cannot be read, ``skip_shard`` all of its shard from then on; a function of the
                error returns True to lose what cannot be read. It is called once for each shard.
        """
        self.reader, self._handler, self.may_lose = reader, handler, True
        self._lost: set[int] = set()  # shards
        self._suspect: set[int] = set()  # shards of which only samples with the right headers are taken
        self._failures: dict[int, int] = {}

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the remote ranges that a sample will be read by."""
        return self.reader.wanted(shard, row)

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample.

        Raises:
            SampleLostError: If it is lost.
        """
        if shard in self._lost:
            raise SampleLostError(self.reader.key_of(shard, row))
        try:
            return self.reader.read_checked(shard, row) if shard in self._suspect else self.reader.read(shard, row)
        except DAMAGE as error:
            if shard not in self._suspect:
                return self._after_first_error(shard, row, error)
            self._count_failure(shard, error)
            raise SampleLostError(self.reader.key_of(shard, row)) from error

    def _after_first_error(self, shard: int, row: int, error: Exception) -> Sample:
        """Apply the policy to the first damage of a shard."""
        if callable(self._handler) and not self._handler(error):
            raise error
        if self._handler == "skip_shard":
            self._lost.add(shard)
            raise SampleLostError(self.reader.key_of(shard, row)) from error
        self._suspect.add(shard)
        self._count_failure(shard, error)
        self.reader.reopen(shard)
        return self.read(shard, row)

    def _count_failure(self, shard: int, error: Exception) -> None:
        """Give a shard up that is missing, or whose store fails again."""
        self._failures[shard] = self._failures.get(shard, 0) + 1 if isinstance(error, StorageError) else 0
        if type(error) is SourceError or self._failures[shard] >= _STORE_FAILURES:
            self._lost.add(shard)
