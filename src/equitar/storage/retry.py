"""When is a store that failed asked again? After waits that double, until tries or time are used up.

A request that brought bytes is no failure of the store: what is missing is asked for from where it stopped, at once, and the
tries are counted anew. The time is not.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from equitar.errors import StorageError
from equitar.rng import draws, fold, text_id
from equitar.sources import Retries, StorageOptions
from equitar.urls import without_secrets

Answer = TypeVar("Answer")
_FAILURES = (  # of stores, which are no OSError; looked up where their packages are loaded, so that none is imported
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
    ("paramiko.ssh_exception", "SSHException"),
)

DENIED = (401, 403)  # status of a web server
MISSING = (404, 410)
DENIED_MEND = "check `storage_options`, or whether the URL has expired"


class AnswerError(OSError):
    """A store answers, but with something else than was asked for."""


def store_failures() -> tuple[type[Exception], ...]:
    """Return the exceptions by which stores say that a request failed."""
    loaded = (getattr(sys.modules[module], name, None) for module, name in _FAILURES if module in sys.modules)
    # Before Python 3.11 the two time-outs are classes of their own, and no OSError.
    others = [getattr(sys.modules["asyncio"], "TimeoutError")] if "asyncio" in sys.modules else []  # noqa: B009
    return (OSError, *others, *(one for one in loaded if isinstance(one, type) and issubclass(one, Exception)))


def _really(error: Exception) -> Exception:
    """Return how a request failed: fsspec calls any file missing about which a web server gave no answer, or a bad one."""
    client_error = getattr(sys.modules.get("aiohttp"), "ClientError", None)
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or client_error is None:
        return error
    if not isinstance(cause, (client_error, TimeoutError, getattr(sys.modules["asyncio"], "TimeoutError"))):  # noqa: B009
        return error
    status = getattr(cause, "status", None)
    if status in MISSING:
        return error
    if status in DENIED:
        return PermissionError(f"status {status}; {DENIED_MEND}")
    return cause


class Retry:
    """What is left of the tries for one range."""

    def __init__(self, where: str, retries: Retries, options: StorageOptions, stopped: threading.Event) -> None:
        """Begin to count.

        Args:
            where: What the file is called in errors.
            retries: How patient to be.
            options: Options of the store, whose values are kept out of errors.
            stopped: Set when nobody wants the answer any more.
        """
        self._where, self._retries, self._options, self._stopped = where, retries, options, stopped
        self._begin = time.monotonic()
        self._in_row = self._tries = 0

    def answer(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """Return what comes of asking, again where it fails; the errors are those of `failed`."""
        while not (answers := self._tried(what, ask)):
            pass
        return answers[0]

    def _tried(self, what: str, ask: Callable[[], Answer]) -> list[Answer]:
        try:
            return [ask()]
        except store_failures() as error:
            self.failed(what, error)
        return []

    def failed(self, what: str, error: Exception, *, has_progress: bool = False) -> None:
        """Wait before the next try.

        Args:
            what: What was asked for, for the error.
            error: How it failed.
            has_progress: Whether some bytes came.

        Raises:
            FileNotFoundError, StorageError: If there is to be no other try: it is hopeless, or it was the last one.
        """
        error = _really(error)
        cause = without_secrets(
            f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, self._options
        )
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{self._where} is missing") from None
        self._tries += 1
        self._in_row = 0 if has_progress else self._in_row + 1
        seconds = time.monotonic() - self._begin
        longest = self._retries.limit - seconds
        is_last = self._in_row >= self._retries.tries or longest <= 0
        if is_last or isinstance(error, PermissionError) or self._stopped.is_set():
            # Not `from error`: its text may hold what must not be shown.
            raise StorageError(
                f"{self._where} did not give {what} in {self._tries} tries and {seconds:.1f} s; the last failed with {cause}"
            ) from None
        if self._in_row:
            wait = min(self._retries.first_wait * 2 ** (self._in_row - 1), self._retries.longest_wait)
            # Many workers fail together, and should not all come back together: each waits its own share.
            share = int(draws(fold(text_id(self._where), text_id(what)), [self._tries])[0]) / 2**64
            self._stopped.wait(min(wait * (0.5 + share / 2), longest))
