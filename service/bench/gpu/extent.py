"""How much a stage measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """Shapes by name (shapes.py), numbers of concurrent requests, rows of a step and the tokens before them."""

    shapes: Sequence[str] = ("sdar-1.7b", "sdar-4b", "sdar-8b")
    concurrencies: Sequence[int] = (1, 8, 32, 64, 128)
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)
    context: int = 1024
    rounds: int = 3
    new_tokens: int = 96
