"""What is done about a damaged shard? It is an error, or, if the user says so, its samples are lost: whole ones, and counted.

A shard that is not what its sidecar says (cut, of another size, a command that failed half way) may still hold samples. They are
taken only if the headers before their members say that they are what the sidecar says: name, size and checksum. So a sample is
given as it was indexed, or it is lost; nothing else is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from equitar.errors import PlanError, ShardMismatchError, SourceError, StaleSidecarError, StorageError
from equitar.reading.reader import Reader
from equitar.sources import Sample

Handler: TypeAlias = Literal["skip_sample", "skip_shard"] | Callable[[Exception], bool] | None
DAMAGE = (SourceError, StaleSidecarError, ShardMismatchError, StorageError)
_STORE_FAILURES = 2  # in a row, after which a shard is given up: each has cost all the time that tries may take


class SampleLostError(Exception):
    """A sample cannot be read, and the user's policy is to go on without it.

    Attributes:
        key: Its key.
    """

    def __init__(self, key: str) -> None:
        """Keep its key."""
        super().__init__(key)
        self.key = key


def checked_handler(handler: Handler) -> Handler:
    """Return a policy for damage.

    Raises:
        PlanError: If it is none.
    """
    if handler not in (None, "skip_sample", "skip_shard") and not callable(handler):
        raise PlanError(
            f"`handler` must be None, 'skip_sample', 'skip_shard' or a function of an error; got {handler!r}"
        )
    return handler


class TolerantReader:
    """Reads samples of one source, and goes on where some cannot be read."""

    def __init__(self, reader: Reader, handler: Handler) -> None:
        """Read by a reader.

        Args:
            reader: Reads the samples.
            handler: ``skip_sample`` loses what cannot be read, ``skip_shard`` all of its shard from then on; a function of the
                error returns True to lose what cannot be read. It is asked once for each shard.
        """
        self.reader, self._handler = reader, handler
        self._lost: set[int] = set()  # shards
        self._suspect: set[int] = set()  # shards of which only samples are taken whose headers are right
        self._failures: dict[int, int] = {}

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
                return self._first(shard, row, error)
            self._count(shard, error)
            raise SampleLostError(self.reader.key_of(shard, row)) from error

    def _first(self, shard: int, row: int, error: Exception) -> Sample:
        """Do what the policy says about the first damage of a shard."""
        if callable(self._handler) and not self._handler(error):
            raise error
        if self._handler == "skip_shard":
            self._lost.add(shard)
            raise SampleLostError(self.reader.key_of(shard, row)) from error
        self._suspect.add(shard)
        self._count(shard, error)
        self.reader.reopen(shard)
        return self.read(shard, row)

    def _count(self, shard: int, error: Exception) -> None:
        """Give a shard up that is missing, or whose store fails again."""
        self._failures[shard] = self._failures.get(shard, 0) + 1 if isinstance(error, StorageError) else 0
        if type(error) is SourceError or self._failures[shard] >= _STORE_FAILURES:
            self._lost.add(shard)
