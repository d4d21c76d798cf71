"""Retries of failed requests: after waits that double or that the server asks for, until patience ends.

A request that returned some bytes counts as progress: the rest is requested at once, and the next wait is a short one. Patience is
counted from the first failure in any case.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

from equitar.errors import StorageError
from equitar.rng import draws, fold, text_id
from equitar.sources import Retries, StorageOptions
from equitar.urls import without_secrets

logger = logging.getLogger("equitar")

Answer = TypeVar("Answer")
_SILENT = 10.0  # seconds of failures after which a warning says that it is retried
_FAILURES = (  # of stores, other than OSError; only looked up if their packages are loaded, so that none is imported
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
    ("paramiko.ssh_exception", "SSHException"),
)

DENIED = (401, 403)  # HTTP status
MISSING = (404, 410)
BUSY = (429, 503)
DENIED_FIX = "check `storage_options`, or whether the URL has expired"


class AnswerError(OSError):
    """A store sent something other than what was requested."""

    def __init__(self, problem: str, retry_after: str | None = None) -> None:
        """Keep what was sent, and the value of a ``Retry-After`` header."""
        super().__init__(problem)
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}


def store_failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that stores raise for failed requests."""
    loaded = (getattr(sys.modules[module], name, None) for module, name in _FAILURES if module in sys.modules)
    # Before Python 3.11, asyncio's TimeoutError is not an OSError.
    others = [getattr(sys.modules["asyncio"], "TimeoutError")] if "asyncio" in sys.modules else []  # noqa: B009
    return (OSError, *others, *(kind for kind in loaded if isinstance(kind, type) and issubclass(kind, Exception)))


def _actual(error: Exception) -> Exception:
    """Return how a request failed: fsspec raises FileNotFoundError for any failure of a web server."""
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
        return PermissionError(f"status {status}; {DENIED_FIX}")
    return cause


def _retry_after(error: Exception) -> float:
    """Return how many seconds a server asks to wait; 0 if it does not."""
    value = (getattr(error, "headers", None) or {}).get("Retry-After", "")  # of AnswerError, and of errors of aiohttp
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):  # not a date
        return 0.0


class Retry:
    """The tries of one request."""

    def __init__(self, where: str, retries: Retries, options: StorageOptions, stopped: threading.Event) -> None:
        """Start the clock.

        Args:
            where: Name of the file in errors.
            retries: When to retry, and for how long.
            options: Options of the store, whose values must not appear in errors.
            stopped: Set when the result is no longer wanted.
        """
        self._where, self._retries, self._options, self._stopped = where, retries, options, stopped
        self._begin = time.monotonic()
        self._end: float | None = None  # of patience, once something failed
        self._in_row = self._tries = 0
        self._has_warned = False

    def answer(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """Return what `ask` returns, called again while it fails; raises what `failed` raises."""
        while True:
            try:
                return ask()
            except store_failures() as error:  # noqa: PERF203  (each try may fail)
                self.failed(what, error)

    def failed(self, what: str, error: Exception, *, has_progress: bool = False) -> None:
        """Wait before the next try.

        Args:
            what: What was requested, for the error.
            error: How it failed.
            has_progress: Whether some bytes were received.

        Raises:
            FileNotFoundError, StorageError: If there is no further try: it would be useless, or this was the last one.
        """
        error = _actual(error)
        cause = without_secrets(
            f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, self._options
        )
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{self._where} is missing") from None
        self._tries += 1
        self._in_row = 0 if has_progress else self._in_row + 1
        now = time.monotonic()
        seconds = now - self._begin
        self._end = now + self._retries.patience if self._end is None else self._end
        longest = self._end - now
        asked = _retry_after(error)
        is_too_long = 0 < longest < asked
        advice = f"; the server asks to wait {asked:.0f} s: raise `patience` of `Retries`" if is_too_long else ""
        if longest <= 0 or is_too_long or isinstance(error, PermissionError) or self._stopped.is_set():
            # Not `from error`: its text may contain secrets.
            raise StorageError(
                f"{self._where} did not give {what} in {self._tries} tries and {seconds:.1f} s; the last failed with {cause}{advice}"
            ) from None
        if not self._has_warned and self._retries.patience - longest >= _SILENT:
            self._has_warned = True
            logger.warning("%s: %s; retrying for up to %.0f s more", self._where, cause, longest)
        if self._in_row or asked:
            doublings = min(max(0, self._in_row - 1), 30)  # as a float holds only so many
            wait = min(self._retries.first_wait * 2**doublings, self._retries.longest_wait)
            # Many workers fail together and should not retry together, so each waits a different share.
            share = int(draws(fold(text_id(self._where), text_id(what)), [self._tries])[0]) / 2**64
            self._stopped.wait(max(asked, min(wait * (0.5 + share / 2), longest)))
