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

_HAS_NOTES = hasattr(BaseException, "add_note")  # from Python 3.11 on
_PREFIX = "equitar: error in "


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


def blame(error: Exception, what: str) -> None:
    """Say in the last line of an error's trace whose code failed, and on what; the first one to say so is right.

    Type and arguments stay as they are. Before Python 3.11, which has no notes, the line is appended to the message.

    Args:
        error: An error of a user's code.
        what: Whose code it is, and on what.
    """
    note = _PREFIX + what
    notes: list[str] = getattr(error, "__notes__", [])
    if any(earlier.startswith(_PREFIX) for earlier in notes):
        return
    error.__dict__["__notes__"] = [*notes, note]  # what `add_note` does
    if not _HAS_NOTES:
        first, *others = error.args or ("",)
        error.args = (f"{first}\n{note}", *others)
