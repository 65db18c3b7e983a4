"""Parameters of which some are for the fast tests and the others for the slow ones."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def fast_only(fast: Callable[..., bool], values: Iterable[Any]) -> list[Any]:
    """The values as parameters. Those of which `fast` is false run with the slow tests only."""
    return [value if fast(value) else pytest.param(value, marks=pytest.mark.slow) for value in values]


def fast_rows(fast: Callable[..., bool], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """As `fast_only`, for parameters that consist of several values. `fast` takes them one by one."""
    return [row if fast(*row) else pytest.param(*row, marks=pytest.mark.slow) for row in rows]
