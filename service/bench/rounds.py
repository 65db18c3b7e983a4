"""How often something is measured beside something else, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def nobody(_: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """So many interleaved rounds at each number of concurrent requests. `after` is told of every part that is done."""

    concurrencies: Sequence[int]
    count: int
    after: Callable[[str], None] = nobody
