"""What is kept at hand, and how much of it? The values that came last, within a number of bytes that all users share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values that came last. Nothing is let go but by `evict`, so that whoever holds several of them can rely on them."""

    def __init__(self, most_bytes: int, most_values: int, on_evict: Callable[[Value], bool]) -> None:
        """Begin empty.

        Args:
            most_bytes: Bytes to be kept at most, >= 0.
            most_values: Values to be kept at most, >= 1.
            on_evict: Lets go of a value; returns False if it is still needed, and then it is kept.
        """
        self._most_bytes, self._most_values, self._let_go = most_bytes, most_values, on_evict
        self._values: dict[Hashable, tuple[Value, int]] = {}  # the one that came first is first
        self._bytes = 0

    def get(self, key: Hashable) -> Value | None:
        """Return a value; None if it is not there."""
        return self._values.get(key, (None, 0))[0]

    def put(self, key: Hashable, value: Value, num_bytes: int) -> None:
        """Keep a value of so many bytes; none may be there by its key."""
        self._values[key] = value, num_bytes
        self._bytes += num_bytes

    def drop(self, key: Hashable) -> None:
        """Forget a value that its user let go of; none need be there."""
        _, num_bytes = self._values.pop(key, (None, 0))
        self._bytes -= num_bytes

    def evict(self) -> None:
        """Let go of the values that came first, until what is left is within its bounds; the one that came last stays.

        >>> gone = []
        >>> shelf = BoundedCache(10, 99, lambda value: not gone.append(value))
        >>> for key in "abc":
        ...     shelf.put(key, key.upper(), num_bytes=5)
        >>> shelf.trim()
        >>> gone
        ['A']
        """
        if not self._is_over():
            return
        for key in list(self._values)[:-1]:
            if self._let_go(self._values[key][0]):
                self.drop(key)
                if not self._is_over():
                    return

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_values": {}, "_bytes": 0}  # a process keeps what it needs itself

    def _is_over(self) -> bool:
        return self._bytes > self._most_bytes or len(self._values) > self._most_values
