"""Cache of the newest values, bounded by their bytes and their number."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """The newest values. Only `evict` removes any, so a user can rely on several of them between its calls."""

    def __init__(self, most_bytes: int, most_values: int, on_evict: Callable[[Value], bool]) -> None:
        """Start empty.

        Args:
            most_bytes: Most bytes to keep, >= 0.
            most_values: Most values to keep, >= 1.
            on_evict: Releases a value; returns False if it is still in use, and is kept.
        """
        self._most_bytes, self._most_values, self._on_evict = most_bytes, most_values, on_evict
        self._values: dict[Hashable, tuple[Value, int]] = {}  # the oldest is first
        self._bytes = 0

    def get(self, key: Hashable) -> Value | None:
        """Return a value; None if it is not cached."""
        return self._values.get(key, (None, 0))[0]

    def put(self, key: Hashable, value: Value, num_bytes: int) -> None:
        """Add a value; its key must be new."""
        self._values[key] = value, num_bytes
        self._bytes += num_bytes

    def drop(self, key: Hashable) -> None:
        """Remove a value that its user released, if it is cached."""
        _, num_bytes = self._values.pop(key, (None, 0))
        self._bytes -= num_bytes

    def evict(self) -> None:
        """Release the oldest values until the rest is within bounds; the newest stays.

        >>> released = []
        >>> cache = BoundedCache(10, 99, lambda value: not released.append(value))
        >>> for key in "abc":
        ...     cache.put(key, key.upper(), num_bytes=5)
        >>> cache.evict()
        >>> released
        ['A']
        """
        if not self._is_over():
            return
        for key in list(self._values)[:-1]:
            if self._on_evict(self._values[key][0]):
                self.drop(key)
                if not self._is_over():
                    return

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_values": {}, "_bytes": 0}  # each process fills its own

    def _is_over(self) -> bool:
        return self._bytes > self._most_bytes or len(self._values) > self._most_values
