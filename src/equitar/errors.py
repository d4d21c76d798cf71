"""The exceptions equitar raises, each with the moment at which it fires.

    EquitarError
     ├─ SourceError             (ValueError) a source is named or listed wrongly, or its shards are not there
     │   └─ MissingShardError   one shard that a source names is not there (found while indexing)
     ├─ ShardError              (ValueError) a tar is not what a tar of samples must be (found while indexing)
     ├─ LabelError              (ValueError) a label is missing, cannot be parsed, or is outside the vocabulary
     ├─ SidecarError            (ValueError) a sidecar or summary is missing, of another version, or damaged
     │   └─ StaleSidecarError   it is intact, but describes another tar
     ├─ PlanError               (ValueError) no plan can keep the promises with these arguments
     ├─ ShardMismatchError      (RuntimeError) a shard gave other bytes than its sidecar says (found while training)
     ├─ StorageError            (RuntimeError) a store or a command did not give a shard, however often it was asked
     │   └─ ReadOnlyError       a store takes no files
     ├─ WorkerError             (RuntimeError) processes that index are killed, or an executor is broken
     └─ StageError              (RuntimeError) a stage of the user breaks the contract of per-sample stages

Each message says what was required, what was found, where, and, when certain, what to do.
All of them take one string, so that they survive the way from a worker to the main process.
"""

from __future__ import annotations


class EquitarError(Exception):
    """Any error that equitar raises about its input, its files or its processes. Each is a ValueError or a RuntimeError, too."""


class SourceError(EquitarError, ValueError):
    """A source is named or listed wrongly, or its shards are not there."""


class MissingShardError(SourceError):
    """A shard that a source names is not there; raised while it is indexed."""


class ShardError(EquitarError, ValueError):
    """A tar is damaged, or is not a tar of samples; raised while it is indexed."""


class LabelError(EquitarError, ValueError):
    """A label is missing, cannot be parsed, or is outside the vocabulary."""


class SidecarError(EquitarError, ValueError):
    """A sidecar or a summary is missing, damaged, or of a version this equitar cannot read."""


class StaleSidecarError(SidecarError):
    """A sidecar describes another tar than the one that lies beside it."""


class PlanError(EquitarError, ValueError):
    """No plan can keep the promises with these sources and arguments; raised before the first step."""


class ShardMismatchError(EquitarError, RuntimeError):
    """A shard gave other bytes than its sidecar promises; raised while reading."""


class StorageError(EquitarError, RuntimeError):
    """A store or a command does not give the bytes of a file, however often it was asked."""


class ReadOnlyError(StorageError):
    """A store takes no files, so that sidecars must be written elsewhere."""


class WorkerError(EquitarError, RuntimeError):
    """Processes that index shards are killed, or the executor that runs them is broken."""


class StageError(EquitarError, RuntimeError):
    """A stage of the user drops too much, reads ahead, or gives more than it was given."""
