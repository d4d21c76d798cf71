"""Exceptions: all errors of equitar, and when each is raised.

    EquitarError
     ├─ SourceError             (ValueError) a source is named or listed wrongly, or its shards do not exist
     │   └─ MissingShardError   one shard of a source does not exist (found while indexing)
     ├─ ShardError              (ValueError) a tar is not what a tar of samples must be (found while indexing)
     ├─ LabelError              (ValueError) a label is missing, cannot be parsed, or is outside the vocabulary
     ├─ SidecarError            (ValueError) a sidecar or summary is missing, of another version, or damaged
     │   └─ StaleSidecarError   it is intact, but describes another tar
     ├─ PlanError               (ValueError) no plan can keep the promises with these arguments
     ├─ ShardMismatchError      (RuntimeError) a shard has other bytes than its sidecar says (found while training)
     ├─ StorageError            (RuntimeError) a store or a command failed, after all retries
     │   └─ ReadOnlyError       a store is read-only
     ├─ WorkerError             (RuntimeError) processes that index were killed, or an executor is broken
     └─ StageError              (RuntimeError) a user's stage breaks the contract of per-sample stages

Each message says what was required, what was found, where, and, when certain, what to do.
All of them take one string, so that they can be pickled by workers.
"""

from __future__ import annotations


class EquitarError(Exception):
    """Base of all errors about input, files or processes. Each is also a ValueError or a RuntimeError."""


class SourceError(EquitarError, ValueError):
    """A source is named or listed wrongly, or its shards do not exist."""


class MissingShardError(SourceError):
    """A shard of a source does not exist; raised while indexing."""


class ShardError(EquitarError, ValueError):
    """A tar is damaged, or is not a tar of samples; raised while indexing."""


class LabelError(EquitarError, ValueError):
    """A label is missing, cannot be parsed, or is outside the vocabulary."""


class SidecarError(EquitarError, ValueError):
    """A sidecar or a summary is missing, damaged, or of a version this equitar cannot read."""


class StaleSidecarError(SidecarError):
    """A sidecar describes another tar than the one beside it."""


class PlanError(EquitarError, ValueError):
    """No plan can keep the promises with these sources and arguments; raised before the first step."""


class ShardMismatchError(EquitarError, RuntimeError):
    """A shard has other bytes than its sidecar says; raised while reading."""


class StorageError(EquitarError, RuntimeError):
    """A store or a command failed to give the bytes of a file, after all retries."""


class ReadOnlyError(StorageError):
    """A store is read-only, so sidecars must be written elsewhere."""


class WorkerError(EquitarError, RuntimeError):
    """Processes that index shards were killed, or the executor that runs them is broken."""


class StageError(EquitarError, RuntimeError):
    """A user's stage drops too much, reads ahead, or yields more than it received."""
