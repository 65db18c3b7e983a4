"""What is to be added to metrics, as plain data: one process counts, another one has the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

#: a metric's name in the table, and its labels
Key = tuple[str, tuple[tuple[str, str], ...]]
#: amounts of counters, and values of histograms
Added = tuple[Mapping[Key, float], Mapping[Key, Sequence[float]]]


class Sink(Protocol):
    """Where counts and values go. A `Registry` is one, too."""

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Adds a value to a histogram."""


class Sums:
    """Implements `Sink` until someone takes what was added. One thread uses it."""

    def __init__(self) -> None:
        self._amounts: dict[Key, float] = {}
        self._values: dict[Key, list[float]] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Sums up."""
        key = name, tuple(labels.items())
        self._amounts[key] = self._amounts.get(key, 0.0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Keeps the value."""
        self._values.setdefault((name, tuple(labels.items())), []).append(value)

    def take(self) -> Added:
        """All that was added since the last call."""
        taken = self._amounts, self._values
        self._amounts, self._values = {}, {}
        return taken
